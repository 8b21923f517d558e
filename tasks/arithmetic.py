"""Chained arithmetic: a synthetic task whose every step can be checked.

`7+5-3*2=` is worked out strictly from left to right, modulo 100, one line per operation (the operation and its result),
then the answer:

    +5=12
    -3=9
    *2=18
    #18

Called by `tasks/task.py` (problems, checker), `tasks/judge_worker.py` (`verify`) and `tasks/starter.py`. The reward looks at the
final answer alone; `prefix_correct` looks at every character. Each operation is one small step (a number below 100 and a
digit), so a small model can learn it, and the errors of a chain accumulate with its length.

Invariant: whether an expression is held out for evaluation depends on its text alone, so no seed, length or starter ever
trains on an evaluation problem.
"""

import re
from collections import deque

import numpy as np

from core.errors import DataError
from core.records import Verdict
from core.seeds import generator
from tasks.problems import Item, digest

MODULUS = 100
HELD_OUT_SHARE = 8
"""One expression in this many is for evaluation."""
TRIES = 1000
"""Draws for one new expression before its length counts as used up."""
ALPHABET = "0123456789+-*=#\n"
"""All characters of prompts and solutions."""

_TERM = re.compile(r"([+*-])(\d)")
_OPERATIONS = {"+": lambda x, y: x + y, "-": lambda x, y: x - y, "*": lambda x, y: x * y}


def steps(expression: str) -> list[tuple[str, int]]:
    """The operations of an expression without '=', each with its result in [0, MODULUS).

    >>> steps("7+5-3*2")
    [('+5', 12), ('-3', 9), ('*2', 18)]
    """
    value = int(expression[0])
    done = []
    for match in _TERM.finditer(expression):
        value = _OPERATIONS[match[1]](value, int(match[2])) % MODULUS
        done.append((match[0], value))
    return done


def solution(expression: str) -> str:
    """The canonical solution.

    >>> solution("7+5-3*2")
    '+5=12\\n-3=9\\n*2=18\\n#18'
    """
    done = steps(expression)
    return "".join(f"{operation}={value}\n" for operation, value in done) + f"#{done[-1][1]}"


def careless(expression: str, slip: float, rng: np.random.Generator) -> str:
    """A solution by a careless teacher, who leaves the answer line out with probability `slip`.

    A starter that learned from one has to be taught by the reward to answer at all, as models that were trained without
    reinforcement often are.
    """
    text = solution(expression)
    return text[: text.index("#")] if slip > 0 and rng.random() < slip else text


def verify(reference: str, response: str) -> Verdict:
    """Reward 1 if the last line, and no other, is `#` and the value of the expression `reference`."""
    lines = response.strip().split("\n")
    answers = [line for line in lines if line.startswith("#")]
    if len(answers) != 1 or not lines[-1].startswith("#"):
        return Verdict(0.0, False, "no answer found: expected one line '#N', at the end")
    expected = f"#{steps(reference)[-1][1]}"
    right = answers[0] == expected
    return Verdict(float(right), right, "" if right else f"answered {answers[0][:20]}, expected {expected}")


def prefix_correct(expression: str, text: str) -> bool:
    """Whether `text` begins a response without any mistake: right steps in order, then (early or not) the right answer.

    Exact for every prefix, also one cut inside a line. An answer given before all steps are written is no mistake if it
    is right.

    >>> prefix_correct("7+5-3*2", "+5=12\\n-"), prefix_correct("7+5-3*2", "+5=13"), prefix_correct("7+5-3*2", "#18")
    (True, False, True)
    """
    whole = solution(expression)
    lines, answer = whole[: whole.index("#")], whole[whole.index("#") :]
    if lines.startswith(text):
        return True
    written = text[: text.find("#")] if "#" in text else text
    at_line_start = written == "" or written.endswith("\n")
    return at_line_start and lines.startswith(written) and (answer + "\n").startswith(text[len(written) :])


def held_out(expression: str) -> bool:
    """Whether the expression is an evaluation problem, whatever the run."""
    return int(digest(expression), 16) % HELD_OUT_SHARE == 0


def draw(rng: np.random.Generator, operations: int) -> str:
    """A random expression of that many operations: digits 1 to 9.

    >>> len(draw(np.random.default_rng(0), 3))
    7
    """
    digits = rng.integers(1, 10, operations + 1)
    signs = rng.integers(0, 3, operations)
    return str(digits[0]) + "".join(f"{'+-*'[s]}{d}" for s, d in zip(signs, digits[1:], strict=True))


def items(seed: int, operations: range, count: int, *, evaluation: bool) -> list[Item]:
    """`count` distinct problems, the lengths taking turns; from the held-out expressions or from the others.

    Evaluation problems do not depend on the seed. Raises DataError when there are not that many expressions.
    """
    rng = generator(0, "arithmetic", "evaluation") if evaluation else generator(seed, "arithmetic", "train")
    found: dict[str, Item] = {}
    lengths = deque(operations)
    while lengths and len(found) < count:
        drawn = (draw(rng, lengths[0]) for _ in range(TRIES))
        fresh = next((text for text in drawn if held_out(text) == evaluation and text not in found), None)
        if fresh is None:
            lengths.popleft()  # nearly all expressions of this length are in use
        else:
            found[fresh] = item(fresh)
            lengths.rotate(-1)
    if len(found) == count:
        return list(found.values())
    raise DataError(
        f"task arithmetic: there are no {count} distinct {'evaluation' if evaluation else 'training'} expressions of "
        f"{operations.start} to {operations.stop - 1} operations; raise task.max_operations or lower "
        f"{'task.eval_problems' if evaluation else 'task.problems'}"
    )


def item(expression: str) -> Item:
    """The problem of an expression."""
    count = len(_TERM.findall(expression))
    level = f"{count} operation{'s' if count > 1 else ''}"
    return Item(f"{expression}=\n", expression, level, solution(expression))
