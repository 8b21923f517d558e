"""Environments of the package verifiers: problems, conversations, and the rewards of their own rubrics."""

import asyncio
import json
import random
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from core.config import RolloutConfig, TaskConfig
from core.environments.protocol import Answer
from core.environments.workers import Workers
from core.errors import ConfigError
from core.records import World
from tasks.dialogue.chat import Message
from tasks.kinds import find_kind, rollout_settings, task_items
from tasks.synthetic.corpus import character_tokenizer
from tasks.worlds.problems import with_worlds
from tests.core.environments.test_workers import answers

pytest.importorskip(
    "verifiers", reason="verifiers is not installed (pip install --no-deps -r requirements/verifiers.txt)"
)
NAME = "someone/tests.verifiers-sums"
Says = Callable[[World, random.Random], Iterator[str]]


def config(kind: str, **fields: Any) -> TaskConfig:
    given = {"eval_problems": 4, "parameters": {"kind": kind}, **fields}
    return TaskConfig(name="verifiers", path=NAME, **given)


def worlds(kind: str) -> list[World]:
    items = task_items(config(kind), 0)
    return [World(f"p{at}", item.prompt, item.reference) for at, item in enumerate([*items.train, *items.evaluation])]


def call(a: int, b: int) -> str:
    return f"<tool_call>{json.dumps({'name': 'add', 'arguments': {'a': a, 'b': b}})}</tool_call>"


def single(world: World, rng: random.Random) -> Iterator[str]:
    """Some are right, some have another form, one is empty."""
    answer = json.loads(world.reference)["row"]["answer"]
    yield rng.choice([f"<answer>{answer}</answer>", f"<answer>{rng.randrange(60)}</answer>", answer, "?", ""])


def hints(_: World, rng: random.Random) -> Iterator[str]:
    while True:
        yield str(rng.randrange(9))


def tools(world: World, rng: random.Random) -> Iterator[str]:
    row = json.loads(world.reference)["row"]
    low = row["info"]["low"]
    yield rng.choice([call(low, low % 7), call(1, 1) + call(2, 2)])
    yield f"<answer>{rng.choice([row['answer'], '7'])}</answer>"


def played(found: list[World], says: Says, seed: int) -> list[tuple[Answer, list[str]]]:
    """The last answer of each episode, and what the policy said in it."""
    settings = rollout_settings(RolloutConfig(), TaskConfig(name="verifiers"))
    drawn = [says(world, random.Random(seed + at)) for at, world in enumerate(found)]
    said: list[list[str]] = [[] for _ in found]
    last: dict[int, Answer] = {}
    with closing(Workers(settings.model_copy(update={"environment_workers": 1}))) as workers:
        at_of = {workers.open(world): at for at, world in enumerate(found)}
        while len(last) < len(found):
            for number, answer in answers(workers, 1).items():
                at = at_of[number]
                if answer.done or answer.error:
                    last[at] = answer
                    continue
                said[at].append(next(drawn[at]))
                workers.step(number, said[at][-1])
    return [(last[at], said[at]) for at in range(len(found))]


