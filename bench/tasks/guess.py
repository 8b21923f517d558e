"""The task `guess`: a game of textarena, a number to guess by hints, which a small model can learn.

[10] The target number is higher.
[15] The target number is lower.
[12]
"""

from collections.abc import Callable, Sequence

import numpy as np

from bench.tasks.guesses import GuessedPuzzle
from core.environments.protocol import Messages
from core.records import World
from tasks.kinds import TaskKind
from tasks.worlds.games import TextArena

STEP = 5  # numbers to guess from, for each operation of a problem
GUESSES = 5  # by bisection they are enough for 31 numbers


class Guess(TextArena):
    """The game of a problem `1 to 20, game 7`. The prompt gives no rules, and a guess ends with its bracket."""

    ends = "]"
    form = " {}\n"  # no token of a tokenizer joins it with the brackets around it

    def __init__(self) -> None:
        """The game follows from the problem."""

    def reset(self, problem: World) -> Messages:
        """Nothing is said."""
        most, number = _read(problem.reference)
        super().__init__("GuessTheNumber-v0-raw", max_number=most, max_turns=GUESSES - 1)  # it counts from 0
        self.begin(number)
        return []


def _read(text: str) -> tuple[int, int]:
    """Largest number and number of the game."""
    _, _, most, _, number = text.replace(",", "").split()
    return int(most), int(number)


def _play(text: str, choose: Callable[[Sequence[int]], int]) -> str:
    """An episode in which `choose` picks from the numbers that the hints allow."""
    game, allowed, response = Guess(), list(range(1, _read(text)[0] + 1)), ""
    game.reset(World("", text, text))
    while True:
        guess = choose(allowed)
        messages, _, done, _ = game.step(f"[{guess}]")
        response += f"[{guess}]" + "".join(message["content"] for message in messages)
        if done:
            return response
        higher = "higher" in messages[0]["content"]
        allowed = [number for number in allowed if number != guess and (number > guess) == higher]


def _solution(text: str) -> str:
    return _play(text, lambda allowed: allowed[len(allowed) // 2])


def _at_random(text: str, rng: np.random.Generator) -> str:
    """An episode that ignores the hints."""
    order = iter((rng.permutation(_read(text)[0]) + 1).tolist())
    return _play(text, lambda _: next(order))


def _can_win(text: str, response: str) -> bool:
    """Whether the game is not lost yet."""
    game, at = Guess(), 0
    game.reset(World("", text, text))
    while (end := response.find("]", at) + 1) > 0:
        messages, _, done, info = game.step(response[at:end])
        if done:
            return bool(info["correct"])
        at = end + sum(len(message["content"]) for message in messages)
    return True


GUESS = GuessedPuzzle(
    "guess",
    "",
    lambda rng, operations: f"1 to {STEP * operations}, game {rng.integers(1_000_000)}",
    _solution,
    lambda text: _read(text)[0] // STEP,
    _can_win,
    guess=_at_random,
)
guess = TaskKind("", GUESS, environment="bench.tasks.guess:Guess", episodes=True)
"""`task.name: bench.tasks.guess:guess`."""
