"""How well the critic tells what will succeed: explained variance, AUC and Brier score of V against outcomes. Pure numpy.

Called by `learner.prepare` on the states of a batch (V at boundaries).
Invariant: a number that the data do not define (one class only, nothing to compare) is NaN, never a made-up 0.5.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from core.records import IntArray

Reals = npt.NDArray[np.floating]
Flags = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.integer]
Boundaries = Callable[[IntArray], IntArray]
"""The boundaries of a response: increasing lengths, each strictly inside it."""


def explained_variance(values: Reals, returns: Reals) -> float:
    """1 - Var(R - V) / Var(R): 1 is a perfect critic, below 0 worse than a constant; 0 if the returns do not vary or are NaN."""
    if not varies(returns):
        return 0.0
    spread = float(np.var(returns.astype(np.float64)))
    return 1.0 - float(np.var(returns.astype(np.float64) - values.astype(np.float64))) / spread


def varies(returns: Reals) -> bool:
    """Whether there is anything in the returns for a critic to explain; not if one is NaN."""
    return float(np.var(returns.astype(np.float64))) > 1e-12


def brier(values: Reals, outcomes: Flags) -> float:
    """Mean squared difference of V, read as a probability and clipped to [0, 1], and the outcome; 0 is perfect."""
    if not len(values):
        return math.nan
    return float(np.mean((np.clip(values.astype(np.float64), 0.0, 1.0) - outcomes) ** 2))


def auc(values: Reals, outcomes: Flags, groups: Numbers | None = None) -> float:
    """Chance that a state that succeeds has a higher value than one that fails (ties count 1/2).

    With `groups` only states of the same group are compared, and all such pairs weigh the same: this is what tells whether
    the critic sees more than which problems are easy (groups: start and depth).
    """
    if groups is None:
        groups = np.zeros(len(values), dtype=np.int64)
    order = np.lexsort((values, groups))
    values, good, groups = values[order], outcomes[order], groups[order]
    bad_before = np.concatenate([[0], np.cumsum(~good)])  # [n + 1] of all states sorted before
    fresh_group = np.diff(groups, prepend=np.nan) != 0
    fresh_value = fresh_group | (np.diff(values, prepend=np.nan) != 0)
    group, tie = (
        np.cumsum(fresh_group) - 1,
        np.cumsum(fresh_value) - 1,
    )  # [n] number of each state's group, and of its tie
    group_ends = np.append(np.flatnonzero(fresh_group), len(values))
    tie_ends = np.append(np.flatnonzero(fresh_value), len(values))
    first, last = bad_before[group_ends[group]], bad_before[group_ends[group + 1]]
    below, upto = bad_before[tie_ends[tie]] - first, bad_before[tie_ends[tie + 1]] - first
    pairs = int((last - first)[good].sum())
    return float((below + upto)[good].sum()) / 2 / pairs if pairs else math.nan


def every_token(response: IntArray) -> IntArray:
    """Boundaries of a response that has one after every token."""
    return np.arange(1, len(response), dtype=np.int32)


def inner_places(response: IntArray, prefix: int, cut: Boundaries) -> IntArray:
    """Boundaries inside the continuation of a response, counted from its first token; `prefix`: tokens before it."""
    lengths = cut(response)
    return lengths[lengths > prefix] - prefix


def beside(starts: Sequence[str], counts: Sequence[int], places: Sequence[IntArray]) -> tuple[list[IntArray], Numbers]:
    """Where the continuations of one start can be compared: states at the same distance from the start.

    Steps seldom end at the same token, so each continuation is read wherever it or one of its siblings has a boundary.

    Args:
        starts: id of each continuation's start.
        counts: tokens of each continuation.
        places: its boundaries.

    Returns:
        For each continuation the tokens before which its value is read, and the group of all these states, flat: start and place.
    """
    shared: dict[str, list[IntArray]] = {}
    for start, own in zip(starts, places, strict=True):
        shared.setdefault(start, []).append(own)
    numbers = {start: number for number, start in enumerate(shared)}
    union = {start: np.unique(np.concatenate(all_of)) for start, all_of in shared.items()}
    read = [union[start][union[start] < count] for start, count in zip(starts, counts, strict=True)]
    span = max(counts, default=0) + 1
    groups = [numbers[start] * span + at.astype(np.int64) for start, at in zip(starts, read, strict=True)]
    return read, np.concatenate([np.zeros(0, np.int64), *groups])
