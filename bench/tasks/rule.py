"""The rule: a synthetic task of discovery. One hidden rule gives every symbol its choice, in all problems.

The prompt `kbd` names distinct symbols. The response writes one line per symbol, the symbol and one of three choices:

    k3
    b1
    d3

The choices must be found by trying, and what one problem teaches helps in the others. A guess of n lines is right with
probability 3^-n. Invariant: the prefix check is exact; a wrong line cannot be taken back.
"""

import numpy as np

from bench.tasks.guesses import GuessedPuzzle
from core.errors import DataError
from core.records import Verdict
from tasks.kinds import TaskKind
from tasks.synthetic.generated import begins, same_lines

CHOICES = "123"
RIGHT = dict(zip("abcdefghijkl", "213312231132", strict=True))  # each choice is right for four of the twelve symbols


def _solution(text: str) -> str:
    return "\n".join(symbol + RIGHT[symbol] for symbol in text)


def _guess(text: str, rng: np.random.Generator) -> str:
    return "\n".join(symbol + CHOICES[rng.integers(len(CHOICES))] for symbol in text)


def verify_rule(reference: str, response: str) -> Verdict:
    """Reward 1 if there is one line per symbol, in order, with the right choice."""
    return same_lines(_solution(reference), response)


def _draw(rng: np.random.Generator, operations: int) -> str:
    if operations > len(RIGHT):
        raise DataError(f"task rule: there are {len(RIGHT)} symbols; lower task.operations to at most {len(RIGHT)}")
    return "".join(rng.choice(list(RIGHT), operations, replace=False))


ALPHABET = "".join(RIGHT) + CHOICES + "\n"
RULE = GuessedPuzzle("rule", ALPHABET, _draw, _solution, len, begins(_solution), units=("line", "lines"), guess=_guess)
rule = TaskKind("bench.tasks.rule:verify_rule", RULE)
"""`task.name: bench.tasks.rule:rule`."""
