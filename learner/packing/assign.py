"""Assigns rows to micro-batches under a token budget, and micro-batches to ranks. Pure numpy.

Called by `learner.group` and `learner.packing.examples`. Invariants: every row is in exactly one micro-batch; every rank gets
the same number of micro-batches, some of them empty (DeepSpeed's collectives need it); no micro-batch of more than one row
exceeds the budget, padding included. The assignment never changes a loss (see `learner.losses`), only its cost.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from core.records import IntArray

Assignment = list[list[IntArray]]
"""[rank][micro-batch] -> row numbers; an empty array for an empty micro-batch."""
Sizes = npt.NDArray[np.int64]

CPU_OVERHEAD = 32
GPU_OVERHEAD = 2048
"""Cost of one more pass, in tokens. CPU: measured on 2 cores. GPU: a pass of fewer tokens does not fill the GPU."""


def assign_padded(lengths: Sequence[int], budget: int, ranks: int, overhead: int = CPU_OVERHEAD) -> Assignment:
    """Rows of each micro-batch where rows are padded to the longest of their micro-batch.

    Candidates are the grouping with the least tokens and, for every number of passes, the grouping whose largest micro-batch
    is smallest. Returns the candidate whose busiest rank finishes first.

    Args:
        lengths: tokens of each row.
        budget: tokens (padding included) of one micro-batch; a longer row is alone in its micro-batch.
        ranks: number of ranks.
        overhead: cost of a further micro-batch in tokens, weighed against the padding that it saves.
    """
    sizes = np.asarray(lengths, dtype=np.int64)
    best = _to_ranks(_even(_cheapest(sizes, budget, overhead), sizes, ranks), sizes, ranks)
    passes = -(-len(_smallest(sizes, budget, 0)) // ranks)
    lowest = int(sizes.sum()) // ranks  # least number of tokens that the busiest rank reads
    while ranks > 1 and passes <= len(sizes) and lowest + passes * overhead < _cost(best, sizes, overhead):
        groups = _smallest(sizes, budget, passes * ranks)
        candidate = _to_ranks(_even(groups, sizes, ranks), sizes, ranks)
        best = min(best, candidate, key=lambda assignment: _cost(assignment, sizes, overhead))
        passes += 1
    return best


def assign_packed(lengths: Sequence[int], budget: int, ranks: int) -> Assignment:
    """As `assign_padded`, for rows packed into one line: as few and as even micro-batches as fit the budget."""
    sizes = np.asarray(lengths, dtype=np.int64)
    count = -(-int(sizes.sum()) // budget)
    while True:
        count = -(-count // ranks) * ranks
        groups = _spread(sizes, count)
        if all(len(group) < 2 or int(sizes[group].sum()) <= budget for group in groups):
            return _to_ranks(groups, sizes, ranks)
        count += 1


def _spread(sizes: Sizes, count: int) -> list[list[int]]:
    """Distribute rows over `count` groups, longest first, each to the group with the fewest tokens so far."""
    groups: list[list[int]] = [[] for _ in range(count)]
    load = np.zeros(count, dtype=np.int64)
    for row in np.argsort(-sizes, kind="stable").tolist():
        least = int(np.argmin(load))
        groups[least].append(row)
        load[least] += sizes[row]
    return groups


def _cheapest(sizes: Sizes, budget: int, overhead: int) -> list[list[int]]:
    """The grouping of the rows, longest first, with the least cost: tokens read, padding included, plus overhead per group.

    Exact by dynamic programming over the sorted rows: best[i] = min_j best[j] + width_j (i - j) + overhead, where the group
    of rows j..i-1 is as wide as its first row and fits the budget.
    """
    order = np.argsort(-sizes, kind="stable")
    widths = sizes[order]
    best = np.zeros(len(sizes) + 1, dtype=np.int64)
    begin = np.zeros(len(sizes) + 1, dtype=np.int64)
    low = 0
    for i in range(1, len(sizes) + 1):
        while low < i - 1 and widths[low] * (i - low) > budget:
            low += 1
        # a group that begins later is narrower and shorter, so every beginning from `low` on fits
        costs = best[low:i] + widths[low:i] * np.arange(i - low, 0, -1) + overhead
        begin[i] = low + int(np.argmin(costs))
        best[i] = costs[begin[i] - low]
    groups: list[list[int]] = []
    end = len(sizes)
    while end:
        groups.append(order[begin[end] : end].tolist())
        end = int(begin[end])
    return groups[::-1]


def _smallest(sizes: Sizes, budget: int, count: int) -> list[list[int]]:
    """The rows, longest first, in at most `count` groups whose largest is as small as possible (more if the budget asks for it)."""
    order = np.argsort(-sizes, kind="stable")
    widths = sizes[order].tolist()
    low, high = 1, budget
    while low < high:
        middle = (low + high) // 2
        if len(_begins(widths, middle)) <= count:
            high = middle
        else:
            low = middle + 1
    begins = _begins(widths, high)
    return [order[i:j].tolist() for i, j in zip(begins, [*begins[1:], len(widths)], strict=True)]


def _begins(widths: list[int], bound: int) -> list[int]:
    """First row of each group, for as few groups as fit the bound and rows of falling width (a wider row is alone)."""
    begins, at = [], 0
    while at < len(widths):
        begins.append(at)
        at += max(1, bound // widths[at])
    return begins


def _cost(assignment: Assignment, sizes: Sizes, overhead: int) -> int:
    """Cost of the busiest rank: the tokens that it reads, and the overhead of its passes."""
    read = [sum(int(sizes[group].max()) * len(group) for group in groups if len(group)) for groups in assignment]
    return max(read) + overhead * len(assignment[0])


def _even(groups: list[list[int]], sizes: Sizes, ranks: int) -> list[list[int]]:
    """Split the costliest groups until their number is a multiple of `ranks`; if no more can be split, add empty ones."""
    groups = list(groups)
    while len(groups) % ranks:
        cost = [int(sizes[group].max()) * len(group) if len(group) > 1 else -1 for group in groups]
        worst = int(np.argmax(cost))
        if cost[worst] < 0:
            groups += [[] for _ in range(-len(groups) % ranks)]
            break
        rows = groups[worst]
        half = (len(rows) + 1) // 2
        groups[worst : worst + 1] = [rows[:half], rows[half:]]
    return groups


def _to_ranks(groups: list[list[int]], sizes: Sizes, ranks: int) -> Assignment:
    """Distribute groups over ranks, the costliest first, each to the rank with the least cost that still has room."""
    per_rank = len(groups) // ranks
    assignment: Assignment = [[] for _ in range(ranks)]
    load = [0] * ranks
    cost = {index: int(sizes[group].max()) * len(group) if group else 0 for index, group in enumerate(groups)}
    for index in sorted(cost, key=lambda i: (-cost[i], i)):
        rank = min((r for r in range(ranks) if len(assignment[r]) < per_rank), key=lambda r: (load[r], r))
        assignment[rank].append(np.asarray(groups[index], dtype=np.int32))
        load[rank] += cost[index]
    return assignment
