"""The ranking `frontier`: replay the shallowest state of a proven chain that the policy can still finish.

Called by the shard through `replay/ranking.py`. A chain is what the store holds of one own successful or canonical
trajectory. Invariant: everything is computed from the columns of a single problem.

Formula. State i of a chain at relative depth d_i in (0, 1), ordered by depth, has decayed outcomes w_i, l_i. Finishing
from deeper is never harder, so the success curve p(d) is non-decreasing in depth; it is estimated jointly:

    rate_i   = (w_i + m * prior_i) / (w_i + l_i + m)      m = 1 pseudo-outcome
    prior_i  = (1 - g) * d_i + g * clip(V(s_i), 0, 1)     g = the critic's gate, 0 until it beats the base rate
    p        = isotonic regression of rate, weights w_i + l_i + 0.1     (pool adjacent violators)

Without outcomes the prior d_i says: the deeper, the easier. The frontier of the chain is its shallowest state with
p >= target (about 0.3), or the deepest one when none is. Only frontiers have a promise: 1 - |p - 1/2|, at most 1. A chain
whose shallowest state is mastered (p > 0.9) rests: the root comes next. A problem whose own root success (w + 1) / (w +
l + 2) is above 0.9 rests as a whole. Problems without any proven chain may explore: the deepest third of the states of
their own failures, in the second pool, of which a batch has at most the share `explore`.

Worked example, target 0.3, gate 0, one canonical chain with states at depths 0.25, 0.5, 0.75 (m = 1):

    start        rates 0.25 0.50 0.75: the shallowest with p >= 0.3 is 0.50. Replay it.
    4 losses     at 0.50: (0 + 0.5) / (0 + 4 + 1) = 0.10 < 0.25, a violation: pool 0.25 (weight 0.1) with 0.10 (weight 4.1):
                 (0.025 + 0.41) / 4.2 = 0.104. Curve 0.104 0.104 0.75: the frontier moves back to the end, 0.75.
    4 wins       at 0.75: (4 + 0.75) / 5 = 0.95. Curve 0.104 0.104 0.95: still 0.75, until the losses have decayed
                 (each weight version multiplies old outcomes by `decay`): with decay 0.9 after 10 versions the 4 losses
                 weigh 1.39: 0.5 / 2.39 = 0.209, pooled with 0.25: (0.025 + 0.209 * 1.49) / 1.59 = 0.212.
    after 20     versions they weigh 0.49: 0.5 / 1.49 = 0.336. Curve 0.25 0.336 ...: 0.50 is tried again, and so on to the root.
"""

import numpy as np
import numpy.typing as npt

from core.records import FloatArray, Provenance
from replay.columns import Columns, RankSettings

Reals = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]

PSEUDO = 1.0
UNTRIED = 0.1
"""Weight of a state without outcomes in the joint curve: its prior must not outvote what was seen elsewhere."""
MASTERED = 0.9


def frontier(columns: Columns, settings: RankSettings) -> FloatArray:
    """Promise [S]: 1 - |p - 1/2| at the frontier of each proven chain, 0.5 for exploration, -inf elsewhere."""
    promise = np.full(len(columns.value), -np.inf, np.float32)
    proven = columns.provenance != Provenance.OWN_FAILED
    rested = resting(columns)
    at = np.flatnonzero(proven & ~rested)
    order = at[np.lexsort((columns.length[at], columns.chain[at]))]
    chain = columns.chain[order]
    depth = columns.length[order] / np.maximum(columns.total[order], 1)
    curve = success_curve(chain, depth, columns, order, settings.gate)
    chosen, alive = frontier_states(chain, curve, settings.target)
    promise[order[chosen[alive]]] = 1.0 - np.abs(curve[chosen[alive]] - 0.5)
    explored = explores(columns, rested)
    promise[explored] = 0.5
    return promise


def chain_worth(columns: Columns) -> FloatArray:
    """Worth [S]: 2 for states of proven chains of unsolved problems, 1 for failures that may be explored, else 0."""
    rested = resting(columns)
    proven = (columns.provenance != Provenance.OWN_FAILED) & ~rested
    worth: FloatArray = (2.0 * proven + explores(columns, rested)).astype(np.float32)
    return worth


def success_curve(chain: Index, depth: Reals, columns: Columns, order: Index, gate: float) -> Reals:
    """[len(order)] the monotone success estimate p of states sorted by chain and depth."""
    wins, losses = columns.wins[order].astype(np.float64), columns.losses[order].astype(np.float64)
    prior = (1.0 - gate) * depth + gate * np.clip(columns.value[order], 0.0, 1.0)
    tried = wins + losses
    return isotonic((wins + PSEUDO * prior) / (tried + PSEUDO), tried + UNTRIED, chain)


def isotonic(rate: Reals, weight: Reals, chain: Index) -> Reals:
    """Non-decreasing weighted least-squares fit within each run of equal `chain` (pool adjacent violators).

    >>> isotonic(np.array([0.25, 0.1, 0.75]), np.array([1.0, 5.0, 1.0]), np.zeros(3, int)).round(3).tolist()
    [0.125, 0.125, 0.75]
    """
    rate, weight = rate.copy(), weight.copy()
    start = np.arange(len(rate))  # blocks: first entry of each, still in order
    while len(start) > 1:
        falls = (rate[1:] < rate[:-1]) & (chain[start[1:]] == chain[start[:-1]])
        if not falls.any():
            break
        # merge every maximal run of falling blocks at once; runs are disjoint, so one pass is vectorised
        block = np.cumsum(np.concatenate([[True], ~falls])) - 1
        total = np.bincount(block, weight).astype(np.float64)
        pooled = np.bincount(block, rate * weight) / total
        alone = np.bincount(block) == 1  # keep these bit for bit: what other chains do must not round them anew
        first = np.concatenate([[True], ~falls])
        rate, weight = np.where(alone, rate[first], pooled), total
        start = start[first]
    sizes = np.diff(np.append(start, len(chain)))
    return np.repeat(rate, sizes)


def frontier_states(chain: Index, curve: Reals, target: float) -> tuple[Index, npt.NDArray[np.bool_]]:
    """For each chain the index of its shallowest state with p >= target (else the deepest), and whether it is in play."""
    if not len(chain):
        return np.zeros(0, np.int64), np.zeros(0, np.bool_)
    first = np.flatnonzero(np.concatenate([[True], chain[1:] != chain[:-1]]))
    sizes = np.diff(np.append(first, len(chain)))
    run = np.repeat(np.arange(len(first)), sizes)
    below = np.bincount(run, curve < target, minlength=len(first)).astype(np.int64)  # p is sorted: these come first
    return first + np.minimum(below, sizes - 1), curve[first] <= MASTERED


def resting(columns: Columns) -> npt.NDArray[np.bool_]:
    """[S] whether the state's problem is solved from its root already."""
    return np.asarray((columns.root_wins + 1) / (columns.root_wins + columns.root_losses + 2) > MASTERED)


def explores(columns: Columns, rested: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """[S] the deepest third of own failures of problems without any proven state."""
    proven = columns.provenance != Provenance.OWN_FAILED
    hopeful = np.bincount(columns.problem, proven, minlength=int(columns.problem.max(initial=0)) + 1) > 0
    deep = columns.length * 3 >= columns.total * 2
    return np.asarray(deep & ~hopeful[columns.problem] & ~rested)
