"""How well the critic tells what will succeed: explained variance, AUC and Brier score of V against outcomes. Pure numpy.

Called by `learner.prepare` on states of a batch and free for any caller with values and outcomes (V at boundaries).
Invariant: a number that the data do not define (one class only, nothing to compare) is NaN, never a made-up 0.5.
"""

import math

import numpy as np
import numpy.typing as npt

Reals = npt.NDArray[np.floating]
Flags = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.integer]


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
    the critic sees more than which problems are easy (groups: problem and depth).
    """
    if groups is None:
        groups = np.zeros(len(values), dtype=np.int64)
    won, pairs = 0.0, 0
    for group in np.unique(groups):
        good = np.sort(values[(groups == group) & outcomes])
        bad = np.sort(values[(groups == group) & ~outcomes])
        below = np.searchsorted(bad, good, side="left")
        upto = np.searchsorted(bad, good, side="right")
        won += float((below + upto).sum()) / 2
        pairs += len(good) * len(bad)
    return won / pairs if pairs else math.nan
