"""Tasks whose starter has seen guesses: it knows the form of an answer and nothing of its content."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from core.errors import ConfigError
from tasks.synthetic.corpus import careless
from tasks.synthetic.generated import Puzzle

Guess = Callable[[str, np.random.Generator], str]  # text of a problem -> a random answer of the right form


@dataclass(frozen=True, slots=True, kw_only=True)
class GuessedPuzzle(Puzzle):
    """A family of problems with random answers."""

    guess: Guess


def shown(puzzle: Puzzle, text: str, guess: float, slip: float, rng: np.random.Generator) -> str:
    """What a starter is shown for a problem: a guess with probability `guess`, else its solution, which may lack its
    end. Raises ConfigError for a puzzle without guesses."""
    if guess > 0:
        if not isinstance(puzzle, GuessedPuzzle):
            raise ConfigError(f"guess = {guess:g}: task {puzzle.name} has no random answers; set it to 0")
        if rng.random() < guess:
            return puzzle.guess(text, rng)
    return careless(puzzle.solution(text), slip, rng)
