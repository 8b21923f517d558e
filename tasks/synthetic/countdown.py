"""Countdown: a synthetic task of search. Combine all given numbers, each once, with + - * / to reach the target.

The prompt `2,3,5,8>19` gives the numbers in ascending order and the target. Every line of the response replaces two of
the remaining numbers by their result; the last result is the target:

    2*3=6
    6+8=14
    5+14=19

Results are whole numbers from 1 to `LARGEST`: a difference must be positive and a quotient exact. An early mistake
cannot be repaired. Invariant: the prefix check is exact. It searches all that the remaining numbers can give, and is
true if and only if some continuation is judged correct.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from itertools import permutations

import numpy as np

from core.errors import DataError
from core.records import Verdict
from tasks.kinds import TaskKind
from tasks.synthetic.generated import OPERATIONS, Puzzle, can_follow, wrong

LARGEST = 200  # largest result of a line
DIGITS = range(1, 13)  # range from which the given numbers are drawn
MOST = 5  # most operations of a problem: the search visits every way to combine its numbers

Numbers = tuple[int, ...]  # the remaining numbers, in ascending order

_LINE = re.compile(r"([1-9]\d{0,5})([+*/-])([1-9]\d{0,5})=([1-9]\d{0,5})", re.ASCII)


def read_countdown(text: str) -> tuple[Numbers, int]:
    """Numbers and target of a problem's text."""
    numbers, _, target = text.partition(">")
    return tuple(sorted(map(int, numbers.split(",")))), int(target)


def result(first: int, sign: str, second: int) -> int | None:
    """The result of one line; None if it is not a whole number from 1 to LARGEST.

    >>> result(8, "-", 5), result(5, "-", 8), result(7, "/", 2), result(6, "/", 2)
    (3, None, None, 3)
    """
    if sign == "/":
        return first // second if first % second == 0 else None
    value = OPERATIONS[sign](first, second)
    return value if 1 <= value <= LARGEST else None


def without(numbers: Numbers, *used: int) -> Numbers | None:
    """The numbers that remain without the used ones; None if one of these is missing."""
    left = list(numbers)
    for number in used:
        if number not in left:
            return None
        left.remove(number)
    return tuple(left)


@lru_cache(200_000)
def moves(numbers: Numbers) -> tuple[tuple[str, Numbers], ...]:
    """All lines that may be written next, each with the numbers after it. A sum or product has both orders."""
    found: dict[str, Numbers] = {}
    for first, second in dict.fromkeys(permutations(numbers, 2)):
        left = without(numbers, first, second)
        assert left is not None
        for sign in "+-*/":
            value = result(first, sign, second)
            if value is not None:
                found[f"{first}{sign}{second}={value}"] = tuple(sorted((*left, value)))
    return tuple(found.items())


@lru_cache(200_000)
def reachable(numbers: Numbers) -> frozenset[int]:
    """Every target that all these numbers together can give."""
    if len(numbers) == 1:
        return frozenset(numbers)
    return frozenset().union(*(reachable(left) for left in {left for _, left in moves(numbers)}))


def _options(numbers: Numbers, target: int) -> Mapping[str, Numbers]:
    """The next lines after which the target can still be reached; none once one number is left."""
    return {line: left for line, left in moves(numbers) if target in reachable(left)}


def _prefix_correct(text: str, response: str) -> bool:
    """Whether the target can still be reached after this prefix of a response; exact, also inside a line."""
    numbers, target = read_countdown(text)
    return can_follow(response, numbers, lambda left: _options(left, target))


def _solution(text: str) -> str:
    """The first solution in the order of `moves`."""
    numbers, target = read_countdown(text)
    lines = []
    while len(numbers) > 1:
        line, numbers = next(iter(_options(numbers, target).items()))
        lines.append(line)
    return "\n".join(lines)


def _guess(text: str, rng: np.random.Generator) -> str:
    """Random lines, computed correctly, until one number is left."""
    numbers, _ = read_countdown(text)
    lines = []
    while len(numbers) > 1:
        ways = moves(numbers)
        line, numbers = ways[rng.integers(len(ways))]
        lines.append(line)
    return "\n".join(lines)


def verify_countdown(text: str, response: str) -> Verdict:
    """Reward 1 if every line combines two remaining numbers correctly and only the target is left."""
    numbers, target = read_countdown(text)
    for row, line in enumerate(response.rstrip("\n").split("\n"), 1):
        match = _LINE.fullmatch(line)
        if match is None:
            return wrong(f"line {row}: {line[:30]!r} is no line such as '2*3=6'")
        first, second, written = int(match[1]), int(match[3]), int(match[4])
        left = without(numbers, first, second)
        if left is None:
            return wrong(f"line {row}: {first} and {second} are not among {', '.join(map(str, numbers))}")
        if result(first, match[2], second) != written:
            return wrong(f"line {row}: {line[:30]} is not right")
        numbers = tuple(sorted((*left, written)))
    right = numbers == (target,)
    return Verdict(1.0, True) if right else wrong(f"{', '.join(map(str, numbers))} left, expected {target} alone")


def _draw(rng: np.random.Generator, operations: int) -> str:
    """A problem of `operations` + 1 random numbers; combining them at random gives the target. Raises DataError."""
    if operations > MOST:
        raise DataError(
            f"task countdown: {operations} operations are too many to search; lower task.max_operations to {MOST}"
        )
    given = tuple(sorted(int(number) for number in rng.choice(DIGITS, operations + 1)))
    left = given
    while len(left) > 1:
        ways = moves(left)
        left = ways[int(rng.integers(len(ways)))][1]
    return f"{','.join(map(str, given))}>{left[0]}"


COUNTDOWN = Puzzle(
    "countdown", "0123456789,>+-*/=\n", _draw, _solution, lambda text: text.count(","), _prefix_correct, guess=_guess
)
TASK = TaskKind("tasks.synthetic.countdown:verify_countdown", COUNTDOWN)
