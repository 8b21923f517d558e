"""What several seeds say: intervals over seeds, paired by seed, of numbers and of curves. Pure. Invariant: seeds are
resampled as whole runs, and two arms are always compared on the same seeds."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from core.seeds import generator
from monitor.student import t_quantile

Indices = npt.NDArray[np.int64]
LEVEL = 0.95
DRAWS = 2000
SAME = 1e-9  # an interval of this width is that of equal values


@dataclass(frozen=True, slots=True)
class Curve:
    """Held-out success from the root against a cost. After its end it keeps its last value."""

    cost: list[float]  # ascending; the first is 0
    success: list[float]


@dataclass(frozen=True, slots=True)
class Interval:
    """A number of all seeds and its bootstrap percentile interval over them."""

    value: float
    low: float
    high: float
    seeds: int


@dataclass(frozen=True, slots=True)
class Difference:
    """The paired difference of two arms: its mean, Student's t interval, and the exact sign-flip test."""

    mean: float
    low: float
    high: float
    p: float  # two-sided
    seeds: int


def area(curve: Curve, budget: float) -> float:
    """Mean success over [0, budget] of the cost, by trapezoids.

    >>> area(Curve([0, 100], [0.0, 1.0]), 200)  # (50 + 100) / 200
    0.75
    """
    cost = [*curve.cost, max(budget, curve.cost[-1])]
    success = [*curve.success, curve.success[-1]]
    points = np.unique([0.0, *(at for at in cost if at < budget), budget])
    return float(np.trapezoid(np.interp(points, cost, success), points) / budget)


def cost_to(curve: Curve, level: float) -> float:
    """The cost at which the curve first reaches `level`, by linear interpolation; infinite if it never does.

    >>> cost_to(Curve([0, 100, 200], [0.0, 0.4, 0.8]), 0.6)
    150.0
    """
    for at, success in enumerate(curve.success):
        if success >= level:
            if at == 0:
                return 0.0
            before, begun = curve.success[at - 1], curve.cost[at - 1]
            return begun + (level - before) / (success - before) * (curve.cost[at] - begun)
    return math.inf


def over_seeds(count: int, statistic: Callable[[Indices], float], rng: np.random.Generator) -> Interval:
    """`statistic` of the seeds' indices, with its interval over resampled seeds, without draws that have no value."""
    drawn = np.array([statistic(rng.integers(0, count, count)) for _ in range(DRAWS)])
    drawn = drawn if np.isnan(drawn).all() else drawn[~np.isnan(drawn)]
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], method="nearest")  # some may be infinite
    return Interval(statistic(np.arange(count)), float(low), float(high), count)


def mean_over_seeds(values: Sequence[float], rng: np.random.Generator) -> Interval:
    """The mean of one number per seed."""
    numbers = np.asarray(values, np.float64)
    return over_seeds(len(numbers), lambda drawn: float(numbers[drawn].mean()), rng)


def cost_ratio(
    arm: Sequence[Curve], baseline: Sequence[Curve], budget: float, level: float, rng: np.random.Generator
) -> Interval:
    """The cost until the arm reaches a success of `level`, divided by that until the baseline does. Both curves are
    means over the same seeds, read on 200 points up to `budget`. The ratio is infinite if the arm never gets there, 0
    if the baseline does not, NaN if neither."""
    points = np.linspace(0.0, budget, 201)
    ours, theirs = (
        np.array([np.interp(points, one.cost, one.success) for one in curves]) for curves in (arm, baseline)
    )

    def _ratio(drawn: Indices) -> float:
        mine, other = (
            cost_to(Curve(points.tolist(), curves[drawn].mean(axis=0).tolist()), level) for curves in (ours, theirs)
        )
        return float(np.divide(mine, other)) if other > 0 and min(mine, other) < np.inf else np.nan

    return over_seeds(len(arm), _ratio, rng)


def gain(restarts: Sequence[tuple[float, float]], roots: Sequence[tuple[float, float]], label: str) -> Interval:
    """Successes per token of restarts divided by those from the root, over the same problems, with a bootstrap interval
    over problems. Both: (successes, tokens) of each problem. Infinite where the root has no success.

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


def difference(first: Sequence[float], second: Sequence[float] | None = None) -> Difference:
    """The first arm minus the second, one number per seed of each (without a second: the mean of the first). With one
    seed there is no interval."""
    found = np.subtract(first, [0.0] * len(first) if second is None else second)
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


def text_of(value: Interval, scale: float = 1.0, digits: int = 2, *, never: str = "never") -> str:
    """The value with its interval, of one seed without; '-' for none. `never`: what infinity means.

    >>> text_of(Interval(0.5, 0.25, 0.75, 5)), text_of(Interval(math.inf, 1000, math.inf, 5), 1e-3, 0)
    ('0.50 (0.25 to 0.75)', 'never (1 to never)')
    """
    if math.isnan(value.value):
        return "-"
    shown = [never if math.isinf(x) else f"{x * scale:.{digits}f}" for x in (value.value, value.low, value.high)]
    return f"{shown[0]} ({shown[1]} to {shown[2]})" if value.seeds > 1 else f"{shown[0]} (one seed)"


def with_interval(found: Difference, scale: float = 1.0, digits: int = 1) -> str:
    """A mean with its t interval as text, which is left out if all values are the same; '-' for none."""
    if math.isnan(found.mean):
        return "-"
    mean, low, high = (f"{scale * value:.{digits}f}" for value in (found.mean, found.low, found.high))
    if found.seeds == 1:
        return f"{mean} (one seed)"
    return mean if found.high - found.low < SAME else f"{mean} ({low} to {high})"
