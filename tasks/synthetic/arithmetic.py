"""Chained arithmetic: a synthetic task whose every step can be checked.

`7+5-3*2=` is computed strictly from left to right, modulo 100. The response has a line per operation, then the answer:

    +5=12
    -3=9
    *2=18
    #18

The reward depends only on the final answer; the prefix check reads every character. A small model can learn each step,
and errors accumulate with the number of operations.
"""

import re

import numpy as np

from core.records import Verdict
from tasks.kinds import TaskKind
from tasks.synthetic.generated import OPERATIONS, Puzzle

MODULUS = 100

_TERM = re.compile(r"([+*-])(\d)")


def steps(expression: str) -> list[tuple[str, int]]:
    """The operations of an expression without '=', each with its result in [0, MODULUS).

    >>> steps("7+5-3*2")
    [('+5', 12), ('-3', 9), ('*2', 18)]
    """
    value = int(expression[0])
    done = []
    for match in _TERM.finditer(expression):
        value = OPERATIONS[match[1]](value, int(match[2])) % MODULUS
        done.append((match[0], value))
    return done


def _solution(expression: str) -> str:
    done = steps(expression)
    return "".join(f"{operation}={value}\n" for operation, value in done) + f"#{done[-1][1]}"


def verify_arithmetic(reference: str, response: str) -> Verdict:
    """Reward 1 if the last line is `#` and the value of the expression `reference`, and no other line is an answer."""
    found = arithmetic_answer(response)
    if found is None:
        return Verdict(0.0, False, "no answer found: expected one line '#N', at the end")
    expected = f"#{steps(reference)[-1][1]}"
    right = found == expected
    return Verdict(float(right), right, "" if right else f"answered {found[:20]}, expected {expected}")


def arithmetic_answer(response: str) -> str | None:
    """The answer line of a response; None unless there is exactly one, at the end."""
    *lines, last = response.strip().split("\n")
    return last if last.startswith("#") and not any(line.startswith("#") for line in lines) else None


def _prefix_correct(expression: str, text: str) -> bool:
    """Whether `text` is the beginning of a response without a mistake: correct steps in order, then the answer. Exact
    for every prefix, also one cut inside a line. A correct answer before all steps are written is no mistake."""
    whole = _solution(expression)
    lines, ending = whole[: whole.index("#")], whole[whole.index("#") :]
    if lines.startswith(text):
        return True
    written = text[: text.find("#")] if "#" in text else text
    at_line_start = written == "" or written.endswith("\n")
    return at_line_start and lines.startswith(written) and (ending + "\n").startswith(text[len(written) :])


def _draw(rng: np.random.Generator, operations: int) -> str:
    digits = rng.integers(1, 10, operations + 1)
    signs = rng.integers(0, 3, operations)
    return str(digits[0]) + "".join(f"{'+-*'[s]}{d}" for s, d in zip(signs, digits[1:], strict=True))


ARITHMETIC = Puzzle(
    "arithmetic", "0123456789+-*=#\n", _draw, _solution, lambda text: len(steps(text)), _prefix_correct, "=\n"
)
TASK = TaskKind("tasks.synthetic.arithmetic:verify_arithmetic", ARITHMETIC, answer=arithmetic_answer)
