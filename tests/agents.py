"""Agents for tests, written against the OpenAI interface."""

import asyncio
import json
import time
from typing import Any

from openai import AsyncOpenAI, OpenAI

from core.records import World

ADD: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}


def adder(problem: World, base_url: str, api_key: str) -> float | None:
    """Lets the model call `add`, as often as it likes. An answer that is the row's is worth 1."""
    client = OpenAI(base_url=base_url, api_key=api_key)
    messages: list[Any] = [{"role": "user", "content": problem.prompt}]
    while True:
        choice = client.chat.completions.create(model="any", messages=messages, tools=[ADD], temperature=0.3).choices[0]
        messages.append(choice.message)
        if choice.finish_reason != "tool_calls":
            return float(choice.message.content == problem.reference)
        for call in choice.message.tool_calls or []:
            assert call.type == "function"
            total = sum(json.loads(call.function.arguments).values())
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(total)})


async def twice(problem: World, base_url: str, api_key: str) -> None:
    """Asks for a second answer, and leaves the reward to others."""
    async with AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        messages: list[Any] = [{"role": "developer", "content": [{"type": "text", "text": problem.prompt}]}]
        for _ in range(2):
            answer = await client.chat.completions.create(model="any", messages=messages)
            said = answer.choices[0].message.content
            messages += [{"role": "assistant", "content": said}, {"role": "user", "content": f"{said}?"}]


def scripted(problem: World, base_url: str, api_key: str) -> float:
    """Makes the requests of the row's answer, one after the other."""
    client = OpenAI(base_url=base_url, api_key=api_key)
    for request in json.loads(problem.reference):
        client.chat.completions.create(**{"model": "any", "messages": [{"role": "user", "content": "a"}], **request})
    return 1.0


async def bad(problem: World, base_url: str, api_key: str) -> Any:
    """Does what the row says, after one answer."""
    client = AsyncOpenAI(base_url=base_url, api_key=api_key)
    said: list[Any] = [{"role": "user", "content": "a"}]

    async def _ask() -> None:
        answer = await client.chat.completions.create(model="any", messages=said)
        said.append({"role": "assistant", "content": answer.choices[0].message.content})

    if problem.reference == "silent":
        return 1.0
    await _ask()
    match problem.reference:
        case "raise":
            raise KeyError("no such tool")
        case "hang":
            time.sleep(1000)
        case "both":
            await asyncio.gather(_ask(), _ask())
        case "text":
            return "good"
    return 1.0


def wrong(problem: World) -> float:
    return 0.0