def own(kind: str, found: list[World], texts: list[list[str]]) -> list[float]:
    """The rewards by the package's own evaluation, with a client whose answers are known."""
    import httpx2 as httpx  # of the openai package
    from openai import AsyncOpenAI

    from core.environments.served import _message
    from tests.verifiers_sums import load_environment

    environment = load_environment(kind)

    def _answer(request: httpx.Request) -> httpx.Response:
        at, said = int(request.headers["X-Row"]), json.loads(request.content)["messages"]
        turn = sum(message["role"] == "assistant" for message in said)
        message = _message(texts[at][turn], turn, kind == "tools")
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        return httpx.Response(
            200, json={"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
        )

    async def _evaluated() -> list[float]:
        rewards = []
        for at, world in enumerate(found):
            transport = httpx.AsyncClient(transport=httpx.MockTransport(_answer))
            client = AsyncOpenAI(
                base_url="http://x", api_key="x", http_client=transport, default_headers={"X-Row": str(at)}
            )
            row = json.loads(world.reference)["row"]
            output = await environment.run_rollout(row, client, "m", {})
            rewards.append(output["reward"])
        return rewards

    return asyncio.run(_evaluated())


@pytest.mark.parametrize(
    ("kind", "says", "turns"), [("single", single, {1}), ("hints", hints, {1, 2, 3, 4}), ("tools", tools, {2})]
)
def test_rewards_are_those_of_the_rubric(kind: str, says: Says, turns: set[int]) -> None:
    """Of 50 episodes each, whose turns are played by chance. `score_rollout` is what the package's evaluation calls."""
    found = (worlds(kind) * 3)[:50]
    episodes = played(found, says, seed=1)
    assert [answer.error for answer, _ in episodes] == [""] * 50
    assert {len(said) for _, said in episodes} == turns
    expected = own(kind, found, [said for _, said in episodes])
    assert [answer.reward for answer, _ in episodes] == expected
    assert [answer.correct for answer, _ in episodes] == [reward >= 1 for reward in expected]
    assert len(set(expected)) > 1
    assert max(expected) > 1


def crash(_: World, rng: random.Random) -> Iterator[str]:
    yield "crash"


def test_an_error_of_the_environment_drops_its_episode() -> None:
    ((answer, _),) = played(worlds("hints")[:1], crash, 0)
    assert answer.error == "step raised ToolCallError: no such tool"


def test_problems_are_the_rows_of_the_data_sets() -> None:
    """Rows with the prompt of another are other problems; held-out rows are those of the data set for evaluation, or
    the first of the other."""
    items = task_items(config("single"), 0)
    assert (len(items.train), len(items.evaluation)) == (60, 4)
    row = json.loads(items.evaluation[0].reference)["row"]
    assert (row["answer"], row["info"], row["prompt"][0]) == ("64", {"low": 60}, {"role": "system", "content": "Add."})
    assert items.train[0].prompt.startswith("0+0? [")
    hidden = task_items(config("hints"), 0)
    assert len({item.prompt for item in [*hidden.train, *hidden.evaluation]}) == 18
    assert len(hidden.evaluation) == 3
    tooled = task_items(config("tools"), 0)
    assert (len(tooled.train), len(tooled.evaluation)) == (56, 4)
    assert find_kind("verifiers").environment == "verifiers"


def test_prompts_are_what_the_environment_asks() -> None:
    """Every problem's rollout begins and ends once, and is cleaned up."""
    items = task_items(config("single"), 0)
    settings = rollout_settings(RolloutConfig(), TaskConfig(name="verifiers"))
    found = with_worlds(items, "verifiers", settings, character_tokenizer("a"), canonical=False)
    assert [item.messages[0] for item in found.train] == [Message("system", "Add.")] * 60
    assert [item.messages[1].content for item in found.evaluation] == ["60+4?", "61+5?", "62+6?", "63+0?"]


def test_environments_leave_the_signals_of_the_run_alone() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    task_items(config("single", parameters={"count": 30}), 0)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"path": "no-such-environment"}, "ModuleNotFoundError: No module named 'no_such_environment'"),
        ({"parameters": {"size": 3}}, r"load_environment raised TypeError: .* unexpected keyword argument 'size'"),
        ({"parameters": {"kind": "completion"}}, "its message_type is 'completion'; only chat is played"),
    ],
)
def test_what_is_wrong_with_an_environment_is_named(fields: Any, wrong: str) -> None:
    with pytest.raises(ConfigError, match=rf"^task\.path.*{wrong}"):
        task_items(config("single").model_copy(update=fields), 0)


def test_without_the_package_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "verifiers", None)
    with pytest.raises(ConfigError, match=r"requirements/verifiers\.txt"):
        task_items(config("single", parameters={"count": 31}), 0)
