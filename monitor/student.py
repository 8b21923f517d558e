"""Student's t, for intervals over seeds. Pure."""

import math


def t_quantile(freedom: int, level: float = 0.95) -> float:
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
