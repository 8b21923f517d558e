"""The pooled success model: the chance that a continuation of a state succeeds, learnt from all problems together.

A data set's problems are visited a handful of times, so the records of single states and problems say little. This is a
logistic regression on all outcomes, of replayed states and of the root. The store refits it with every `record`.
Invariants: a fit depends only on its evidence (`replay/evidence.py`), so the number of shards changes nothing. Chances
of a problem's states depend only on its columns and the model.

A state with the share x of its trajectory's decisions still to come (1 at the root) has

    log odds = b0 + b1 x + failed (b2 + b3 x) + canonical b4 + b5 m + b6 (v - m) + partial (b7 + b8 x) + d

partial is 1 for a state of a failure that solves part of its task. v is the critic's value and m its mean over the
problem's states, both in deviations of all values. So the critic is trusted as far as it predicts, between problems
(b5) and within them (b6) apart. d belongs to the problem: N(0, D^2), its most probable value given the problem's own
outcomes, of the root and its proven states. Others are left out: their losses may say that the prefix is wrong. On top
come a state's own w, l:

    p = (n c + w) / (n + w + l)          c = the chance above, n = what it counts as, in outcomes

n is measured: two continuations of a state differ with chance 2 c (1 - c) n / (n + 1) if states with the same c have a
Beta(n c, n (1 - c)) distribution. If states stay right or wrong, n is small and their own outcomes decide.

A proven state's outcomes count in d and again on top: they tell of the problem and of the state. Two other rules were
worse. Without them in its own d, a chain with 8 losses of its end stays at p = 0.23, while its untried states fall to
0.03. Counted as n + 1 outcomes at most, they slow the way back to the root.
"""

import json
from dataclasses import asdict
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from core.records import Provenance
from replay.rankings.base import StateColumns, SuccessModel
from replay.store.keys import Reals

PRECISION = np.array([0.25, 0.1, 0.25, 0.1, 1.0, 1.0, 1.0, 0.25, 0.1])
"""1 / variance of the weights' prior around `SuccessModel.weights`. Ten to fifty outcomes outweigh it."""
PROBLEM_PRECISION = 0.25  # 1 / D^2: problems differ by D = 2 in log odds: success from 12 to 88 % around an even chance
SAME, PAIRS = 16.0, 20.0  # evidence for n = SAME / (PAIRS - SAME) = 4 before there is any: 20 pairs that would differ
LEAST_N, MOST_N = 0.25, 20.0  # of n: below, one outcome decides almost alone; above, a wrong state stays too long


class Feature(IntEnum):
    """The features of a state, in the order of their columns and of their weights b0 to b8."""

    ONE = 0
    LEFT = 1  # x
    FAILED = 2
    FAILED_LEFT = 3
    CANONICAL = 4
    PROBLEM_VALUE = 5  # m
    VALUE = 6  # v - m
    PARTIAL = 7  # a failure that solves part of its task
    PARTIAL_LEFT = 8


class Known(NamedTuple):
    """What the model knew of a state when it was drawn."""

    chance: float  # before the state's own outcomes count
    features: list[float]  # [F]


def fit(features: Reals, wins: Reals, losses: Reals) -> tuple[float, ...]:
    """The most probable weights, from features [N, F] and outcomes [N]. Newton's method, each step at most 1 long."""
    mean = np.array(SuccessModel().weights)
    weights, tried = mean.copy(), wins + losses
    for _ in range(40):
        chance = sigmoid(features @ weights)
        slope = features.T @ (wins - tried * chance) - PRECISION * (weights - mean)
        curvature = (features * (tried * chance * (1.0 - chance))[:, None]).T @ features + np.diag(PRECISION)
        step = np.linalg.solve(curvature, slope)
        weights = weights + step / max(1.0, float(np.abs(step).max()))
    return tuple(weights.tolist())


def strength(expected: float, differing: float) -> float:
    """n, from the pairs of continuations of one state that differ, and that would if equal chances were alike."""
    alike = min((differing + SAME) / (expected + PAIRS), MOST_N / (MOST_N + 1.0))
    return max(alike / (1.0 - alike), LEAST_N)


def features_of(columns: StateColumns) -> Reals:
    """[S, F] the features of the states."""
    left = columns.left.astype(np.float64)
    value = (columns.value.astype(np.float64) - columns.model.centre) / columns.model.spread
    total = np.bincount(columns.problem, value)
    mean = (total / np.maximum(np.bincount(columns.problem), 1))[columns.problem]
    failed = (columns.provenance == Provenance.OWN_FAILED).astype(np.float64)
    canonical = (columns.provenance == Provenance.CANONICAL).astype(np.float64)
    partial = (columns.provenance == Provenance.OWN_PARTIAL).astype(np.float64)
    of_kind = (failed, failed * left, canonical, mean, value - mean, partial, partial * left)
    return np.stack([np.ones(len(left)), left, *of_kind], axis=1)


def chances(columns: StateColumns, features: Reals) -> Reals:
    """[S] c: the chance of each state before its own outcomes count, from `features` [S, F]. Sums are written out: a
    matrix product rounds differently in another batch, and other problems must change nothing."""
    weights = columns.model.weights
    odds = sum((weight * features[:, at] for at, weight in enumerate(weights)), np.zeros(len(features)))
    if not len(odds):
        return odds
    first = np.searchsorted(columns.problem, np.arange(int(columns.problem[-1]) + 1))
    value = features[first, Feature.PROBLEM_VALUE]
    root = weights[Feature.ONE] + weights[Feature.LEFT] + weights[Feature.PROBLEM_VALUE] * value
    root_wins, root_tried = columns.root_wins[first].astype(np.float64), columns.root_losses[first].astype(np.float64)
    root_tried = root_tried + root_wins
    tried = (columns.wins + columns.losses).astype(np.float64)
    rows = np.flatnonzero((tried > 0) & columns.proven)
    owner, own, wins, tried = columns.problem[rows], odds[rows], columns.wins[rows].astype(np.float64), tried[rows]
    offset = np.zeros(len(first))
    for _ in range(10):  # Newton, each step at most 1 long
        at_root, here = sigmoid(root + offset), sigmoid(own + offset[owner])
        slope = root_wins - root_tried * at_root - PROBLEM_PRECISION * offset
        slope += np.bincount(owner, wins - tried * here, minlength=len(first))
        curvature = root_tried * at_root * (1.0 - at_root) + PROBLEM_PRECISION
        curvature += np.bincount(owner, tried * here * (1.0 - here), minlength=len(first))
        offset += np.clip(slope / curvature, -1.0, 1.0)
    return sigmoid(odds + offset[columns.problem])


def sigmoid(odds: Reals) -> Reals:
    """1 / (1 + exp(-odds)), without overflow."""
    found: Reals = 1.0 / (1.0 + np.exp(-np.clip(odds, -30.0, 30.0)))
    return found


def to_text(model: SuccessModel) -> str:
    """The model as JSON, for writes and snapshots."""
    return json.dumps(asdict(model))


def from_text(text: str) -> SuccessModel:
    """What `to_text` wrote, bit for bit."""
    data = json.loads(text)
    return SuccessModel(**data | {"weights": tuple(data["weights"])})
