"""How well numbers separate right from wrong outcomes: AUC, within-group AUC and Brier score. Pure numpy.

Called by `learner.calibration` (metrics of the critic).
Invariant: a number that the data do not define (one class only, nothing to compare) is NaN, not 0.5.
"""

import math

import numpy as np
import numpy.typing as npt

Reals = npt.NDArray[np.floating]
Doubles = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.integer]


def auc(values: Reals, correct: Flags, groups: Numbers | None = None) -> float:
    """Chance that a correct item has a higher value than a wrong one [N] (ties count half); NaN without such a pair.

    With `groups` only items of the same group are compared, and every such pair counts the same.

    >>> auc(np.array([0.9, 0.5, 0.5, 0.1]), np.array([True, True, False, False]))
    0.875
    """
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
    # midranks within each group, from 1
    ranks = np.repeat(first + (sizes + 1) / 2.0, sizes) - np.searchsorted(group, group)
    positives, negatives = (np.bincount(group, side).astype(np.float64) for side in (right, ~right))
    mixed = (positives > 0) & (negatives > 0)
    good, bad = positives[mixed], negatives[mixed]
    return np.bincount(group, ranks * right)[mixed] - good * (good + 1) / 2, good, bad


def brier(values: Reals, correct: Flags) -> float:
    """Mean squared error of the values [N] as probabilities, clipped to [0, 1]; 0 is perfect. NaN if N = 0."""
    if not len(values):
        return math.nan
    return float(np.mean((np.clip(values.astype(np.float64), 0.0, 1.0) - correct) ** 2))
