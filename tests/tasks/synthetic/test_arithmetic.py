"""Chained arithmetic: canonical solutions, rewards and the exact checker."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.synthetic.arithmetic import ARITHMETIC, steps, verify_arithmetic

expressions = st.builds(
    lambda first, rest: first + "".join(sign + digit for sign, digit in rest),
    st.sampled_from("123456789"),
    st.lists(st.tuples(st.sampled_from("+-*"), st.sampled_from("123456789")), min_size=1, max_size=8),
)


def test_steps_go_from_left_to_right_modulo_100() -> None:
    # 7+5=12, 12-3=9, 9*2=18: no precedence of '*'
    assert steps("7+5-3*2") == [("+5", 12), ("-3", 9), ("*2", 18)]
    # 1-5=-4 -> 96, 96*9=864 -> 64, 64+7=71
    assert ARITHMETIC.solution("1-5*9+7") == "-5=96\n*9=64\n+7=71\n#71"


@given(expressions)
def test_the_canonical_solution_is_rewarded_and_every_prefix_of_it_is_correct(expression: str) -> None:
    text = ARITHMETIC.solution(expression)
    assert verify_arithmetic(expression, text).reward == 1.0
    assert all(ARITHMETIC.prefix_correct(expression, text[:n]) for n in range(len(text) + 1))
    assert ARITHMETIC.prefix_correct(expression, text + "\n")


@given(expressions, st.data())
def test_a_changed_character_is_found_at_once_and_stays_wrong(expression: str, data: st.DataObject) -> None:
    text = ARITHMETIC.solution(expression)
    place = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.sampled_from([c for c in ARITHMETIC.alphabet if c != text[place]]))
    changed = text[:place] + other
    if other == "#" and (place == 0 or text[place - 1] == "\n"):
        return  # an early answer begins: judged by its value, see below
    if other == "\n" and text[:place].count("#") and place == len(text):
        return
    assert not ARITHMETIC.prefix_correct(expression, changed)
    assert not ARITHMETIC.prefix_correct(expression, changed + text[place + 1 :])


@given(expressions, st.integers(0, 8), st.integers(0, 99))
def test_an_early_answer_is_correct_if_and_only_if_its_value_is(expression: str, kept: int, answer: int) -> None:
    lines = [f"{operation}={value}\n" for operation, value in steps(expression)][:kept]
    text = "".join(lines) + f"#{answer}"
    right = steps(expression)[-1][1] == answer
    assert verify_arithmetic(expression, text).correct == right
    assert ARITHMETIC.prefix_correct(expression, text + "\n") == right


@pytest.mark.parametrize(
    "text", ["", "18", "#18\n#18", "#1\n#18", "#18\n+5=12", "#18 ", "#018", "+5=12\n-3=9\n*2=18\n"]
)
def test_only_one_last_answer_line_counts(text: str) -> None:
    # "#18 " is the right answer: white space around the response is no part of it
    assert verify_arithmetic("7+5-3*2", text).correct == (text == "#18 ")


def test_a_right_answer_on_a_wrong_scratchpad_is_rewarded_but_no_correct_prefix() -> None:
    text = "+5=13\n#18"
    assert verify_arithmetic("7+5-3*2", text).reward == 1.0
    assert not ARITHMETIC.prefix_correct("7+5-3*2", text)
