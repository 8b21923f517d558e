"""The lock: a generated task of planning, with traps that cannot be left.

A dial has 20 positions, the letters a to t; each of three buttons moves it (+: 7 on, -: 4 back, *: three times its
number from 0; all modulo 20). The prompt `f>q!bdjors` gives its position, the position where the lock opens, and six
traps. The response writes one line per press, the button and the new position, and then opens the lock:

    +m
    *q
    open

A wrong position, a trap, or more than `PRESSES` presses fail, and most wrong presses cannot be undone. All generated
locks open at `a`, so what one teaches about a position helps in the others. Invariant: the prefix check is exact. It is
true if and only if some continuation of the text is judged correct.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from bench.tasks.guesses import GuessedPuzzle
from core.errors import DataError
from core.records import Verdict
from tasks.kinds import TaskKind
from tasks.synthetic.generated import wrong

LETTERS = "abcdefghijklmnopqrst"  # the positions, by their numbers: one token each, as small models need it
POSITIONS = len(LETTERS)
GOAL = 0  # where generated locks open. Were it anywhere, a starter of 0.1 M parameters would hardly learn the buttons.
TRAPS = 6
PRESSES = 8  # most presses of one response
BUTTONS = {"+": lambda x: (x + 7) % POSITIONS, "-": lambda x: (x - 4) % POSITIONS, "*": lambda x: 3 * x % POSITIONS}
OPEN = "open"
FAR = PRESSES + 1
LOCK_TRIES = 400  # attempts to draw a lock of a given length: only one position in twenty needs six presses


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock, parsed from its text."""

    start: int
    goal: int
    traps: frozenset[int]


@dataclass(frozen=True, slots=True)
class Dial:
    """The state after the lines of a response so far."""

    position: int
    presses: int
    opened: bool = False


def read_lock(text: str) -> Lock:
    """The lock of a problem's text."""
    start, goal, traps = re.split("[>!]", text)
    return Lock(LETTERS.index(start), LETTERS.index(goal), frozenset(map(LETTERS.index, traps)))


@lru_cache(4096)
def distances(goal: int, traps: frozenset[int]) -> tuple[int, ...]:
    """[POSITIONS] fewest presses from each position to the goal around the traps; FAR if it needs more than PRESSES."""
    fewest = [FAR] * POSITIONS
    fewest[goal] = 0
    for presses in range(PRESSES):
        for position in range(POSITIONS):
            near = any(fewest[press(position)] == presses for press in BUTTONS.values())
            if near and position not in traps and fewest[position] == FAR:
                fewest[position] = presses + 1
    return tuple(fewest)


def _options(lock: Lock, dial: Dial) -> Mapping[str, Dial]:
    """The next lines after which the lock can still be opened, each with the dial after it; none once it is open."""
    if dial.opened:
        return {}
    far = distances(lock.goal, lock.traps)
    left = PRESSES - dial.presses
    found = {OPEN: Dial(dial.position, dial.presses, opened=True)} if dial.position == lock.goal else {}
    for name, press in BUTTONS.items():
        position = press(dial.position)
        if position not in lock.traps and far[position] < left:  # this press and those after it must fit
            found[f"{name}{LETTERS[position]}"] = Dial(position, dial.presses + 1)
    return found


def _prefix_correct(text: str, response: str) -> bool:
    """Whether the lock can still be opened after this prefix of a response; exact, also inside a line."""
    lock = read_lock(text)
    dial = Dial(lock.start, 0)
    *lines, last = response.split("\n")
    for position, line in enumerate(lines):
        follow = _options(lock, dial)
        if not follow:
            return not any(lines[position:]) and not last
        if line not in follow:
            return False
        dial = follow[line]
    return not last or any(line.startswith(last) for line in _options(lock, dial))


def _solution(text: str) -> str:
    """A shortest solution; each press takes the first button that reduces the distance."""
    lock = read_lock(text)
    far = distances(lock.goal, lock.traps)
    position, lines = lock.start, []
    while position != lock.goal:
        name = next(n for n, p in BUTTONS.items() if p(position) not in lock.traps and far[p(position)] < far[position])
        position = BUTTONS[name](position)
        lines.append(f"{name}{LETTERS[position]}")
    return "\n".join([*lines, OPEN])


def _guess(text: str, rng: np.random.Generator) -> str:
    """A random number of random presses, computed correctly: neither the goal nor the traps are heeded."""
    position, lines = read_lock(text).start, []
    for _ in range(rng.integers(1, PRESSES + 1)):
        name = list(BUTTONS)[rng.integers(len(BUTTONS))]
        position = BUTTONS[name](position)
        lines.append(f"{name}{LETTERS[position]}")
    return "\n".join([*lines, OPEN])


def verify_lock(reference: str, response: str) -> Verdict:
    """Reward 1 if the lines are computed correctly, lead around every trap to the goal, and end with `open`."""
    lock = read_lock(reference)
    *presses, last = response.rstrip("\n").split("\n")
    position = lock.start
    for number, line in enumerate(presses, 1):
        name, written = line[:1], line[1:]
        if name not in BUTTONS:
            return wrong(f"line {number}: {line[:20]!r} is no press of a button")
        position = BUTTONS[name](position)
        if written != LETTERS[position]:
            return wrong(f"line {number}: {name} leads to {LETTERS[position]}, written {written[:20]!r}")
        if position in lock.traps:
            return wrong(f"line {number}: {LETTERS[position]} is a trap")
    if last != OPEN:
        return wrong(f"the response does not end with {OPEN!r}")
    if len(presses) > PRESSES:
        return wrong(f"{len(presses)} presses, more than {PRESSES}")
    if position != lock.goal:
        return wrong(f"opened at {LETTERS[position]}, not at {LETTERS[lock.goal]}")
    return Verdict(1.0, True)


def _draw(rng: np.random.Generator, operations: int) -> str:
    """A random lock whose shortest solution has that many presses. Raises DataError when none is found."""
    for _ in range(LOCK_TRIES):
        places = [int(place) for place in rng.permutation(POSITIONS) if place != GOAL]
        traps = frozenset(places[:TRAPS])
        far = distances(GOAL, traps)
        starts = [start for start in places[TRAPS:] if far[start] == operations]
        if starts:
            return f"{LETTERS[starts[0]]}>{LETTERS[GOAL]}!{''.join(LETTERS[trap] for trap in sorted(traps))}"
    raise DataError(f"task lock: no lock with a shortest way of {operations} presses; task.operations ends at 6")


def _presses(text: str) -> int:
    lock = read_lock(text)
    return distances(lock.goal, lock.traps)[lock.start]


LOCK = GuessedPuzzle(
    "lock", LETTERS + ">!+-*\n", _draw, _solution, _presses, _prefix_correct, units=("press", "presses"), guess=_guess
)
lock = TaskKind("bench.learning.lock:verify_lock", LOCK)
"""`task.name: bench.learning.lock:lock`."""
