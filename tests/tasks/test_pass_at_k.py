"""Estimators against enumeration and hand-computed numbers."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.pass_at_k import bootstrap, majority, merge_answers, pass_at_k, share


@given(st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_share_of_subsets_with_a_right_response(case: tuple[int, int, int]) -> None:
    n, c, k = case
    subsets = list(itertools.combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(any(subset) for subset in subsets) / len(subsets), abs=1e-12)


def test_pass_at_k_of_known_values() -> None:
    # n=10 c=3 k=5: 1 - C(7,5)/C(10,5) = 1 - 21/252 = 0.91666...
    assert pass_at_k(10, 3, 5) == pytest.approx(11 / 12)
    assert pass_at_k(5000, 1, 1) == pytest.approx(1 / 5000)  # binomials of 5000 would overflow a float


def test_majority_votes() -> None:
    assert majority(["1", "2", "2", None, None, None], [True, False, False, False, False, False]) == 0.0
    assert majority(["1", "2", "3"], [True, False, False]) == pytest.approx(1 / 3)
    assert majority([None, None], [False, False]) == 0.0
    assert majority([], []) == 0.0


def test_answers_that_are_judged_by_more_than_themselves() -> None:
    """A reward may want a form, too: one text is right and wrong, and a right response may have no answer."""
    assert (
        majority(["18"] * 3, [True, True, False]) == majority(["18"] * 3, [False, True, True]) == pytest.approx(2 / 3)
    )
    answers, good = [None, "18", "18.0", "7"], [True, True, True, False]
    merged = merge_answers(answers, good, lambda pairs: [False] * len(pairs))
    assert merged == [None, "18", "18", "7"]
    assert majority(merged, good) == 1.0


def test_equal_answers_vote_together() -> None:
    answers = ["1/2", "2/4", "7", "7", None]
    asked: list[tuple[int, int]] = []

    def same(pairs: list[tuple[int, int]]) -> list[bool]:
        asked.extend(pairs)
        return [{answers[i], answers[j]} == {"1/2", "2/4"} for i, j in pairs]

    wrong = [False, False, True, True, False]
    merged = merge_answers(answers, wrong, same)
    assert (merged, asked) == (["1/2", "1/2", "7", "7", None], [(0, 1)])
    assert majority(merged, wrong) == 0.5  # two votes against two; unmerged it would be right
    asked.clear()
    assert merge_answers(answers, [True, True, False, False, False], same)[:2] == [
        "1/2",
        "1/2",
    ]  # right ones need no question
    assert merge_answers(["a", "b", "c", "c", "c"], [True, False, False, False, False], same)[4] == "c"
    assert asked == []  # one right answer loses to three in any case


@pytest.mark.parametrize("samples", [1, 8])
@pytest.mark.parametrize("truth", [0.005, 0.02, 0.5])
def test_the_interval_of_a_share_covers_the_truth(truth: float, samples: int) -> None:
    rng = np.random.default_rng(0)
    found = [share((rng.binomial(samples, truth, 64) / samples).tolist()) for _ in range(400)]
    covered = sum(one.low <= truth <= one.high for one in found)
    # 0.95 x 400 = 380, standard deviation 4.4; the bootstrap covers 0.28 and 0.76 of the rare ones at n = 64
    assert covered >= 366


def test_wilsons_interval_by_hand() -> None:
    # n = 10, none right, z = 1.96: low 0, high z^2 / (n + z^2) = 3.8415 / 13.8415
    none = share([0.0] * 10)
    assert [none.mean, none.low, none.high] == pytest.approx([0.0, 0.0, 0.27753], abs=1e-4)


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        found = bootstrap((rng.random(100) < 0.3).astype(float).tolist(), rng=rng, level=0.9, draws=300)
        covered += found.low <= 0.3 <= found.high
    # 200 x 0.9 = 180, standard deviation sqrt(200 x 0.9 x 0.1) = 4.2; the percentile interval is a little short
    assert 160 <= covered <= 195
