"""Chained arithmetic with a calculator: a synthetic task in several turns, and an example of an environment.

`12*7-35` is computed strictly from left to right. The response calls the calculator once per operation, and copies the
last result. What the calculator writes is shown as <84]>, with the line break that follows:

    [12*7=<84]>
    [84-35=<49]>
    #49

Invariant: the prefix check is exact. Every line is judged, so no answer is right by luck.
"""

import re

import numpy as np

from core.environments.protocol import Messages, Step
from core.records import Verdict, World
from tasks.kinds import TaskKind
from tasks.synthetic.arithmetic import arithmetic_answer
from tasks.synthetic.generated import OPERATIONS, Puzzle, begins, same_lines

_CALL = re.compile(r"\[(-?\d{1,30})([+*-])(\d{1,30})=")
_TERM = re.compile(r"([+*-])(\d+)")


class Calculator:
    """Answers calls `[A*B=` inside a text; every other turn is the last.

    >>> Calculator().step("[12*7="), Calculator().step("#84")[2]
    (([{'role': 'tool', 'content': '84]\\n'}], 0.0, False, {}), True)
    """

    ends = "="

    def reset(self, problem: World) -> Messages:
        """There is nothing to prepare."""
        del problem
        return []

    def step(self, action: str) -> Step:
        """The result of a call, or an error."""
        call = _CALL.fullmatch(action)
        result = "error" if call is None else str(OPERATIONS[call[2]](int(call[1]), int(call[3])))
        return [{"role": "tool", "content": f"{result}]\n"}], 0.0, not action.endswith("="), {}


def _solution(text: str) -> str:
    value = int(_TERM.split(text)[0])
    lines = ""
    for operation, number in _TERM.findall(text):
        call = f"[{value}{operation}{number}="
        value = OPERATIONS[operation](value, int(number))
        lines += f"{call}{value}]\n"
    return f"{lines}#{value}"


def verify_calculator(reference: str, response: str) -> Verdict:
    """Reward 1 if every call is the right one, in order, and the last line is `#` and the value of the expression."""
    return same_lines(_solution(reference), response)


def _draw(rng: np.random.Generator, operations: int) -> str:
    numbers, signs = rng.integers(2, 100, operations + 1), rng.integers(0, 3, operations)
    return str(numbers[0]) + "".join(f"{'+-*'[s]}{number}" for s, number in zip(signs, numbers[1:], strict=True))


CALCULATOR = Puzzle(
    "calculator",
    "0123456789+-*=[]#\nero",  # and the letters of "error"
    _draw,
    _solution,
    lambda text: len(_TERM.findall(text)),
    begins(_solution),
    units=("call", "calls"),
)

calculator = TaskKind(
    "bench.tasks.calculator:verify_calculator",
    CALCULATOR,
    answer=arithmetic_answer,
    environment="bench.tasks.calculator:Calculator",
)
"""`task.name: bench.tasks.calculator:calculator`."""
