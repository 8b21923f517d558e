"""What a few seed indices say of the difference of two arms, and the decision that follows (PROTOCOL.md). Pure."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from bench.learning.statistics import Indices, Interval, over_seeds
from core.seeds import generator

LEVEL = 0.95
WORTH = 0.02  # a difference in held-out success that is worth a default
Decision = Literal["a default", "off by default", "undecided"]


@dataclass(frozen=True, slots=True)
class Difference:
    """The paired difference of two arms: its mean, Student's t interval, and the exact sign-flip test."""

    mean: float
    low: float
    high: float
    p: float  # two-sided
    seeds: int


def t_quantile(freedom: int, level: float = LEVEL) -> float:
    """The t with P(|T| < t) = level, for whole degrees of freedom (Abramowitz and Stegun, 26.7.3 and 26.7.4).

    >>> [round(t_quantile(n), 3) for n in (1, 3, 7)]
    [12.706, 3.182, 2.365]
    """
    low, high = 0.0, 1e4
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _inside(middle, freedom) < level else (low, middle)
    return high


def _inside(t: float, freedom: int) -> float:
    """P(|T| < t)."""
    angle = math.atan(t / math.sqrt(freedom))
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for k in range(1 + odd, freedom, 2):
        total += term
        term *= math.cos(angle) ** 2 * k / (k + 1)
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total


def difference(first: Sequence[float], second: Sequence[float]) -> Difference:
    """The first arm minus the second, one number per seed index of each; with one seed index there is no interval."""
    found = np.subtract(first, second)
    mean, count = float(found.mean()), len(found)
    if count < 2:
        return Difference(mean, -math.inf, math.inf, 1.0, count)
    half = t_quantile(count - 1) * float(found.std(ddof=1)) / math.sqrt(count)
    return Difference(mean, mean - half, mean + half, sign_flip(found.tolist()), count)


def sign_flip(differences: Sequence[float]) -> float:
    """Two-sided p: the share of all choices of signs whose |sum| is at least that of the differences.

    >>> sign_flip([1.0, 2.0, 3.0])  # 2 of 8: all plus, all minus
    0.25
    """
    least = abs(sum(differences)) - 1e-12
    flips = itertools.product((1.0, -1.0), repeat=len(differences))
    sums = [abs(math.fsum(sign * one for sign, one in zip(signs, differences, strict=True))) for signs in flips]
    return sum(one >= least for one in sums) / len(sums)


def decide(found: Difference) -> Decision:
    """The rule of P1."""
    if found.low > 0 and found.mean >= WORTH:
        return "a default"
    return "off by default" if found.low > -WORTH and found.high < WORTH else "undecided"


def mean_interval(values: Sequence[float]) -> Difference:
    """A mean over seed indices with its t interval."""
    return difference(values, [0.0] * len(values))


def gain(restarts: Sequence[tuple[float, float]], roots: Sequence[tuple[float, float]], label: str) -> Interval:
    """M: successes per token of restarts divided by those from the root, over the same problems, with a bootstrap
    interval over problems. Both: (successes, tokens) of each problem. Infinite where the root has no success.

    >>> gain([(4.0, 100.0), (0.0, 100.0)], [(1.0, 100.0), (1.0, 300.0)], "x").value  # 4 / 200 over 2 / 400
    4.0
    """
    ours, theirs = np.array(restarts, np.float64), np.array(roots, np.float64)

    def _ratio(drawn: Indices) -> float:
        (won, tokens), (lost_to, of_root) = ours[drawn].sum(axis=0), theirs[drawn].sum(axis=0)
        if not tokens or not of_root or (won == 0.0 and lost_to == 0.0):
            return math.nan
        return float(won * of_root / (tokens * lost_to)) if lost_to else math.inf

    return over_seeds(len(ours), _ratio, generator(0, "bench.real", label))


def cuts(allowed: Sequence[int], size: int, depths: Sequence[float]) -> tuple[int, ...] | None:
    """The lengths next to these shares of a response of `size` tokens; None if two of them are the same.

    >>> cuts([1, 2, 4, 5, 6], 7, (0.25, 0.5)), cuts([1], 7, (0.25, 0.5))
    ((2, 4), None)
    """
    found = tuple(min(allowed, key=lambda length: abs(length - depth * size)) for depth in depths) if allowed else ()
    return found if len(set(found)) == len(depths) else None
