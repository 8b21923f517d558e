"""The pooled success model on hand-computed cases."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.evidence import Evidence
from replay.rankings.base import StateColumns, SuccessModel
from replay.success import (
    PRECISION,
    Known,
    chances,
    features_of,
    fit,
    from_text,
    sigmoid,
    to_text,
)
from tests.replay.rankings.test_rankings import CANONICAL, FAILED, PARTIAL, SUCCESS, columns

MODEL = SuccessModel()


def known(given: StateColumns, model: SuccessModel = MODEL) -> list[float]:
    states = replace(given, model=model)
    found: list[float] = chances(states, features_of(states)).tolist()
    return found


def test_without_outcomes_the_model_is_its_prior() -> None:
    found = Evidence().model(of_success=True)
    assert found.weights == pytest.approx(MODEL.weights)
    assert found.strength == pytest.approx(4.0)  # (16 / 20) / (1 - 16 / 20)


def test_features_by_hand() -> None:
    kinds = [FAILED, SUCCESS, CANONICAL, PARTIAL]
    states = columns([25, 50, 80, 40], kinds, value=[0.2, 0.4, 0.9, 0.5])
    # mean value 0.5; in deviations of 0.25 around 0.3: values -0.4, 0.4, 2.4, mean 0.8
    expected = [
        [1, 0.75, 1, 0.75, 0, 0.8, -1.2, 0, 0],
        [1, 0.5, 0, 0, 0, 0.8, -0.4, 0, 0],
        [1, 0.2, 0, 0, 1, 0.8, 1.6, 0, 0],
        [1, 0.6, 0, 0, 0, 0.8, 0.0, 1, 0.6],
    ]
    np.testing.assert_allclose(
        features_of(replace(states, model=SuccessModel(centre=0.3, spread=0.25))), expected, rtol=1e-6, atol=1e-6
    )


FEATURES = [*[st.floats(0, 1)] * 5, *[st.floats(-3, 3)] * 2, *[st.floats(0, 1)] * 2]


@given(st.lists(st.tuples(*FEATURES, st.integers(0, 40), st.integers(0, 40)), max_size=30))
def test_the_fit_is_the_most_probable_one(rows: list[tuple[float, ...]]) -> None:
    """There the slope of log likelihood + log prior is 0: sum of (w - n p) f = precision (b - prior)."""
    evidence = np.array(rows).reshape(-1, 11)
    features, wins, losses = evidence[:, :9], evidence[:, 9], evidence[:, 10]
    weights = np.array(fit(features, wins, losses))
    slope = features.T @ (wins - (wins + losses) * sigmoid(features @ weights))
    np.testing.assert_allclose(slope, PRECISION * (weights - np.array(MODEL.weights)), atol=1e-6)


HALF = [1.0, 0.5, 0, 0, 0, 0, 0, 0, 0]
"""Features of an own success's state at half of its length."""


def join(evidence: Evidence, state: Known, wins: int, losses: int, decay: float) -> None:
    evidence.join([state], [[True] * wins + [False] * losses], decay)


def test_roots_say_how_a_chain_begins_and_continuations_how_it_ends() -> None:
    evidence = Evidence()
    evidence.root_tried, evidence.root_solved = 1000, 10
    evidence.join_roots()
    join(evidence, Known(0.5, [1.0, 0.25, 0, 0, 0, 0, 0, 0, 0]), 300, 300, 1.0)
    start, end = known(columns([1, 75], [SUCCESS, SUCCESS]), evidence.model(of_success=True))
    assert start == pytest.approx(0.01, abs=0.004)
    assert end == pytest.approx(0.5, abs=0.04)


def test_old_outcomes_decay_and_what_a_states_continuations_share_is_counted() -> None:
    evidence = Evidence()
    join(evidence, Known(0.5, HALF), 2, 2, 0.5)
    # 6 pairs of 4 continuations, 2 * 2 of them differ; 2 * 0.5 * 0.5 * 6 = 3 would
    assert (evidence.expected, evidence.differing) == (3.0, 4.0)
    assert evidence.model(of_success=True).strength == pytest.approx((20 / 23) / (3 / 23))
    join(evidence, Known(0.2, HALF), 4, 0, 0.5)
    assert (evidence.wins.tolist(), evidence.losses.tolist()) == ([1, 4], [1, 0])
    # 1.5 + 2 * 0.2 * 0.8 * 6 = 3.42; 2 + 4 * 0
    assert evidence.expected == pytest.approx(3.42)
    assert evidence.differing == 2.0


def test_the_offset_of_a_problem_comes_from_its_root_and_its_proven_states() -> None:
    """d solves sum of (w - n p) = d / 4. State at 0.75: odds 2 - 5 / 4 = 0.75; root: 2 - 5 = -3."""
    states = columns([75], [SUCCESS], wins=[6], losses=[2], root_wins=[1], root_losses=[9])
    d = np.log(known(states)[0] / (1 - known(states)[0])) - 0.75
    assert 6 - 8 * sigmoid(np.array(0.75 + d)) + 1 - 10 * sigmoid(np.array(-3 + d)) == pytest.approx(d / 4)
    # outcomes of a failure's states say nothing of the problem: their prefix may be wrong
    for kind in (FAILED, PARTIAL):
        assert known(columns([75], [kind], wins=[6], losses=[2])) == known(columns([75], [kind]))


def test_a_model_as_text_is_the_same_model() -> None:
    model = SuccessModel((0.1, 1 / 3, -2.0, 1e-9, 0.0, 7.0, 2.0, -1.0, 0.5), 0.3, 0.1, 1e6)
    assert from_text(to_text(model)) == model
