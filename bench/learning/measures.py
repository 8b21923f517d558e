"""The measures of a run, written down before any was made, but for `LEARNT` and `MASTERED`. Pure. A curve is held-out
success against generated tokens, from 0 on. After its end it keeps its last value: a run may stop early."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

LEARNT, MASTERED = 0.05, 0.99  # a smaller gain counts as none; a run stops after two evaluations in a row


@dataclass(frozen=True, slots=True)
class Curve:
    """Held-out success (mean over sampled responses from the root) against generated tokens, both ascending in time."""

    tokens: list[float]  # the first is 0
    success: list[float]


def area(curve: Curve, budget: float) -> float:
    """Mean success over [0, budget] tokens, by trapezoids: the area under the curve divided by the budget.

    >>> area(Curve([0, 100], [0.0, 1.0]), 200)  # (50 + 100) / 200
    0.75
    """
    tokens = [*curve.tokens, max(budget, curve.tokens[-1])]
    success = [*curve.success, curve.success[-1]]
    grid = np.unique([0.0, *(at for at in tokens if at < budget), budget])
    return float(np.trapezoid(np.interp(grid, tokens, success), grid) / budget)


def tokens_to(curve: Curve, level: float) -> float:
    """Generated tokens at which the curve first reaches `level`, by linear interpolation; infinite if it never does.

    >>> tokens_to(Curve([0, 100, 200], [0.0, 0.4, 0.8]), 0.6)
    150.0
    """
    for at, success in enumerate(curve.success):
        if success >= level:
            if at == 0:
                return 0.0
            before, begun = curve.success[at - 1], curve.tokens[at - 1]
            return begun + (level - before) / (success - before) * (curve.tokens[at] - begun)
    return math.inf


def reached_between(curve: Curve, level: float) -> tuple[float, float]:
    """Between which evaluations the curve first reaches `level`: all that is known of that time. Infinite at the end if
    it never does.

    >>> reached_between(Curve([0, 100, 200], [0.0, 0.4, 0.8]), 0.6)
    (100, 200)
    """
    for at, success in enumerate(curve.success):
        if success >= level:
            return curve.tokens[max(0, at - 1)], curve.tokens[at]
    return curve.tokens[-1], math.inf


def learnability(outcomes: Sequence[tuple[int, int]]) -> float:
    """Mean of 4 p (1 - p) over starts, from (continuations, correct ones) of each; NaN if none has two continuations. 1
    is a start that succeeds half of the time; 0 teaches nothing. With n continuations p (1 - p) is estimated without
    bias by n / (n - 1) x c / n x (1 - c / n).

    >>> learnability([(4, 2), (4, 0)])  # 4 x 4/3 x 1/4 = 4/3 for the first: an estimate may exceed 1
    0.6666666666666666
    """
    found = [4 * c * (n - c) / (n * (n - 1)) for n, c in outcomes if n > 1]
    return sum(found) / len(found) if found else math.nan


def plain(value: Any) -> Any:
    """JSON data: numbers with five significant digits, null for what is not finite."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    return value
