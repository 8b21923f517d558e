"""False equations: what is stated, how it is read, and what is left alone."""

import json
import time
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.mathematics.answers import gsm8k_solution
from tasks.mathematics.equations import equations, states_false_equation
from tasks.mathematics.expressions import NoValueError, plain, tokens, value

RIGHT = [
    "47 + 35 = 82",
    "Natalia sold 48/2 = <<48/2=24>>24 clips in May.",
    "He has 5 apples * 3 = 15 apples.",
    "She pays $1,200 - $200 = $1,000, and 1000/4 = 250.",
    "2*3+1 = 6+1 = 7",
    "1/3 = 0.33, and 2/3 = 0.67 or 2/3 = 0.66",  # rounded, or cut off
    "20% of 50 = 10, 50*20% = 10, 10/50 = 20%, 50*20/100 = 10 and 100% - 20% = 80%",
    "10/60*100 = 16.67%",
    "2 1/2 * 4 = 10 and 2½ × 4 = 10",
    "(3 + 4) * 2 = 14, 2(3 + 4) = 14",
    "3 times 4 plus 1 = 13, 12 divided by 4 = 3",
    "-5 + 3 = -2",
    "- 5 + 3 = 8",
    r"\frac{1}{2} \times 10 = \boxed{5}",
    "2^3 = 8, 2**3 = 8",
    "**5 + 3** = **8**",
    "8 = 5 + 3",
]
FALSE = [
    "There are 400/15 = 300 marbles left.",
    "300-400 = 100",
    "47 + 35 = 83",
    "20*3=80",
    "He earns <<48/2=25>>25 dollars",
    "5 apples * 3 = 14 apples",
    "$1,200 - $200 = $1,100",
    "2*3+1 = 6+2 = 8",
    "1/3 = 0.35",
    "7/2 = 3",
    "20% of 50 = 11",
    "10/50 = 30%",
    "100% - 20% = 70%",
    "2 1/2 * 4 = 9",
    "(3 + 4) * 2 = 11",
    "3 times 4 = 13",
    r"\frac{1}{2} \times 10 = 6",
    "$1.25 * 12 = $15.10",
    "- 5 + 3 = 9",
    "So 60 miles/hour * 2 hours = 130 miles.",
]
UNKNOWN = [
    "x + 3 = 9",
    "2x - 5 = 13",
    "f(3) + 1 = 3",
    "twenty * 3 = 50",
    "5 = 7",  # numbers alone: names, units
    "3 feet = 1 yard, 2 hours - 30 minutes = 90 minutes",
    "$1.25 * 4 = 500 cents",
    "Week 1 = 3 + 4 more",
    "3 packs at 2 dollars + 5 = 11",
    "pages 10-20 = 11 pages",
    "5 dozen + 3 = 63",
    "5 * 12 + 20 = 1 hour 20 minutes",
    "3 + 4 = 7 * 2",  # the sum goes on
    "25 / 1/3 = 75",
    "100 / 3 = 33, 25 / 2 = 12 with 1 left over and 33.33 * 3 = 100",  # rounded
    "17 = 2 + 3 (mod 12)",
    "12 + 5! = 132",
    "1 / 0 = 5",
    "price * 3 = 20",
    "0900-0130 = 0730",
    "2:30 + 1:15 = 3:45",
    "3 >= 2 + 5, 3 != 2 + 5, 7 - 1 => 3",
    "50 + 20% = 60",
]


@pytest.mark.parametrize("text", RIGHT)
def test_a_true_equation_is_true_in_its_usual_reading(text: str) -> None:
    found = list(equations(text + "\n"))
    assert [one.text for one in found if not one.true] == []
    assert found


@pytest.mark.parametrize("text", FALSE)
def test_a_false_equation_is_found(text: str) -> None:
    assert states_false_equation(f"Let us see.\n{text}\n#### 3\n") is True


@pytest.mark.parametrize("text", UNKNOWN)
def test_what_has_another_meaning_is_not_judged(text: str) -> None:
    assert states_false_equation(text + "\n") is None


def test_the_number_at_the_end_of_a_prefix_may_go_on() -> None:
    text = "48/2 = 25, so 25 * 2 = 50\n"
    # "48/2 = 2" may become 24; the comma after 25 may become 25,000; only the blank after it ends the number.
    assert [states_false_equation(text[:end]) for end in range(len("48/2 = 25, "))] == [None] * 11
    assert states_false_equation("48/2 = 25, ")
    assert states_false_equation("48/2 = 25") is states_false_equation("48/2 = 25 ") is None  # "25 - 1"
    assert states_false_equation("48/2 = 25\n")
    assert states_false_equation("7/2 = 3, ") is None  # "rounded down"
    assert states_false_equation("7/2 = 3, ok\n")


@given(st.lists(st.sampled_from([*RIGHT, *FALSE, *UNKNOWN]), max_size=3), st.integers(0, 200))
def test_what_is_wrong_stays_wrong(lines: list[str], cut: int) -> None:
    text = "\n".join([*lines, ""])
    if states_false_equation(text[:cut]):
        assert states_false_equation(text)


@given(st.text("0123456789+-*/x=()$%^.,<> ab\n\\{}", max_size=60))
def test_any_text_can_be_read(text: str) -> None:
    assert states_false_equation(text) in (True, False, None)


@pytest.mark.parametrize(
    "text",
    [
        "9" * 1_000_000 + " + 1 = 2\n",
        "(" * 1_000_000 + "1" + ")" * 1_000_000 + " = 2\n",
        "(" * 2000 + "1 + 1" + ")" * 2000 + " = 3\n",
        "9**9**9**9 = 1\n9^9^9^9 = 1\n2^-99999999 = 1\n9^0.5 = 2\n",
        "1+" * 1_000_000 + "1 = 5\n",
        "1+1=2\n" * 200_000,
        "1=" * 1_000_000 + "\n",
        "=" * 1_000_000,
        "<<" * 500_000,
        "<<1" * 300_000,
        "1/7+1/11+1/13+1/17+" * 200 + "1 = 5\n",
        "1,111" * 200_000 + " = 3 + 4\n",
        r"\frac{" * 200_000 + "= 1",
        "a-" * 500_000 + "1 = 3 + 5\n",
    ],
    ids=lambda text: text[:12],
)
def test_hostile_text_takes_no_time(text: str) -> None:
    begun = time.process_time()
    assert states_false_equation(text) in (None, False)
    assert time.process_time() - begun < 10


def test_values_are_exact() -> None:
    assert value(tokens("1/3 + 1/6")) == Fraction(1, 2)
    assert value(tokens("-2^2 + 2^3^1")) == 4
    assert value(tokens("8/4/2 - (1 - 5)*-1")) == -3
    assert value(tokens("0.1 + 20%")) == Fraction(3, 10)
    assert value(tokens(plain("2,000 − ½"))) == Fraction(3999, 2)
    for text in ("1 +", "(1", "1 2", "%", "10^60 * 10", "2^99", "1/(2-2)", "*1"):
        with pytest.raises(NoValueError):
            value(tokens(text))


def test_solutions_of_people_are_accepted(shared_data: Path) -> None:
    """Of the 1,319 of the test set 3 are refused, and 24 of all 8,792: they do state a false equation."""
    rows = [json.loads(line)["answer"] for line in (shared_data / "gsm8k/test.jsonl").open()]
    for texts in (rows, list(map(gsm8k_solution, rows))):
        found = [states_false_equation(text + "\n") for text in texts]
        assert found.count(True) <= 0.01 * len(texts)
        assert found.count(False) > 0.9 * len(texts)
