"""Chained arithmetic: canonical solutions, rewards and the exact checker."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import DataError
from tasks import arithmetic

expressions = st.builds(
    lambda first, rest: first + "".join(sign + digit for sign, digit in rest),
    st.sampled_from("123456789"),
    st.lists(st.tuples(st.sampled_from("+-*"), st.sampled_from("123456789")), min_size=1, max_size=8),
)


def test_steps_go_from_left_to_right_modulo_100() -> None:
    # 7+5=12, 12-3=9, 9*2=18: no precedence of '*'
    assert arithmetic.steps("7+5-3*2") == [("+5", 12), ("-3", 9), ("*2", 18)]
    # 1-5=-4 -> 96, 96*9=864 -> 64, 64+7=71
    assert arithmetic.solution("1-5*9+7") == "-5=96\n*9=64\n+7=71\n#71"


@given(expressions)
def test_the_canonical_solution_is_rewarded_and_every_prefix_of_it_is_correct(expression: str) -> None:
    text = arithmetic.solution(expression)
    assert arithmetic.verify(expression, text).reward == 1.0
    assert all(arithmetic.prefix_correct(expression, text[:n]) for n in range(len(text) + 1))
    assert arithmetic.prefix_correct(expression, text + "\n")


@given(expressions, st.data())
def test_a_changed_character_is_found_at_once_and_stays_wrong(expression: str, data: st.DataObject) -> None:
    text = arithmetic.solution(expression)
    place = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.sampled_from([c for c in arithmetic.ALPHABET if c != text[place]]))
    changed = text[:place] + other
    if other == "#" and (place == 0 or text[place - 1] == "\n"):
        return  # an early answer begins: judged by its value, see below
    if other == "\n" and text[:place].count("#") and place == len(text):
        return
    assert not arithmetic.prefix_correct(expression, changed)
    assert not arithmetic.prefix_correct(expression, changed + text[place + 1 :])


@given(expressions, st.integers(0, 8), st.integers(0, 99))
def test_an_early_answer_is_correct_if_and_only_if_its_value_is(expression: str, kept: int, answer: int) -> None:
    lines = [f"{operation}={value}\n" for operation, value in arithmetic.steps(expression)][:kept]
    text = "".join(lines) + f"#{answer}"
    right = arithmetic.steps(expression)[-1][1] == answer
    assert arithmetic.verify(expression, text).correct == right
    assert arithmetic.prefix_correct(expression, text + "\n") == right


@pytest.mark.parametrize(
    "text", ["", "18", "#18\n#18", "#1\n#18", "#18\n+5=12", "#18 ", "#018", "+5=12\n-3=9\n*2=18\n"]
)
def test_only_one_last_answer_line_counts(text: str) -> None:
    # "#18 " is the right answer: white space around the response is no part of it
    assert arithmetic.verify("7+5-3*2", text).correct == (text == "#18 ")


def test_a_right_answer_on_a_wrong_scratchpad_is_rewarded_but_no_correct_prefix() -> None:
    text = "+5=13\n#18"
    assert arithmetic.verify("7+5-3*2", text).reward == 1.0
    assert not arithmetic.prefix_correct("7+5-3*2", text)


def test_a_careless_teacher_leaves_the_answer_out() -> None:
    rng = np.random.default_rng(0)
    assert arithmetic.careless("7*6-3*4", 0.0, rng) == arithmetic.solution("7*6-3*4")
    assert arithmetic.careless("7*6-3*4", 1.0, rng) == "*6=42\n-3=39\n*4=56\n"
    slips = sum("#" not in arithmetic.careless("7*6", 0.3, rng) for _ in range(1000))
    assert 240 < slips < 360  # mean 300, standard deviation sqrt(1000 x 0.3 x 0.7) = 14.5


def test_items_are_distinct_seeded_and_evaluation_is_apart_for_every_seed() -> None:
    train = [arithmetic.items(seed, range(2, 6), 400, evaluation=False) for seed in (0, 0, 1)]
    evaluation = [arithmetic.items(seed, range(2, 6), 100, evaluation=True) for seed in (0, 1)]
    assert train[0] == train[1] != train[2]
    assert evaluation[0] == evaluation[1]
    prompts = [{item.prompt for item in items} for items in (train[0], train[2], evaluation[0])]
    assert [len(found) for found in prompts] == [400, 400, 100]
    assert all(not a & b for a, b in itertools.combinations((prompts[0] | prompts[1], prompts[2]), 2))


def test_lengths_take_turns() -> None:
    levels = [item.level for item in arithmetic.items(0, range(1, 4), 9, evaluation=False)]
    assert {level: levels.count(level) for level in levels} == {"1 operation": 3, "2 operations": 3, "3 operations": 3}


def test_more_problems_than_there_are_is_an_error() -> None:
    with pytest.raises(DataError, match="no 5000 distinct training expressions of 1 to 1 operations"):
        arithmetic.items(0, range(1, 2), 5000, evaluation=False)
