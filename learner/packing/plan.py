"""Cuts a batch into micro-batches under a token budget and deals them to ranks. Pure numpy.

Called by `learner.group`. Invariants: every row is in exactly one micro-batch; every rank gets the same number of
micro-batches (DeepSpeed's collectives need it), padded with empty ones; no micro-batch of more than one row exceeds the
budget, padding included. The cut never changes a loss (see `learner.losses`), only its cost.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from core.records import IntArray

Sizes = npt.NDArray[np.int64]

CPU_OVERHEAD = 32
GPU_OVERHEAD = 2048
"""What one more pass costs, in tokens: measured on 2 cores; on a GPU a pass below about this size leaves it idle."""


def plan(lengths: Sequence[int], budget: int, ranks: int, overhead: int = CPU_OVERHEAD) -> list[list[IntArray]]:
    """Rows of each micro-batch: [rank][micro-batch] -> row numbers, an empty array for a padding micro-batch.

    Args:
        lengths: tokens of each row.
        budget: tokens (padding included) of one micro-batch; a longer row gets a micro-batch of its own.
        ranks: number of ranks.
        overhead: cost of a further micro-batch in tokens, weighed against the padding that it saves.

    Of the cut with the least tokens and of those whose largest micro-batch is smallest, for every number of passes, it is the
    one whose busiest rank is done first.
    """
    sizes = np.asarray(lengths, dtype=np.int64)
    least = _dealt(_cut(sizes, budget, overhead), sizes, ranks)
    passes = -(-len(_filled(sizes, budget, 0)) // ranks)
    lowest = int(sizes.sum()) // ranks  # what the busiest rank reads at least
    while ranks > 1 and passes <= len(sizes) and lowest + passes * overhead < _cost(least, sizes, overhead):
        dealt = _dealt(_filled(sizes, budget, passes * ranks), sizes, ranks)
        least = min(least, dealt, key=lambda cut: _cost(cut, sizes, overhead))
        passes += 1
    return least


def plan_packed(lengths: Sequence[int], budget: int, ranks: int) -> list[list[IntArray]]:
    """As `plan`, for rows that lie one after the other without padding: as few and as even micro-batches as fit the budget."""
    sizes = np.asarray(lengths, dtype=np.int64)
    count = -(-int(sizes.sum()) // budget)
    while True:
        count = -(-count // ranks) * ranks
        groups = _spread(sizes, count)
        if all(len(group) < 2 or int(sizes[group].sum()) <= budget for group in groups):
            return _deal(groups, sizes, ranks)
        count += 1


def _spread(sizes: Sizes, count: int) -> list[list[int]]:
    """Rows to `count` groups, longest first, each to the one with the fewest tokens so far."""
    groups: list[list[int]] = [[] for _ in range(count)]
    load = np.zeros(count, dtype=np.int64)
    for row in np.argsort(-sizes, kind="stable").tolist():
        least = int(np.argmin(load))
        groups[least].append(row)
        load[least] += sizes[row]
    return groups


def _cut(sizes: Sizes, budget: int, overhead: int) -> list[list[int]]:
    """The cut of the rows, longest first, with the least cost: tokens read, padding included, plus overhead per group.

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
        # a later start is narrower and shorter, so every start from `low` on fits
        costs = best[low:i] + widths[low:i] * np.arange(i - low, 0, -1) + overhead
        begin[i] = low + int(np.argmin(costs))
        best[i] = costs[begin[i] - low]
    groups: list[list[int]] = []
    end = len(sizes)
    while end:
        groups.append(order[begin[end] : end].tolist())
        end = int(begin[end])
    return groups[::-1]


def _filled(sizes: Sizes, budget: int, count: int) -> list[list[int]]:
    """The rows, longest first, in at most `count` groups, the costliest of which costs as little as it can.

    Where the budget does not allow so few, as few as it allows.
    """
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
    """Where the groups begin, if rows of falling width fill as few as fit the bound (a wider row has its own)."""
    begins, at = [], 0
    while at < len(widths):
        begins.append(at)
        at += max(1, bound // widths[at])
    return begins


def _cost(cut: list[list[IntArray]], sizes: Sizes, overhead: int) -> int:
    """What the busiest rank needs, in tokens: those that it reads, and the overhead of its passes."""
    read = [sum(int(sizes[group].max()) * len(group) for group in groups if len(group)) for groups in cut]
    return max(read) + overhead * len(cut[0])


def _dealt(groups: list[list[int]], sizes: Sizes, ranks: int) -> list[list[IntArray]]:
    """Groups to ranks, made as many for each."""
    return _deal(_even(groups, sizes, ranks), sizes, ranks)


def _even(groups: list[list[int]], sizes: Sizes, ranks: int) -> list[list[int]]:
    """Split the costliest groups until their number is a multiple of `ranks`; then fill up with empty ones."""
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


def _deal(groups: list[list[int]], sizes: Sizes, ranks: int) -> list[list[IntArray]]:
    """Costliest first, to the rank with the least so far that still has room."""
    per_rank = len(groups) // ranks
    dealt: list[list[IntArray]] = [[] for _ in range(ranks)]
    load = [0] * ranks
    cost = {index: int(sizes[group].max()) * len(group) if group else 0 for index, group in enumerate(groups)}
    for index in sorted(cost, key=lambda i: (-cost[i], i)):
        rank = min((r for r in range(ranks) if len(dealt[r]) < per_rank), key=lambda r: (load[r], r))
        dealt[rank].append(np.asarray(groups[index], dtype=np.int32))
        load[rank] += cost[index]
    return dealt
