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

What is known of states that are less learnable than a new one (retired, quarantined, lopsided) is kept, so that the same
prefix does not come back as new; but of each problem at most one such state for every other one that is kept.

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
BLANK = 2 / 3
"""Promise of a state of which nothing is known: 4 / (2 * 3)."""
STEP = 1e-4
"""By how much the worth of a state falls per more promising state of its problem."""
FREEDOM = 4.0
"""Least degrees of freedom to say anything of the critic: about five problems with right and wrong outcomes."""
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


def settled_worth(columns: Columns, promise: FloatArray) -> FloatArray:
    """Worth [S]: promise - i / 10^4 for the i-th most promising state of its problem, i = 0, 1, ...

    The i-th most tried settled state (tried, and less promising than a new one) has that of the i-th other state of its
    problem and half a step more: where they must go they go in turn. Without an i-th other state it is -1.
    """
    problem, settled = columns.problem, (columns.tried > 0) & (promise < BLANK)
    begins = np.ones(len(problem), np.bool_)
    begins[1:] = problem[1:] != problem[:-1]
    run = np.cumsum(begins) - 1
    start = np.flatnonzero(begins)[run]
    others = np.bincount(run, ~settled).astype(np.int64)[run]
    # one number to sort by, many times faster than three: of each problem first the others, then the settled
    score = np.where(settled, 1.5 - columns.tried / 2**18, (1.0 - promise.astype(np.float64)) / 2.0)
    order = np.argsort(2.0 * run + score, kind="stable")
    known = settled[order]
    place = np.arange(len(order)) - start - np.where(known, others, 0)
    worth = promise[order] - STEP * place
    paired = known & (place < others)
    worth[known] = -1.0
    worth[paired] = worth[(start + place)[paired]] + STEP / 2
    found = np.empty(len(order), np.float32)
    found[order] = worth
    return found


def thompson(keys: Keys, a: Reals, b: Reals, seed: int) -> Reals:
    """[S] learnability 4 p (1 - p) of one draw p ~ Beta(a, b) per state; the draw belongs to (seed, key)."""
    seeds = mix(keys, seed)
    draws = np.array([np.random.default_rng(int(s)).beta(x, y) for s, x, y in zip(seeds, a, b, strict=True)])
    return 4.0 * draws * (1.0 - draws)


def critic_gate(values: Reals, correct: npt.NDArray[np.bool_], groups: npt.NDArray[np.int64]) -> float:
    """How far to trust the critic, in {0, 1/4, 1/2, 3/4, 1}, from a window of outcomes [N] of replayed states.

    `groups` are problems: pairs are compared within a problem, since telling easy problems from hard ones is no help in
    choosing a state. 0 unless the within-group AUC is above 1/2 with 99 % confidence (Student's t over the groups, its
    quantile 2.33 + 4.9 / degrees of freedom) and the Brier score is below that of the base rate; then twice the AUC's
    excess over 1/2, rounded down to quarters.
    """
    area, error, freedom = within_auc(values, correct, groups)
    sure = freedom >= FREEDOM and area - (2.33 + 4.9 / freedom) * error > 0.5
    if not sure or brier(values, correct) >= base_brier(correct):
        return 0.0
    return float(np.floor(min(1.0, 2.0 * (area - 0.5)) * 4.0) / 4.0)


def within_auc(
    values: Reals, correct: npt.NDArray[np.bool_], groups: npt.NDArray[np.int64]
) -> tuple[float, float, float]:
    """AUC within groups, its standard error, and the degrees of freedom of that; all NaN without a mixed group.

    The AUC of a group is the share of its (correct, wrong) pairs that the values order rightly (ties count half: midranks).
    Over groups it is their mean with weights m = n+ n- / (n+ + n- + 1) (van Elteren), which is how much a group's says.
    Groups are independent, outcomes of one group are not (of one state there are several): the error is the groups' own
    scatter, sqrt(sum (m (AUC - mean))^2 k / (k - 1)) / sum m, with k = (sum m)^2 / sum m^2 for the number of groups.

    >>> within_auc(np.array([0.9, 0.1, 0.2]), np.array([True, False, True]), np.array([0, 0, 1]))[0]
    1.0
    """
    order = np.lexsort((values, groups))
    value, right, group = values[order], correct[order], np.unique(groups[order], return_inverse=True)[1]
    new = np.ones(len(order), np.bool_)
    new[1:] = (value[1:] != value[:-1]) | (group[1:] != group[:-1])
    first = np.flatnonzero(new)
    sizes = np.diff(np.append(first, len(order)))
    # midranks within each group, from 1
    ranks = np.repeat(first + (sizes + 1) / 2.0, sizes) - np.searchsorted(group, group)
    positives = np.bincount(group, right)
    negatives = np.bincount(group, ~right)
    mixed = (positives > 0) & (negatives > 0)
    if not mixed.any():
        return float("nan"), float("nan"), float("nan")
    good, bad = positives[mixed], negatives[mixed]
    areas = (np.bincount(group, ranks * right)[mixed] - good * (good + 1) / 2) / (good * bad)
    weight = good * bad / (good + bad + 1)
    area = float(np.average(areas, weights=weight))
    number = float(weight.sum() ** 2 / (weight**2).sum())
    if number <= 1.0:
        return area, float("nan"), 0.0
    scatter = float(((weight * (areas - area)) ** 2).sum()) * number / (number - 1.0)
    return area, float(np.sqrt(scatter)) / float(weight.sum()), number - 1.0


def brier(values: Reals, correct: npt.NDArray[np.bool_]) -> float:
    """Mean squared error of the values as probabilities."""
    return float(np.mean((np.clip(values, 0.0, 1.0) - correct) ** 2))


def base_brier(correct: npt.NDArray[np.bool_]) -> float:
    """Brier score of always saying the mean: m (1 - m)."""
    mean = float(np.mean(correct))
    return mean * (1.0 - mean)
