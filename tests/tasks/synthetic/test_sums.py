"""Sums in words: solutions by hand, rewards and the exact checker."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.synthetic.sums import SUMS, right_so_far, steps, verify_sums

TEXT = "What is 47 plus 35 minus 18?"
SOLUTION = "47 + 35 = 82\n82 - 18 = 64\n#### 64"


def test_every_sum_or_difference_is_a_line() -> None:
    assert SUMS.solution(TEXT) == SOLUTION
    item = SUMS.item(TEXT)
    assert (item.prompt, item.reference, item.level) == (TEXT, TEXT, "2 operations")


@given(st.integers(0, 10_000), st.integers(1, 4))
def test_the_solution_is_right_and_a_changed_digit_of_a_result_is_found(seed: int, operations: int) -> None:
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
    lines = solution.split("\n")
    at = int(rng.integers(len(lines)))
    changed = "3" if lines[at][-1] != "3" else "4"
    assert not SUMS.prefix_correct(text, "\n".join([*lines[:at], lines[at][:-1] + changed, ""]))


@pytest.mark.parametrize(
    ("response", "right"),
    [
        ("47 + 35 - 18 = 64\n#### 64", True),
        ("35 + 47 = 82\n82 - 18 = 64\n#### 64", True),
        ("35-18=17\n\n17+47=64\n#### 64", True),
        ("18 - 35 = -17\n", True),
        ("47 + 35 = 82 - 18 = 64\n", True),
        ("47 + 35 = 8", True),  # it may go on
        ("47 + 35 = 8\n", False),
        ("47 + 36 = 83\n", False),  # true, and of another number
        ("47 + 35 = 82\n82 - 17 = 65\n", False),
        ("47 + 35 + 18 = 100\n100 - 18 = 64\n#### 64", False),  # luck
        ("47 + 36 - 19 = 64\n#### 64", False),  # luck, too
        ("48 + 34 = 82\n", False),
        ("100 - 36 = 64\n", False),
        ("47 + 35 = 83 #### 64", False),  # the answer ends the line
        ("47 + 35 = 82 apples of 9 trees\n#### 64 in 3 lines", True),  # other numbers are not in equations
        ("40 + 30 = 70\n", False),  # true, and no grouping of the terms
        ("#### 64.5\n", False),
        ("#### 6", True),
        ("#### 6\n", False),
        ("#### 65", False),
        ("#### 65\n#### 64", False),
    ],
)
def test_every_order_and_grouping_is_right_and_a_wrong_line_is_wrong_once_it_has_ended(
    response: str, right: bool
) -> None:
    assert right_so_far(TEXT, response) is right


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
