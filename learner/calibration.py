"""How well the critic predicts success: explained variance, AUC and Brier score of V against outcomes. Pure numpy.
Invariant: an AUC or Brier score that the data do not define (one class only, nothing to compare) is NaN, not 0.5."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from core.records import Boundaries, Flags, FloatArray, IntArray, Rollout

Reals = npt.NDArray[np.floating]
Doubles = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.integer]


def explained_variance(values: Reals, returns: Reals) -> float:
    """1 - Var(R - V) / Var(R): 1 is perfect, below 0 worse than a constant; 0 if returns do not vary or are NaN."""
    if not varies(returns):
        return 0.0
    spread = float(np.var(returns.astype(np.float64)))
    return 1.0 - float(np.var(returns.astype(np.float64) - values.astype(np.float64))) / spread


def varies(returns: Reals) -> bool:
    """Whether the returns leave a critic anything to explain; False if one is NaN."""
    return float(np.var(returns.astype(np.float64))) > 1e-12


def critic_calibration(scored: Sequence[Rollout], boundaries: Boundaries) -> tuple[float, float, float]:
    """(AUC, AUC within start and depth, Brier score) of V against outcomes, at the starts and the boundaries."""
    correct = np.array([s.verdict.correct for s in scored])
    depths = [one.states(boundaries) - one.start.prefix_ids.size for one in scored]  # of boundaries

    def _states(read: Sequence[IntArray]) -> tuple[FloatArray, Flags]:
        values = np.concatenate([s.values[at] for s, at in zip(scored, read, strict=True)])
        return values, np.repeat(correct, [at.size for at in read])

    values, succeed = _states([np.append(0, own) for own in depths])
    starts, generated = [one.start.id for one in scored], [one.generated for one in scored]
    read, groups = comparable_states(starts, generated, depths)
    return auc(values, succeed), auc(*_states(read), groups), brier(values, succeed)


def comparable_states(
    starts: Sequence[str], generated: Sequence[Flags], depths: Sequence[IntArray]
) -> tuple[list[IntArray], Numbers]:
    """Groups of states of the same start and depth: a critic that knows only problem and depth cannot rank within one.

    Steps seldom end at the same token, so a continuation is read wherever any continuation of its start has a boundary.
    Per continuation: `starts` has its start's id, `generated` [C] the policy's tokens (states begin only before these),
    `depths` its boundaries from the start. Returns the depths at which each is read and, flat, the groups.
    """
    shared: dict[str, list[IntArray]] = {}
    for start, own in zip(starts, depths, strict=True):
        shared.setdefault(start, []).append(own)
    numbers = {start: number for number, start in enumerate(shared)}
    union = {start: np.unique(np.concatenate(all_of)) for start, all_of in shared.items()}
    inside = [union[start][union[start] < len(own)] for start, own in zip(starts, generated, strict=True)]
    read = [at[own[at]] for at, own in zip(inside, generated, strict=True)]
    span = max(map(len, generated), default=0) + 1
    groups = [numbers[start] * span + at.astype(np.int64) for start, at in zip(starts, read, strict=True)]
    return read, np.concatenate([np.zeros(0, np.int64), *groups])


def auc(values: Reals, correct: Flags, groups: Numbers | None = None) -> float:
    """Chance that a correct item has a higher value than a wrong one [N] of its group (ties: half); NaN of none."""
    groups = np.zeros(len(values), np.int64) if groups is None else groups
    wins, positives, negatives = _mixed_groups(values, correct, groups)
    return float(wins.sum() / (positives * negatives).sum()) if len(wins) else math.nan


def _mixed_groups(values: Reals, correct: Flags, groups: Numbers) -> tuple[Doubles, Doubles, Doubles]:
    """For every group with both outcomes: the number of rightly ordered pairs, of correct items, and of wrong items."""
    order = np.lexsort((values, groups))
    value, right, group = values[order], correct[order], np.unique(groups[order], return_inverse=True)[1]
    new = np.ones(len(order), np.bool_)
    new[1:] = (value[1:] != value[:-1]) | (group[1:] != group[:-1])
    first = np.flatnonzero(new)
    sizes = np.diff(np.append(first, len(order)))
    ranks = np.repeat(first + (sizes + 1) / 2.0, sizes) - np.searchsorted(group, group)  # mid, in each group, from 1
    positives, negatives = (np.bincount(group, side).astype(np.float64) for side in (right, ~right))
    mixed = (positives > 0) & (negatives > 0)
    good, bad = positives[mixed], negatives[mixed]
    return np.bincount(group, ranks * right)[mixed] - good * (good + 1) / 2, good, bad


def brier(values: Reals, correct: Flags) -> float:
    """Mean squared error of the values [N] as probabilities, clipped to [0, 1]; 0 is perfect. NaN if N = 0."""
    if not len(values):
        return math.nan
    return float(np.mean((np.clip(values.astype(np.float64), 0.0, 1.0) - correct) ** 2))
