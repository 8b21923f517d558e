"""The ranking `posterior`: a decayed Beta belief about each state's success, and Thompson draws from it.

Called by the shard through `replay/ranking.py`. Invariant: everything is computed from a state's own columns.

Formula. With decayed outcomes w, l and the critic's gate g (0 until it beats the base rate):

    a = 1 + w + 2 g V,   b = 1 + l + 2 g (1 - V)          V clipped to [0, 1]
    mean m = a / (a + b),  sd s = sqrt(m (1 - m) / (a + b + 1))
    promise = E[4 p (1 - p)] = 4 a b / ((a + b) (a + b + 1))        most learnable: success near 1/2
    retired      m - 2 s > 0.9          promise -inf: mastered
    quarantined  m + 2 s < eps          promise -1: at temperature 0.2 drawn about e^-6 to e^-10 times as often as others, but
                                        not never, because the policy grows

Old outcomes fade by `decay` d per weight version, so a state that loses once per version never has more than 1 / (1 - d) losses
(20 at d = 0.95), and a fixed small eps would be out of its reach. eps is the bound of a state that has lost once per version for
n = 1 / (1 - d) versions: at d = 0.95 it has (1 - 0.95^20) / 0.05 = 12.83 losses, m = 1 / 14.83 = 0.0674, s = sqrt(0.0674 *
0.9326 / 15.83) = 0.0630 and eps = 0.1935. Without decay eps is 0.05 (58 losses), its least; with faster decay it is 0.2, its
most: what is forgotten within a few versions proves nobody dead. So at 0.95 a state that is tried once a
version goes after 21 losses on end, one with 4 continuations a version after 16; as its losses fade with what else is written
of its problem, it comes back and is tried again. One that is tried less than every seventh version (4 continuations) stays:
what is known of it is too old. In the same way it takes 28 undecayed wins to retire, which one win per version never are.

A batch of n is drawn in two steps: 4 n states ~ exp(promise / temperature), then of these the n whose Thompson draw
p ~ Beta(a, b) has the largest 4 p (1 - p). The draw's noise belongs to (seed, state), so it does not depend on placement.
"""

from functools import cache

import numpy as np
import numpy.typing as npt

from core.records import FloatArray
from replay.columns import Columns, RankSettings
from replay.keys import Keys, mix

Reals = npt.NDArray[np.float64]

RETIRED_ABOVE = 0.9
LEAST_EPS, MOST_EPS = 0.05, 0.2
PRIOR = 2.0
"""Pseudo-outcomes that a fully trusted critic stands for."""
SHORTLIST = 4
"""States drawn per state wanted, from which the Thompson draw chooses."""


def belief(wins: FloatArray, losses: FloatArray, value: FloatArray, gate: float) -> tuple[Reals, Reals]:
    """Parameters (a, b) of the Beta posteriors, [S] each."""
    if gate == 0.0:
        return 1.0 + wins.astype(np.float64), 1.0 + losses.astype(np.float64)
    expected = np.clip(value.astype(np.float64), 0.0, 1.0)
    return 1.0 + wins + PRIOR * gate * expected, 1.0 + losses + PRIOR * gate * (1.0 - expected)


def posterior(columns: Columns, settings: RankSettings) -> FloatArray:
    """Promise [S]; see the module."""
    a, b = belief(columns.wins, columns.losses, columns.value, settings.gate)
    mean, variance = moments(a, b)
    promise = (4.0 * variance * (a + b)).astype(np.float32)  # as s^2 = a b / ((a + b)^2 (a + b + 1))
    spread = 2.0 * np.sqrt(variance)
    promise[mean + spread < quarantined_below(settings.decay)] = -1.0
    promise[mean - spread > RETIRED_ABOVE] = -np.inf
    return promise


def moments(a: Reals, b: Reals) -> tuple[Reals, Reals]:
    """Mean and variance of Beta(a, b), [S] each."""
    total = a + b
    mean = a / total
    return mean, mean * (1.0 - mean) / (total + 1.0)


