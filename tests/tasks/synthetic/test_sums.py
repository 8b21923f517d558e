"""Sums in words: solutions by hand, rewards and the exact checker."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.synthetic.sums import SUMS, steps, verify_sums

TEXT = "What is 47 plus 35 minus 18?"
SOLUTION = "47 + 35 = 82\n82 - 18 = 64\n#### 64"


def test_every_sum_or_difference_is_a_line() -> None:
    assert SUMS.solution(TEXT) == SOLUTION
    item = SUMS.item(TEXT)
    assert (item.prompt, item.reference, item.level) == (TEXT, TEXT, "2 operations")


@given(st.integers(0, 10_000), st.integers(1, 4))
def test_the_solution_is_right_and_a_changed_character_is_found_at_once(seed: int, operations: int) -> None:
    rng = np.random.default_rng(seed)
    text = SUMS.draw(rng, operations)
    words = text.removeprefix("What is ").removesuffix("?").split()
    assert all(10 <= int(number) <= 99 for number in words[::2])
    value = int(words[0]) + sum(
        int(n) if word == "plus" else -int(n) for word, n in zip(words[1::2], words[2::2], strict=True)
    )
    assert value == steps(text)[-1][1]
    assert min(result for _, result in steps(text)) >= 0
    solution = SUMS.solution(text)
    assert verify_sums(text, solution).correct
    assert all(SUMS.prefix_correct(text, solution[:end]) for end in range(len(solution) + 1))
    at = int(rng.integers(len(solution)))
    other = "7" if solution[at] != "7" else "+"
    assert not SUMS.prefix_correct(text, solution[:at] + other)


@pytest.mark.parametrize(
    ("response", "detail"),
    [
        ("#### 64", ""),  # the answer alone counts
        ("47 + 35 = 83\n#### 64.", ""),
        ("64", "no answer found: expected '#### n'"),
        ("82 - 18 = 64\n#### 65", "answered 65, expected 64"),
    ],
)
def test_the_number_after_the_last_hashes_is_judged(response: str, detail: str) -> None:
    verdict = verify_sums(TEXT, response)
    assert (verdict.correct, verdict.reward, verdict.detail) == (not detail, float(not detail), detail)
