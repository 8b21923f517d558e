"""Assigns rows to optimizer steps, to micro-batches under a token budget, and these to ranks. Invariants: every row is
in exactly one micro-batch; every rank gets as many micro-batches, some of them empty (DeepSpeed's collectives need it);
none of more than one row exceeds the budget. The assignment never changes a loss, only its cost."""

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from core.records import IntArray, Start
from learner.packing.trees import in_order

Assignment = list[list[IntArray]]  # [rank][micro-batch] -> row numbers; an empty array for an empty micro-batch
Sizes = npt.NDArray[np.int64]


def assign_steps(starts: Sequence[Start], steps: int, rng: np.random.Generator) -> list[list[int]]:
    """Rows of each optimizer step, drawn at random, evenly; of one problem, and of one start, together (read once)."""
    problems: dict[str, dict[str, list[int]]] = {}
    for row in rng.permutation(len(starts)).tolist():
        problems.setdefault(starts[row].problem_id, {}).setdefault(starts[row].id, []).append(row)
    order = [row for of_problem in problems.values() for rows in of_problem.values() for row in rows]
    return [part.tolist() for part in np.array_split(order, steps) if len(part)]


def assign_steps_apart(
    own: Sequence[Start], imitated: Sequence[Start], steps: int, rng: np.random.Generator
) -> list[list[int]]:
    """`assign_steps` for own rows and, behind them, imitated ones: a step's own rows are those that it has alone."""
    first, second = assign_steps(own, steps, rng), assign_steps(imitated, steps, rng)
    behind = [[len(own) + row for row in rows] for rows in second]
    none: list[int] = []
    return [[*rows, *more] for rows, more in itertools.zip_longest(first, behind, fillvalue=none)]


def assign_trees(rows: Sequence[IntArray], budget: int, ranks: int) -> Assignment:
    """As few and as even micro-batches as fit the budget of tokens, where shared tokens count once. A tree is cut only
    where it must be or where that makes the ranks' work more even. A longer row is alone."""
    order, shared = in_order(rows)
    sizes = np.array([len(rows[row]) for row in order], dtype=np.int64)
    ends = np.cumsum(sizes - shared)  # of each row in the line of all rows
    begins = _fewest(lambda bound: _cuts(sizes, shared, ends, bound), budget, ranks)
    costs = [int(ends[j - 1] - ends[i] + sizes[i]) for i, j in zip(begins, [*begins[1:], len(order)], strict=True)]
    return _to_ranks(np.split(np.array(order, dtype=np.int32), begins[1:]), costs, ranks)


def _fewest(begins_of: Callable[[int], list[int]], budget: int, ranks: int) -> list[int]:
    """The first row of each group, for the smallest bound that needs no more passes of all ranks than the budget."""
    best = begins_of(budget)
    count = -(-len(best) // ranks) * ranks
    low, high = 1, budget
    while low < high:
        middle = (low + high) // 2
        begins = begins_of(middle)
        if len(begins) <= count:
            best, high = begins, middle
        else:
            low = middle + 1
    return best


def _cuts(sizes: Sizes, shared: Sizes, ends: Sizes, bound: int) -> list[int]:
    """The first row of each group of neighbours whose line fits the bound (a longer row is alone). A group takes all
    rows that fit, or, from the half on, ends where the next row shares least with it."""
    begins, at = [], 0
    while at < len(sizes):
        begins.append(at)
        before = ends[at] - sizes[at]
        half, full = np.searchsorted(ends, [before + bound // 2, before + bound], side="right").tolist()
        half, full = max(half, at + 1), max(full, at + 1)
        if full >= len(sizes):
            break
        at = full - int(shared[half : full + 1][::-1].argmin())
    return begins


def _to_ranks(groups: Sequence[IntArray], costs: Sequence[int], ranks: int) -> Assignment:
    """Distribute groups over ranks, the costliest first, each to the rank with the least cost that still has room."""
    per_rank = -(-len(groups) // ranks)
    assignment: Assignment = [[] for _ in range(ranks)]
    load = [0] * ranks
    for index in sorted(range(len(groups)), key=lambda i: (-costs[i], i)):
        rank = min((r for r in range(ranks) if len(assignment[r]) < per_rank), key=lambda r: (load[r], r))
        assignment[rank].append(groups[index])
        load[rank] += costs[index]
    return [rank + [np.zeros(0, dtype=np.int32)] * (per_rank - len(rank)) for rank in assignment]
