"""The game of P4: the dial of the task lock, turned by one button a turn. The world says where the dial is now:

    f>a!bdjors
    +m*q=            the policy presses +, reads m, presses *, reads q, and opens with =

A trap, or more than `PRESSES` presses, ends the episode. Invariant: the prefix check is exact, as that of the lock."""

import time

import numpy as np

from bench.learning.lock import BUTTONS, LETTERS, LOCK, OPEN, PRESSES, read_lock, verify_lock
from core.environments.protocol import Messages, Step
from core.records import Verdict, World
from tasks.kinds import TaskKind
from tasks.synthetic.generated import Puzzle

KEY = "="  # opens the lock


class Dial:
    """The world of one lock. The text of the episode is judged, so it gives no rewards."""

    ends = "".join(BUTTONS) + KEY

    def __init__(self, delay: float = 0.0) -> None:
        """`delay`: seconds that every step takes."""
        self._delay = delay

    def reset(self, problem: World) -> Messages:
        """Nothing is said: the prompt has all."""
        self._text = problem.reference
        self._lock = read_lock(self._text)
        self._position, self._presses = self._lock.start, 0
        return []

    def step(self, action: str) -> Step:
        """Where the dial is after a press; the episode ends in a trap, with the key, or with anything else.

        >>> world = Dial()
        >>> world.reset(World("p", "", "f>a!bdjors"))  # f is position 5
        []
        >>> world.step("+"), world.step("-")[2], world.step("=")[2]  # 12; 8 is no trap
        (([{'role': 'user', 'content': 'm'}], 0.0, False, {}), False, True)
        """
        time.sleep(self._delay)
        if action not in BUTTONS:
            return [], 0.0, True, {}
        self._position, self._presses = BUTTONS[action](self._position), self._presses + 1
        over = self._position in self._lock.traps or self._presses > PRESSES
        return [{"role": "user", "content": LETTERS[self._position]}], 0.0, over, {}


class SavedDial(Dial):
    """The same with snapshots: a restart repeats no step."""

    def snapshot(self) -> bytes:
        """The lock, and where the dial is after how many presses."""
        return f"{self._text} {self._position} {self._presses}".encode()

    def restore(self, snapshot: bytes) -> None:
        """The world of a snapshot.

        >>> world, other = SavedDial(), SavedDial()
        >>> world.reset(World("p", "", "f>a!bdjors")), world.step("+")[0][0]["content"]
        ([], 'm')
        >>> other.restore(world.snapshot())
        >>> other.step("*") == world.step("*"), other.snapshot()
        (True, b'f>a!bdjors 16 2')
        """
        self._text, position, presses = snapshot.decode().split()
        self._lock = read_lock(self._text)
        self._position, self._presses = int(position), int(presses)


def as_lock(episode: str) -> str:
    """The response to the lock that an episode amounts to.

    >>> as_lock("+m*q="), as_lock("+m*")
    ('+m\\n*q\\nopen', '+m\\n*')
    """
    lines = [episode[at : at + 2] for at in range(0, len(episode), 2)]
    return "\n".join(OPEN if line == KEY else line for line in lines)


def _episode(response: str) -> str:
    """The inverse."""
    return response.replace("\n", "").replace(OPEN, KEY)


def verify_dial(reference: str, response: str) -> Verdict:
    """Reward 1 if the presses lead around every trap to the goal, and it is opened there."""
    return verify_lock(reference, as_lock(response))


def _guess(text: str, rng: np.random.Generator) -> str:
    assert LOCK.guess is not None
    return _episode(LOCK.guess(text, rng))


DIAL = Puzzle(
    "dial",
    LETTERS + ">!+-*=\n",
    LOCK.draw,
    lambda text: _episode(LOCK.solution(text)),
    LOCK.operations,
    lambda text, episode: LOCK.prefix_correct(text, as_lock(episode)),
    units=LOCK.units,
    guess=_guess,
)
dial = TaskKind("bench.real.game:verify_dial", DIAL, environment="bench.real.game:Dial")
"""`task.name: bench.real.game:dial`."""
