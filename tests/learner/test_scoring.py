import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.calibration import auc, brier


def test_brier_by_hand() -> None:
    # (0.5 - 1)^2 = 0.25, (1.5 -> 1 - 1)^2 = 0, (0.2 - 0)^2 = 0.04, (-1 -> 0 - 0)^2 = 0; mean 0.0725
    got = brier(np.array([0.5, 1.5, 0.2, -1.0]), np.array([True, True, False, False]))
    assert got == pytest.approx(0.0725)
    assert math.isnan(brier(np.zeros(0), np.zeros(0, dtype=np.bool_)))


def test_auc_by_hand() -> None:
    # successes 0.9, 0.5 against failures 0.5, 0.1: 1 + 1 + 1/2 + 1 of 4 pairs
    values, outcomes = np.array([0.9, 0.5, 0.5, 0.1]), np.array([True, True, False, False])
    assert auc(values, outcomes) == pytest.approx(3.5 / 4)
    assert math.isnan(auc(values, np.ones(4, dtype=np.bool_)))


def test_auc_within_groups_does_not_reward_knowing_the_easy_problem() -> None:
    # problem 0 is easy (mostly solved, high values), problem 1 hard; inside each the critic is wrong
    values = np.array([0.8, 0.8, 0.9, 0.1, 0.2, 0.2])
    outcomes = np.array([True, True, False, True, False, False])
    groups = np.array([0, 0, 0, 1, 1, 1])
    assert auc(values, outcomes, groups) == 0.0
    # pooled pairs: each 0.8 beats 0.2, 0.2 and loses to 0.9 (2 of 3, twice); 0.1 beats none: 4 of 9
    assert auc(values, outcomes) == pytest.approx(4 / 9)


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.integers(0, 3)), max_size=30))
def test_auc_is_the_share_of_pairs_won_inside_groups(states: list[tuple[int, bool, int]]) -> None:
    values, outcomes, groups = (np.array([state[i] for state in states]) for i in range(3))
    won = [
        (good > bad) + (good == bad) / 2
        for good, succeeds, group in states
        for bad, other, of in states
        if succeeds and not other and group == of
    ]
    got = auc(values.astype(np.float32), outcomes.astype(np.bool_), groups.astype(np.int64))
    assert got == pytest.approx(np.mean(won)) if won else math.isnan(got)
