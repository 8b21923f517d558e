"""Statistics of a few seeds, on numbers worked out by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.statistics import (
    Curve,
    area,
    cost_ratio,
    cost_to,
    difference,
    gain,
    mean_over_seeds,
    sign_flip,
    with_interval,
)

FAST = Curve([0, 100, 200], [0.0, 0.8, 0.8])
SLOW = Curve([0, 100, 200], [0.0, 0.4, 0.8])


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_area_by_hand() -> None:
    assert area(FAST, 200) == pytest.approx((40 + 80) / 200)  # a triangle of 100 x 0.8 / 2, then 100 x 0.8
    assert area(SLOW, 400) == pytest.approx((20 + 60 + 160) / 400)  # the last value is kept for 200 tokens
    assert area(SLOW, 150) == pytest.approx((20 + 25) / 150)  # 50 tokens from 0.4 to 0.6
    assert area(Curve([0], [0.3]), 100) == pytest.approx(0.3)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=8), st.floats(0.1, 3))
def test_the_area_lies_between_least_and_most(success: list[float], share: float) -> None:
    curve = Curve([10.0 * at for at in range(len(success))], success)
    assert min(success) - 1e-9 <= area(curve, share * curve.cost[-1]) <= max(success) + 1e-9


def test_the_cost_of_a_success_by_hand() -> None:
    assert cost_to(SLOW, 0.2) == 50
    assert cost_to(SLOW, 0.0) == 0
    assert math.isinf(cost_to(SLOW, 0.9))
    assert cost_to(Curve([0, 10, 20, 30], [0.1, 0.5, 0.2, 0.6]), 0.5) == 10  # the first time counts


def test_intervals_over_seeds() -> None:
    one = mean_over_seeds([0.5], rng())
    assert (one.value, one.low, one.high, one.seeds) == (0.5, 0.5, 0.5, 1)
    # two seeds, 0 and 1: the mean of a draw is 0, 1/2 or 1 with chances 1/4, 1/2, 1/4, so 95 % reach from 0 to 1
    two = mean_over_seeds([0.0, 1.0], rng())
    assert (two.value, two.low, two.high) == (0.5, 0.0, 1.0)


def test_the_ratio_of_costs_by_hand() -> None:
    # 0.4 is reached at 50 and at 100 tokens; nobody reaches 0.9
    assert cost_ratio([FAST] * 3, [SLOW] * 3, 200, 0.4, rng()).value == pytest.approx(0.5)
    assert math.isnan(cost_ratio([FAST], [SLOW], 200, 0.9, rng()).value)
    flat = Curve([0, 200], [0.0, 0.1])
    assert cost_ratio([FAST], [flat], 200, 0.4, rng()).value == 0.0  # the baseline never gets there
    assert math.isinf(cost_ratio([flat], [SLOW], 200, 0.4, rng()).value)
    mixed = cost_ratio([FAST, SLOW, FAST, FAST, SLOW], [SLOW] * 5, 200, 0.4, rng())
    # one fast run of five: 0.48 after 100 tokens, so 0.4 after 83
    assert mixed.low < mixed.value < mixed.high == pytest.approx(5 / 6)


def test_a_paired_difference_by_hand() -> None:
    # 1, 2, 3, 6: mean 3, squares of deviations 4 + 1 + 0 + 9 = 14, deviation sqrt(14 / 3) = 2.160, half 3.182 x 1.080
    found = difference([0.11, 0.12, 0.13, 0.16], [0.10] * 4)
    assert found.mean == pytest.approx(0.03)
    assert found.high - found.mean == pytest.approx(0.03437, abs=1e-5)
    assert found.p == 2 / 16  # all plus and all minus
    assert difference([0.3], [0.1]).low == -math.inf
    assert with_interval(difference([0.5]), 100) == "50.0 (one seed)"
    assert with_interval(difference([0.1] * 3)) == "0.1"  # their deviation is 1.7e-17


def test_sign_flips_by_hand() -> None:
    assert sign_flip([1.0, -1.0]) == 1.0  # every sum is at least 0
    assert sign_flip([3.0, 1.0, -2.0]) == 6 / 8  # sums 2 0 6 4 and the negatives: |.| >= 2 in 6


def test_the_gain_of_restarts_is_pooled_over_problems() -> None:
    found = gain([(2, 100), (4, 200)], [(1, 200), (1, 400)], "x")  # 6 / 300 over 2 / 600
    assert found.value == pytest.approx(6.0)
    assert found.low <= 6.0 <= found.high
    assert gain([(2, 100)], [(0, 200)], "x").value == math.inf
    assert math.isnan(gain([(0, 100)], [(0, 200)], "x").value)
