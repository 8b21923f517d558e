"""Replay the shallowest state of a proven chain that the policy can still finish.

    --replay.ratio 0.5 --replay.ranking bench.rankings.frontier:Frontier

A chain is the stored states of one own successful or canonical trajectory. State i leaves the share x_i = 1 - length /
(tokens of its trajectory) of the way, and has decayed outcomes w_i, l_i; the root has W, L. Were all steps equally
hard, the chance to finish would be exp(-h x), with h failures per way covered. A failing continuation covers 0.4 of its
way on average. All rollouts from the root count as one failure. exp(-h x) is only a prior: finishing from a deeper
state is never harder, so a curve that rises with depth is fitted to all outcomes together:

    way      = (0.4 + W + 0.4 L) / (1 + L)
    h        = (1 + sum of l_i) / (way + sum of (w_i + 0.4 l_i) x_i)
    rate_i   = (w_i + 2 exp(-h x_i)) / (w_i + l_i + 2)
    p        = isotonic regression of rate, weights w_i + l_i + 0.1     (pool adjacent violators)

The frontier is the shallowest state with p >= 0.3, or else the deepest. A state is mastered if its own
outcomes give (w + 1) / (w + l + 2) > 0.9. A mastered frontier moves one state up for any p there. A chain rests (is not
replayed) if its shallowest state is mastered, because the root comes next; if its frontier has p < 0.05: its success
was luck; and if the root's success is above 0.9. Outcomes decay, so it is tried again later.

Only frontiers have a priority: 1 - |p - 1/2|. A problem is not replayed before its first success: continuations of its
failures hardly ever succeed (0 of 192 in a probe, 95 % interval 0 to 1.9 %). A success that continues a state is a
chain of its own, from that state on. tests/bench/test_rankings.py has a worked example.
"""

import numpy as np

from core.records import Flags, FloatArray
from replay.rankings.base import HOPELESS, IS_SOLVED, Index, Ranking, Rules, StateColumns, success_rate
from replay.rankings.chains import Chains, chains_of, kept_longest
from replay.store.keys import Reals

LOST = 0.4  # share of the way that a failing continuation covers on average: 1 / z - 1 / (exp(z) - 1) at exp(-z) = 0.3
WAY = 0.4
"""Of the one failure of the root: an untried chain has its frontier where exp(-x / 0.4) = 0.3, about the middle."""
PSEUDO = 2.0  # outcomes that the prior counts as, as in (w + 1) / (w + l + 2): a start with 4 outweighs it
UNTRIED = 0.1  # weight of a state without outcomes in the joint curve: its prior must not outweigh outcomes elsewhere
TARGET = 0.3  # success that a start should still have
MASTERED = 0.9  # success above which 4 p (1 - p) is under 0.36: a third of what a start at 1/2 teaches


class Frontier(Ranking):
    """Only the frontier of each working chain is drawn."""

    def why_not(self, states: StateColumns) -> Rules:
        """Failures, states of problems and chains that rest, and all states but the frontier."""
        found, fronts, curve, known = frontiers(states)
        rests, lucky, front = np.zeros((3, len(states.value)), np.bool_)
        rests[found.order] = known[found.run]
        lucky[found.order] = (curve < HOPELESS)[found.run]
        front[fronts] = True
        return (
            (~states.proven, "an own failure: this ranking follows successes"),
            (mastered(states.root_wins, states.root_losses), IS_SOLVED),
            (rests, "its chain is mastered from its shallowest state"),
            (lucky, f"its chain succeeds in less than {HOPELESS:.0%}"),
            (~front, "another state of its chain is replayed"),
        )

    def priority(self, states: StateColumns) -> FloatArray:
        """Priority [S]: 1 - |p - 1/2| at the frontier of each chain that works, -inf elsewhere."""
        _, fronts, curve, known = frontiers(states)
        drawn = ~known & (curve >= HOPELESS)
        priority = np.full(len(states.value), -np.inf, np.float32)
        priority[fronts[drawn]] = 1.0 - np.abs(curve[drawn] - 0.5)
        return priority

    def retention(self, states: StateColumns, priority: FloatArray) -> FloatArray:
        """Retention [S]: class + `kept_longest`. So a problem keeps whole chains, and the store what can still teach.
        Classes: 4 tried chains, and the shallowest state of a resting chain (without its outcomes the chain would come
        back as new); 3 untried chains; 2 the other states of resting chains; 0 all others."""
        retention = np.zeros(len(states.value), np.float32)
        found = working_chains(states)
        head = found.order[found.first]
        rests, tried = mastered(states.wins[head], states.losses[head]), found.sums(states.tried[found.order]) > 0
        classes = np.where(rests[found.run] & (found.place > 0), 2.0, np.where(tried[found.run], 4.0, 3.0))
        retention[found.order] = classes + kept_longest(states, found, ~np.isneginf(priority))
        return retention


def success_curve(columns: StateColumns, found: Chains) -> Reals:
    """[K] the rising success estimate p of the states of the chains."""
    order = found.order
    wins, losses = columns.wins[order].astype(np.float64), columns.losses[order].astype(np.float64)
    left = columns.left[order].astype(np.float64)
    head = order[found.first]
    way = (WAY + columns.root_wins[head] + LOST * columns.root_losses[head]) / (1.0 + columns.root_losses[head])
    hazard = (1.0 + found.sums(losses)) / (way + found.sums((wins + LOST * losses) * left))
    prior = np.exp(-hazard[found.run] * left)
    tried = wins + losses
    return isotonic((wins + PSEUDO * prior) / (tried + PSEUDO), tried + UNTRIED, found.run)


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
        # merge every maximal run of falling blocks at once: runs are disjoint, so this is one vectorised pass
        block = np.cumsum(np.concatenate([[True], ~falls])) - 1
        total = np.bincount(block, weight).astype(np.float64)
        pooled = np.bincount(block, rate * weight) / total
        alone = np.bincount(block) == 1  # unmerged blocks stay bit for bit: other chains must not change their rounding
        first = np.concatenate([[True], ~falls])
        rate, weight = np.where(alone, rate[first], pooled), total
        start = start[first]
    sizes = np.diff(np.append(start, len(chain)))
    return np.repeat(rate, sizes)


def frontiers(states: StateColumns) -> tuple[Chains, Index, Reals, Flags]:
    """The C working chains; of each the frontier state, p there, and whether its shallowest state is mastered."""
    found = working_chains(states)
    curve, known = success_curve(states, found), mastered(states.wins, states.losses)[found.order]
    sizes = np.diff(np.append(found.first, len(curve)))
    below = found.sums(curve < TARGET).astype(np.int64)  # p rises with depth, so these states come first
    at = found.first + np.minimum(below, sizes - 1)
    at = at - (known[at] & (at > found.first))  # a mastered one moves up
    return found, found.order[at], curve[at], known[found.first]


def mastered(wins: FloatArray, losses: FloatArray) -> Flags:
    """Whether the success estimate (w + 1) / (w + l + 2) is above 0.9: nine wins without a loss are enough."""
    return np.asarray(success_rate(wins, losses) > MASTERED)


def working_chains(states: StateColumns) -> Chains:
    """The proven chains of problems that are not mastered from their root."""
    root = mastered(states.root_wins, states.root_losses)
    return chains_of(states, states.proven & ~root)
