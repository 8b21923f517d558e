"""Common parts of the generated tasks: distinct problems by length, held-out problems, prefix checks. Invariant:
whether a problem is for evaluation depends only on its text, so no run and no starter trains on one."""

import operator
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from core.errors import DataError
from core.records import Verdict
from core.seeds import generator
from tasks.problems import Item, prompt_digest

EVALUATION_SHARE = 8  # one problem in this many is for evaluation
TRIES = 1000  # failed draws of a new problem after which its length counts as used up

OPERATIONS: Mapping[str, Callable[[int, int], int]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}


@dataclass(frozen=True, slots=True)
class Puzzle:
    """A family of problems whose difficulty is a number of operations."""

    name: str  # the task's name
    alphabet: str  # all characters of prompts and solutions
    # random generator, operations -> the text (and reference) of a problem
    draw: Callable[[np.random.Generator, int], str]
    solution: Callable[[str], str]  # text -> canonical solution
    operations: Callable[[str], int]  # text -> operations of its shortest solution, its difficulty
    prefix_correct: Callable[[str, str], bool]  # text, prefix of a response -> whether the prefix is correct; exact
    ending: str = "\n"  # end of the prompt, after the text
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
    """`count` distinct problems, from the evaluation problems or from the others. The lengths alternate. Evaluation
    problems do not depend on the seed. Raises DataError when there are fewer problems."""
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
        f"{operations.start} to {operations.stop - 1} operations; raise the second number of task.operations or lower "
        f"{'task.eval_problems' if evaluation else 'task.problems'}"
    )


def begins(solution: Callable[[str], str]) -> Callable[[str, str], bool]:
    """The prefix check of a task with one right response, also inside a line. Line breaks may follow."""
    return lambda text, response: (solution(text) + "\n" * len(response)).startswith(response)


def wrong(detail: str) -> Verdict:
    """Reward 0 with its reason."""
    return Verdict(0.0, False, detail)


def same_lines(solution: str, response: str) -> Verdict:
    """Reward 1 if the response is the solution, line by line; otherwise the first line that differs is named."""
    expected, found = solution.split("\n"), response.rstrip("\n").split("\n")
    for number, (right, written) in enumerate(zip(expected, found, strict=False), 1):
        if right != written:
            return wrong(f"line {number}: {written[:20]!r}, expected {right}")
    if len(found) != len(expected):
        return wrong(f"{len(found)} lines, expected {len(expected)}")
    return Verdict(1.0, True)
