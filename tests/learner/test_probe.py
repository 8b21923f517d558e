"""Engines against the learner: the gap by hand, and what leaves the noise."""

import numpy as np
import pytest

from core.errors import WeightError
from core.records import FloatArray
from learner.probe import Gap, check_gap, check_noise, gap_between


def logs(*values: float) -> FloatArray:
    return np.array(values, np.float32)


def test_the_gap_is_that_of_the_engine_that_is_furthest() -> None:
    own = [logs(-1.0, -2.0), logs(-3.0)]
    near, far = [logs(-1.0, -2.25), logs(-3.0)], [logs(-1.5, -2.0), logs(-3.25)]
    gap = gap_between([near, far], own)
    assert gap.mean == pytest.approx((0.5 + 0.0 + 0.25) / 3)
    assert gap.high == pytest.approx(0.5 - 0.02 * 0.25)  # 99 % of the way from the middle to the largest of three
    assert gap_between([], own) == Gap(0.0, 0.0)


def test_only_what_leaves_the_noise_stops_a_run() -> None:
    noise = Gap(0.02, 0.1)  # as in bfloat16
    check_noise(noise, "bfloat16")
    with pytest.raises(WeightError, match="the same model"):
        check_noise(noise, "float32")
    check_gap(Gap(0.06, 0.3), noise, 7)
    for gap in (Gap(0.09, 0.3), Gap(0.06, 0.5), Gap(np.nan, 0.1), Gap(0.02, np.nan)):
        with pytest.raises(WeightError, match=r"^weight version 7: .* 0\.02 nats .*0\.1\)"):
            check_gap(gap, noise, 7)
    exact = Gap(2e-6, 9e-6)  # as in float32
    check_gap(Gap(9e-4, 9e-3), exact, 7)
    with pytest.raises(WeightError, match="weight version"):
        check_gap(Gap(2e-3, 9e-3), exact, 7)


@pytest.mark.parametrize("noise", [Gap(0.3, 2.0), Gap(np.nan, 0.0)])
def test_two_models_that_differ_before_training_are_refused(noise: Gap) -> None:
    with pytest.raises(WeightError, match="the same model"):
        check_noise(noise, "bfloat16")
