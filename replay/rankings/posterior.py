"""The ranking `posterior`: a decayed Beta posterior of each state's success, and Thompson draws from it.

Invariant: the priority of a state depends only on its own columns.

It knows outcomes only, neither the critic nor other problems: the control for the success model, which `learnability` uses.

Formula. With decayed outcomes w, l:

    a = 1 + w,   b = 1 + l
    mean m = a / (a + b),  sd s = sqrt(m (1 - m) / (a + b + 1))
    priority = E[4 p (1 - p)] = 4 a b / ((a + b) (a + b + 1))        most learnable: success near 1/2
    retired      m - 2 s > 0.9          priority -inf: mastered
    quarantined  m + 2 s < eps          priority -1: at temperature 0.2 drawn e^-6 to e^-10 times as often as others; not
                                        excluded, because the policy improves

Outcomes decay by `decay` d per visit of their problem, so a state that loses once per visit never has more than 1 / (1 - d) losses
(20 at d = 0.95) and would never reach a fixed small eps. So eps is the upper bound m + 2 s of a state that has lost once per visit for
n = 1 / (1 - d) visits, but between 0.05 (without decay) and 0.2. At d = 0.95 it has (1 - 0.95^20) / 0.05 = 12.83 losses,
m = 1 / 14.83 = 0.0674, s = sqrt(0.0674 * 0.9326 / 15.83) = 0.0630 and eps = 0.1935: it is quarantined after 21 losses in a row, and
with 4 continuations per visit after 16. The losses decay with every visit of its problem, so it is tried again later. It takes 28
undecayed wins to retire.

Settled states are those that are less learnable than a new one (retired, quarantined, lopsided). Their evidence is kept, so that
the same prefix does not come back as new. Each problem keeps at most one settled state for every other state that it keeps.

A batch of n is drawn in two steps. First 4 n states are drawn ~ exp(priority / temperature). Of these, the n are taken whose Thompson
draw p ~ Beta(a, b) has the largest 4 p (1 - p). The noise is a function of (seed, state), so it does not depend on placement.
"""

from functools import cache

import numpy as np

from core.records import FloatArray
from core.seeds import derive
from replay.keys import Keys, Reals, mix
from replay.rankings.base import Index, Ranking, RankSettings, StateColumns

RETIRED_ABOVE = 0.9
"""Success above which 4 p (1 - p) is under 0.36: a third of what a start at 1/2 teaches."""
LEAST_EPS, MOST_EPS = 0.05, 0.2
"""Bounds of `quarantined_below`: a state is given up at 5 %, as elsewhere (`HOPELESS`), and never while one in five may succeed."""
BLANK = 2 / 3
"""Priority of a state without outcomes: 4 / (2 * 3)."""
STEP = 1e-4
"""Decrease of a state's retention per state of higher priority in its problem."""
SHORTLIST = 4
"""States drawn per requested state; the Thompson draw chooses from them."""


def posterior(columns: StateColumns, settings: RankSettings) -> FloatArray:
    """Priority [S] by the formula of this module."""
    a, b = belief(columns.wins, columns.losses)
    low, high = bounds(a, b)
    priority = (4.0 * moments(a, b)[1] * (a + b)).astype(np.float32)  # as s^2 = a b / ((a + b)^2 (a + b + 1))
    priority[high < quarantined_below(settings.decay)] = -1.0
    priority[low > RETIRED_ABOVE] = -np.inf
    return priority


def belief(wins: FloatArray, losses: FloatArray) -> tuple[Reals, Reals]:
    """Parameters (a, b) of the Beta posteriors, [S] each."""
    return 1.0 + wins.astype(np.float64), 1.0 + losses.astype(np.float64)


def moments(a: Reals, b: Reals) -> tuple[Reals, Reals]:
    """Mean and variance of Beta(a, b), [S] each."""
    mean = a / (a + b)
    return mean, mean * (1.0 - mean) / (a + b + 1.0)


def bounds(a: Reals, b: Reals) -> tuple[Reals, Reals]:
    """Mean minus and plus two standard deviations of Beta(a, b), [S] each."""
    mean, variance = moments(a, b)
    return mean - 2.0 * np.sqrt(variance), mean + 2.0 * np.sqrt(variance)


@cache
def quarantined_below(decay: float) -> float:
    """eps: the upper bound of a state that has lost once per visit for 1 / (1 - decay) visits, from 0.05 to 0.2.

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

    A settled state is tried and has a lower priority than a new one. The i-th most tried settled state has the retention of the i-th
    other state of its problem plus half a step, so the two kinds are evicted alternately. Without an i-th other state it is -1.
    """
    problem, settled = columns.problem, (columns.tried > 0) & (priority < BLANK)
    start = np.searchsorted(problem, problem)
    others = np.bincount(problem, ~settled).astype(np.int64)[problem]
    # sorting by one number is much faster than by three: in each problem first the other states, then the settled
    score = np.where(settled, 1.5 - columns.tried / 2**18, (1.0 - priority.astype(np.float64)) / 2.0)
    order = np.argsort(2.0 * problem + score, kind="stable")
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
    """[S] learnability 4 p (1 - p) of one draw p ~ Beta(a, b) per state. The draw is a function of (seed, key)."""
    seeds = mix(keys, seed)
    draws = np.array([np.random.default_rng(int(s)).beta(x, y) for s, x, y in zip(seeds, a, b, strict=True)])
    return 4.0 * draws * (1.0 - draws)


def best_draws(keys: Keys, wins: FloatArray, losses: FloatArray, seed: int) -> Index:
    """Order [m] of a shortlist by Thompson draws from the states' posteriors, most learnable first."""
    scores = thompson(keys, *belief(wins, losses), derive(seed, "thompson"))
    order: Index = np.lexsort((keys, scores))[::-1]
    return order


RANKING = Ranking(posterior, settled_retention, shortlist=SHORTLIST, choose=best_draws)
