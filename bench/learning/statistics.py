"""What several seeds say: intervals over seeds, paired by seed. Pure. Invariant: seeds are resampled as whole runs, and
two arms are always compared on the same seeds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench.learning.measures import LEARNT, MASTERED, Curve, tokens_to

Indices = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]
LEVEL = 0.95
DRAWS = 2000


@dataclass(frozen=True, slots=True)
class Interval:
    """A number of all seeds and its bootstrap percentile interval over them."""

    value: float
    low: float
    high: float
    seeds: int


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


def on_grid(curve: Curve, grid: Reals) -> Reals:
    """[len(grid)] success at these tokens; a curve keeps its last value."""
    return np.interp(grid, curve.tokens, curve.success).astype(np.float64)


def token_ratio(
    arm: Sequence[Curve], baseline: Sequence[Curve], budget: float, level: float | None, rng: np.random.Generator
) -> Interval:
    """Generated tokens until the arm reaches a success, divided by those until the baseline does.

    The success is `level`, or if None the baseline's final one, but at least `LEARNT` above its first and at most
    `MASTERED`, recomputed for every resampled set of seeds. Both curves are means over seeds, read on 200 points up to
    `budget`. The ratio is infinite if the arm never gets there, 0 if the baseline does not, NaN if neither. Seeds are
    paired.
    """
    grid = np.linspace(0.0, budget, 201)
    ours, theirs = (np.array([on_grid(curve, grid) for curve in curves]) for curves in (arm, baseline))

    def _ratio(drawn: Indices) -> float:
        mine, other = (curves[drawn].mean(axis=0) for curves in (ours, theirs))
        target = min(max(float(other[-1]), float(other[0]) + LEARNT), MASTERED) if level is None else level
        reached = tokens_to(Curve(grid.tolist(), mine.tolist()), target)
        own = tokens_to(Curve(grid.tolist(), other.tolist()), target)
        return float(np.divide(reached, own)) if own > 0 and min(reached, own) < np.inf else np.nan

    return over_seeds(len(arm), _ratio, rng)


def tokens_to_mastery(curve: Curve, first_success: float | None, level: float) -> float:
    """Generated tokens from the first root success of training until `level`; infinite if either never comes.

    >>> tokens_to_mastery(Curve([0, 100, 200], [0.0, 0.4, 0.8]), 50, 0.6)
    100.0
    """
    if first_success is None:
        return float("inf")
    return max(0.0, tokens_to(curve, level) - first_success)


def median_over_seeds(values: Sequence[float], rng: np.random.Generator) -> Interval:
    """The (lower) median of one number per seed; some may be infinite (never)."""
    numbers = np.sort(np.asarray(values, np.float64))
    return over_seeds(len(numbers), lambda drawn: float(np.sort(numbers[drawn])[(len(drawn) - 1) // 2]), rng)
