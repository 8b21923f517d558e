"""Environments of the package verifiers for tests, made by `load_environment` as the package's users write it."""

from typing import Any

import verifiers as vf
from datasets import Dataset


def rows(first: int, count: int) -> Dataset:
    return Dataset.from_list(
        [
            {"question": f"{n}+{n % 7}?", "answer": str(n + n % 7), "info": {"low": n}}
            for n in range(first, first + count)
        ]
    )


class Hints(vf.MultiTurnEnv):
    """Says whether the answer is larger, until it is found. The prompt of all rows is the same."""

    def __init__(self, **given: Any) -> None:
        data = Dataset.from_list([{"question": "Guess.", "answer": str(n % 9), "info": {"n": n}} for n in range(18)])

        async def found(state: vf.State) -> float:
            return float(state["hits"] > 0)

        async def quick(state: vf.State) -> float:
            return 1 / len(state["trajectory"])

        rubric = vf.Rubric(funcs=[found, quick], weights=[1.0, 0.5])
        super().__init__(dataset=data, eval_dataset=data.select(range(3)), rubric=rubric, max_turns=4, **given)

    async def setup_state(self, state: vf.State) -> vf.State:
        state["hits"] = 0
        return state

    @vf.stop
    async def hit(self, state: vf.State) -> bool:
        return bool(state["hits"])

    async def env_response(self, messages: vf.Messages, state: vf.State, **_: Any) -> vf.Messages:
        said = str(messages[-1]["content"])
        if said == "crash":
            raise vf.ToolCallError("no such tool")
        if said == state["answer"]:
            state["hits"] += 1
            state["final_env_response"] = [{"role": "user", "content": "Right."}]
            return state["final_env_response"]
        return [{"role": "user", "content": "larger" if said < state["answer"] else "smaller"}]


def add(a: int, b: int) -> int:
    """The sum of two numbers.

    Args:
        a: the first
        b: the second
    """
    return a + b


def load_environment(kind: str = "single", count: int = 60) -> vf.Environment:
    if kind == "hints":
        return Hints()
    parser = vf.XMLParser(fields=["answer"])

    def right(parser: vf.XMLParser, completion: vf.Messages, answer: str) -> float:
        return float(parser.parse_answer(completion) == answer)

    rubric = vf.Rubric(funcs=[right, parser.get_format_reward_func()], weights=[1.0, 0.2], parser=parser)
    given: dict[str, Any] = {"dataset": rows(0, count), "rubric": rubric, "parser": parser, "system_prompt": "Add."}
    if kind == "completion":
        return vf.SingleTurnEnv(
            dataset=rows(0, 9).map(lambda row: {"prompt": row["question"]}), message_type="completion"
        )
    if kind == "tools":
        return vf.ToolEnv(tools=[add], max_turns=3, **given)
    return vf.SingleTurnEnv(eval_dataset=rows(count, 8), **given)