def bounds(a: Reals, b: Reals) -> tuple[Reals, Reals]:
    """Mean less and plus two standard deviations of Beta(a, b), [S] each."""
    mean, variance = moments(a, b)
    return mean - 2.0 * np.sqrt(variance), mean + 2.0 * np.sqrt(variance)


@cache
def quarantined_below(decay: float) -> float:
    """eps: the upper bound of a state that has lost once per version for 1 / (1 - decay) versions, from 0.05 to 0.2.

    >>> round(quarantined_below(0.95), 4), quarantined_below(1.0)
    (0.1935, 0.05)
    """
    if decay == 1.0:
        return LEAST_EPS
    losses = (1.0 - decay ** (1.0 / (1.0 - decay))) / (1.0 - decay)
    bound = float(bounds(np.ones(1), np.array([1.0 + losses]))[1][0])
    return min(max(bound, LEAST_EPS), MOST_EPS)


def thompson(keys: Keys, a: Reals, b: Reals, seed: int) -> Reals:
    """[S] learnability 4 p (1 - p) of one draw p ~ Beta(a, b) per state; the draw belongs to (seed, key)."""
    seeds = mix(keys, seed)
    draws = np.array([np.random.default_rng(int(s)).beta(x, y) for s, x, y in zip(seeds, a, b, strict=True)])
    return 4.0 * draws * (1.0 - draws)


def critic_gate(values: Reals, correct: npt.NDArray[np.bool_], groups: npt.NDArray[np.int64]) -> float:
    """How far to trust the critic, in {0, 1/4, 1/2, 3/4, 1}, from a window of outcomes [N] of replayed states.

    `groups` are problems: pairs are compared within a problem, since telling easy problems from hard ones is no help in
    choosing a state. 0 unless the within-group AUC is above 1/2 (by two standard errors) and the Brier score is below
    that of the base rate; then twice the AUC's excess over 1/2, rounded down to quarters.
    """
    area, error = within_auc(values, correct, groups)
    if not np.isfinite(area) or area - 2.0 * error <= 0.5 or brier(values, correct) >= base_brier(correct):
        return 0.0
    return float(np.floor(min(1.0, 2.0 * (area - 0.5)) * 4.0) / 4.0)


def within_auc(values: Reals, correct: npt.NDArray[np.bool_], groups: npt.NDArray[np.int64]) -> tuple[float, float]:
    """Share of (correct, wrong) pairs of one group that the values order rightly (ties count half), and its error.

    NaN without any pair. The standard error is sqrt(1 / (12 * min(positives, negatives in mixed groups))).

    >>> within_auc(np.array([0.9, 0.1, 0.2]), np.array([True, False, True]), np.array([0, 0, 1]))[0]
    1.0
    """
    right, pairs, positives, negatives = 0.0, 0, 0, 0
    for group in np.unique(groups):
        mine = groups == group
        good, bad = values[mine & correct], values[mine & ~correct]
        if len(good) and len(bad):
            difference = good[:, None] - bad[None, :]
            right += float((difference > 0).sum() + 0.5 * (difference == 0).sum())
            pairs += difference.size
            positives, negatives = positives + len(good), negatives + len(bad)
    if not pairs:
        return float("nan"), float("nan")
    return right / pairs, float(np.sqrt(1.0 / (12.0 * min(positives, negatives))))


def brier(values: Reals, correct: npt.NDArray[np.bool_]) -> float:
    """Mean squared error of the values as probabilities."""
    return float(np.mean((np.clip(values, 0.0, 1.0) - correct) ** 2))


def base_brier(correct: npt.NDArray[np.bool_]) -> float:
    """Brier score of always saying the mean: m (1 - m)."""
    mean = float(np.mean(correct))
    return mean * (1.0 - mean)
