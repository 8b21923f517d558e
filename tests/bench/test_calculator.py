"""The calculator: what it answers, and the rewards of responses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.tasks.calculator import CALCULATOR, Calculator, verify_calculator
from core.seeds import generator

EXPRESSIONS = st.builds(
    lambda seed, size: CALCULATOR.draw(generator(seed), size), st.integers(0, 999), st.integers(1, 6)
)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("[12*7=", "84]\n"),
        ("[84-135=", "-51]\n"),
        ("[-51+9=", "-42]\n"),  # the result of a call may be negative
        ("#84", None),  # it does not call
        ("[12*7", None),
        ("12*7=", "error]\n"),
        ("[x=", "error]\n"),
        ("[12**7=", "error]\n"),
        ("[" + "9" * 31 + "*2=", "error]\n"),  # numbers are bounded, so no answer takes long
    ],
)
def test_what_the_calculator_answers(text: str, answer: str | None) -> None:
    messages, reward, done, _ = Calculator().step(text)
    assert (done, reward) == (answer is None, 0.0)
    assert done or messages[0]["content"] == answer


def test_a_solution_goes_from_left_to_right() -> None:
    # 3+4 = 7, 7*12 = 84, 84-99 = -15
    assert CALCULATOR.solution("3+4*12-99") == "[3+4=7]\n[7*12=84]\n[84-99=-15]\n#-15"
    assert CALCULATOR.operations("3+4*12-99") == 3


@given(EXPRESSIONS)
def test_the_solution_is_what_a_policy_that_calls_the_calculator_writes(expression: str) -> None:
    solution = CALCULATOR.solution(expression)
    begin = 0
    for end, character in enumerate(solution, 1):
        if character == "=":
            ((message,), *_) = Calculator().step(solution[begin:end])
            begin = end + len(message["content"])
            assert solution[end:begin] == message["content"]
    assert verify_calculator(expression, solution).correct
    assert set(solution) <= set(CALCULATOR.alphabet)
    assert all(CALCULATOR.prefix_correct(expression, solution[:end]) for end in range(len(solution) + 1))
    ended = f"{solution}\n\n"
    assert verify_calculator(expression, ended).correct
    assert CALCULATOR.prefix_correct(expression, ended)


@given(EXPRESSIONS, st.integers(1, 9))
def test_another_result_is_wrong(expression: str, off: int) -> None:
    lines, value = CALCULATOR.solution(expression).rsplit("#", 1)
    changed = f"{lines}#{int(value) + off}"
    assert not verify_calculator(expression, changed).correct
    assert not CALCULATOR.prefix_correct(expression, changed)
    assert verify_calculator(expression, lines).reward == 0.0
    assert not verify_calculator(expression, f"#{int(value)}").correct  # without the calls
