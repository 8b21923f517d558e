"""What the generated tasks share: distinct problems by length, an evaluation set that no seed changes, and prefix checking.

Called by `tasks/kinds.py` (items) and `tasks/corpus.py` (starters) with the `Puzzle` of a task: arithmetic, lock, countdown.
Invariant: whether a problem is for evaluation depends on its text alone, so no seed, length or starter trains on one.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from core.errors import DataError
from core.records import Verdict
from core.seeds import generator
from tasks.problems import Item, prompt_digest

EVALUATION_SHARE = 8
"""One problem in this many is for evaluation."""
TRIES = 1000
"""Draws for one new problem before its length counts as used up."""

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Puzzle:
    """A family of problems whose difficulty is a number of operations."""

    name: str  # the task's name
    alphabet: str  # all characters of prompts and solutions
    draw: Callable[
        [np.random.Generator, int], str
    ]  # the text (and reference) of a random problem of so many operations
    solution: Callable[[str], str]  # the canonical solution of a text
    operations: Callable[[str], int]  # of the shortest solution of a text: its difficulty
    prefix_correct: Callable[[str, str], bool]  # text, prefix of a response -> whether it is without a mistake; exact
    ending: str = "\n"  # of the prompt, after the text
    units: tuple[str, str] = ("operation", "operations")

    def item(self, text: str) -> Item:
        """The problem of a text."""
        count = self.operations(text)
        level = f"{count} {self.units[count != 1]}"
        return Item(text + self.ending, text, level, self.solution(text))


def is_for_evaluation(text: str) -> bool:
    """Whether the problem of this text is for evaluation, in every run."""
    return int(prompt_digest(text), 16) % EVALUATION_SHARE == 0


def puzzle_items(puzzle: Puzzle, seed: int, operations: range, count: int, *, evaluation: bool) -> list[Item]:
    """`count` distinct problems, the lengths taking turns; from the evaluation problems or from the others.

    Evaluation problems do not depend on the seed. Raises DataError when there are not that many.
    """
    rng = generator(0, puzzle.name, "evaluation") if evaluation else generator(seed, puzzle.name, "train")
    found: dict[str, Item] = {}
    lengths = deque(operations)
    while lengths and len(found) < count:
        drawn = (puzzle.draw(rng, lengths[0]) for _ in range(TRIES))
        fresh = next((text for text in drawn if is_for_evaluation(text) == evaluation and text not in found), None)
        if fresh is None:
            lengths.popleft()  # nearly all problems of this length are in use
        else:
            found[fresh] = puzzle.item(fresh)
            lengths.rotate(-1)
    if len(found) == count:
        return list(found.values())
    raise DataError(
        f"task {puzzle.name}: there are no {count} distinct {'evaluation' if evaluation else 'training'} problems of "
        f"{operations.start} to {operations.stop - 1} operations; raise task.max_operations or lower "
        f"{'task.eval_problems' if evaluation else 'task.problems'}"
    )


def careless(solution: str, slip: float, rng: np.random.Generator) -> str:
    """A solution by a careless teacher, who leaves the last line out with probability `slip`.

    A starter that learned from one has to be taught by the reward to finish at all, as models that were trained without
    reinforcement often are.
    """
    return solution[: solution.rfind("\n") + 1] if slip > 0 and rng.random() < slip else solution


def can_follow(text: str, state: S, options: Callable[[S], Mapping[str, S]]) -> bool:
    """Whether `text` begins a correct response of lines, also when it is cut inside a line.

    `options` gives the lines that may come next, each with the state after it, leaving out those from which the end can no
    longer be reached; none means that the end is reached. After the end only line breaks may follow.
    """
    *lines, last = text.split("\n")
    for position, line in enumerate(lines):
        follow = options(state)
        if not follow:
            return not any(lines[position:]) and not last
        if line not in follow:
            return False
        state = follow[line]
    return not last or any(line.startswith(last) for line in options(state))


def wrong(detail: str) -> Verdict:
    """Reward 0 with its reason."""
    return Verdict(0.0, False, detail)
