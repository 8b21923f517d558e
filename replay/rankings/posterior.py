"""The ranking `posterior`: a decayed Beta belief about each state's success, and Thompson draws from it.

Invariant: everything is computed from a state's own columns.

Formula. With decayed outcomes w, l and the critic's gate g (0 until it beats the base rate):

    a = 1 + w + 2 g V,   b = 1 + l + 2 g (1 - V)          V clipped to [0, 1]
    mean m = a / (a + b),  sd s = sqrt(m (1 - m) / (a + b + 1))
    priority = E[4 p (1 - p)] = 4 a b / ((a + b) (a + b + 1))        most learnable: success near 1/2
    retired      m - 2 s > 0.9          priority -inf: mastered
    quarantined  m + 2 s < eps          priority -1: at temperature 0.2 drawn about e^-6 to e^-10 times as often as others, but
                                        not never, because the policy grows

Outcomes fade by `decay` d per weight version, so a state that loses once per version never has more than 1 / (1 - d) losses (20
at d = 0.95). A fixed small eps would be out of its reach. So eps is the upper bound of a state that has lost once per version for
n = 1 / (1 - d) versions. At d = 0.95 it has (1 - 0.95^20) / 0.05 = 12.83 losses, m = 1 / 14.83 = 0.0674, s = sqrt(0.0674 *
0.9326 / 15.83) = 0.0630 and eps = 0.1935. Without decay eps is 0.05 (58 losses), its least. With faster decay it is 0.2, its most:
outcomes that are forgotten within a few versions prove little. So at 0.95 a state that is tried once a version is quarantined after
21 losses in a row, and one with 4 continuations a version after 16. Its losses fade with every write to its problem, so it is tried
again later. A state that is tried less often than every seventh version is never quarantined: its evidence is too old. In the same
way it takes 28 undecayed wins to retire, which one win per version never reaches.

The evidence on states that are less learnable than a new one (retired, quarantined, lopsided) is kept, so that the same prefix
does not come back as new. Each problem keeps at most one such state for every other state that it keeps.

A batch of n is drawn in two steps: 4 n states ~ exp(priority / temperature), then of these the n whose Thompson draw
p ~ Beta(a, b) has the largest 4 p (1 - p). The draw's noise belongs to (seed, state), so it does not depend on placement.
"""

from functools import cache

import numpy as np

from core.records import FloatArray
from core.seeds import derive
from replay.keys import Keys, Reals, mix
from replay.rankings.base import Index, Ranking, RankSettings, StateColumns

RETIRED_ABOVE = 0.9
LEAST_EPS, MOST_EPS = 0.05, 0.2
PRIOR = 2.0
"""Pseudo-outcomes that a fully trusted critic stands for."""
BLANK = 2 / 3
"""Priority of a state without outcomes: 4 / (2 * 3)."""
STEP = 1e-4
"""By how much the retention of a state falls per state of higher priority in its problem."""
SHORTLIST = 4
"""States drawn per state wanted, from which the Thompson draw chooses."""


def belief(wins: FloatArray, losses: FloatArray, value: FloatArray, gate: float) -> tuple[Reals, Reals]:
    """Parameters (a, b) of the Beta posteriors, [S] each."""
    if gate == 0.0:
        return 1.0 + wins.astype(np.float64), 1.0 + losses.astype(np.float64)
    expected = np.clip(value.astype(np.float64), 0.0, 1.0)
    return 1.0 + wins + PRIOR * gate * expected, 1.0 + losses + PRIOR * gate * (1.0 - expected)


def posterior(columns: StateColumns, settings: RankSettings) -> FloatArray:
    """Priority [S]; see the module."""
    a, b = belief(columns.wins, columns.losses, columns.value, settings.gate)
    mean, variance = moments(a, b)
    priority = (4.0 * variance * (a + b)).astype(np.float32)  # as s^2 = a b / ((a + b)^2 (a + b + 1))
    spread = 2.0 * np.sqrt(variance)
    priority[mean + spread < quarantined_below(settings.decay)] = -1.0
    priority[mean - spread > RETIRED_ABOVE] = -np.inf
    return priority


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


def settled_retention(columns: StateColumns, priority: FloatArray) -> FloatArray:
    """Retention [S]: priority - i / 10^4 for the state of the i-th highest priority in its problem, i = 0, 1, ...

    The i-th most tried settled state (tried, and of lower priority than a new one) has that of the i-th other state of its
    problem and half a step more, so the two kinds are evicted in turn. Without an i-th other state it is -1.
    """
    problem, settled = columns.problem, (columns.tried > 0) & (priority < BLANK)
    begins = np.ones(len(problem), np.bool_)
    begins[1:] = problem[1:] != problem[:-1]
    run = np.cumsum(begins) - 1
    start = np.flatnonzero(begins)[run]
    others = np.bincount(run, ~settled).astype(np.int64)[run]
    # one number to sort by is much faster than three: in each problem first the others, then the settled
    score = np.where(settled, 1.5 - columns.tried / 2**18, (1.0 - priority.astype(np.float64)) / 2.0)
    order = np.argsort(2.0 * run + score, kind="stable")
    known = settled[order]
    place = np.arange(len(order)) - start - np.where(known, others, 0)
    retention = priority[order] - STEP * place
    paired = known & (place < others)
    retention[known] = -1.0
    retention[paired] = retention[(start + place)[paired]] + STEP / 2
    found = np.empty(len(order), np.float32)
    found[order] = retention
    return found


def thompson(keys: Keys, a: Reals, b: Reals, seed: int) -> Reals:
    """[S] learnability 4 p (1 - p) of one draw p ~ Beta(a, b) per state; the draw belongs to (seed, key)."""
    seeds = mix(keys, seed)
    draws = np.array([np.random.default_rng(int(s)).beta(x, y) for s, x, y in zip(seeds, a, b, strict=True)])
    return 4.0 * draws * (1.0 - draws)


def best_draws(keys: Keys, wins: FloatArray, losses: FloatArray, values: FloatArray, gate: float, seed: int) -> Index:
    """Order [m] of a shortlist by Thompson draws from the states' posteriors, most learnable first."""
    scores = thompson(keys, *belief(wins, losses, values, gate), derive(seed, "thompson"))
    order: Index = np.lexsort((keys, scores))[::-1]
    return order


RANKING = Ranking(
    posterior, settled_retention, needs_values=True, uses_gate=True, shortlist=SHORTLIST, choose=best_draws
)
