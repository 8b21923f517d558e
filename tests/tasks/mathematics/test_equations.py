"""False equations: what is read, and what is left alone."""

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.mathematics.answers import gsm8k_solution
from tasks.mathematics.equations import states_false_equation

RIGHT = [
    "47 + 35 = 82",
    "82 - 18 + 4/2 = 66",
    "300 - 400 = -100",
    "Natalia sold 48/2 = <<48/2=24>>24 clips in May.",
    "She pays $1,200 - $200 = $1,000, and 1000/4 = 250.",
    "2*3+1 = 6+1 = 7",  # its last part
    "1/3 = 0.33, and 2/3 = 0.67 or 2/3 = 0.66",  # rounded, or cut off
    r"so 3 \times 4 = \$12",
]
FALSE = [
    "There are 400/15 = 300 marbles left.",
    "300-400 = 100",
    "20*3=80",
    "He earns <<48/2=25>>25 dollars",
    "$1,200 - $200 = $1,100",
    "1 + 2 = 3, so 3 + 4 = 9",
    "$1.25 * 12 = $17.10",
]
UNKNOWN = [
    "x + 3 = 9",
    "2x - 5 = 13",
    "f(3) + 1 = 3",
    "(3 + 4) * 2 = 11, 2^3 + 1 = 8",
    "twice 3 + 4 = 10",
    "twenty * 3 = 50",
    "5 = 7",  # numbers alone: names, units
    "2 hours - 30 minutes = 90 minutes",
    "30 + 60 = 1.5 hours",
    "$1.25 * 4 = 500 cents",
    "5 * 12 + 20 = 1 hour 20 minutes",
    "3 packs at 2 + 5 = 11",
    "pages 10-20 = 11 pages",
    "3 * 10 + 3 = 3 dozen",
    "3 + 4 = 7 * 2",  # the sum goes on
    "25 / 5 / 5 = 25",
    "100 / 3 = 33, 25 / 2 = 12 with 1 left over and 33.33 * 3 = 100",  # rounded
    "10 + 7 = 5 (mod 12)",
    "in base 8: 5 + 4 = 11",
    "12 + 5! = 132",
    "1 / 0 = 5",
    "0900-0130 = 0730",
    "14, 400 / 80 = 180, 2 * 500 = 10, 000",
    "3 >= 2 + 5, 3 != 2 + 5, 7 - 1 => 3",
    "50 + 20 = 60%",
]


@pytest.mark.parametrize("text", RIGHT)
def test_a_true_equation_is_true_in_its_usual_reading(text: str) -> None:
    assert states_false_equation(text + "\n") is False


@pytest.mark.parametrize("text", FALSE)
def test_a_false_equation_is_found(text: str) -> None:
    assert states_false_equation(f"Let us see.\n{text}\n#### 3\n") is True


@pytest.mark.parametrize("text", UNKNOWN)
def test_what_has_another_meaning_is_not_judged(text: str) -> None:
    assert states_false_equation(text + "\n") is None


def test_a_line_is_judged_once_it_has_ended() -> None:
    text = "48/2 = 25, so we go on"
    assert {states_false_equation(text[:end]) for end in range(len(text) + 1)} == {None}
    assert states_false_equation(text + "\n")
    assert states_false_equation("2 +\n48/2 = 26\n") is None  # the line before goes on


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
        "1+" * 1_000_000 + "1 = 5\n",
        "1+1=2\n" * 200_000,
        "1=" * 1_000_000 + "\n",
        "=" * 1_000_000,
        "<<1" * 300_000,
        ("1+" * 490 + "a = 3\n") * 60,
        ("1,111" * 180 + " = 3 + 4\n") * 60,
        (" " * 900 + "= 3\n") * 60,
        "a-" * 500_000 + "1 = 3 + 5\n",
    ],
    ids=lambda text: text[:12],
)
def test_hostile_text_takes_no_time(text: str) -> None:
    begun = time.process_time()
    assert states_false_equation(text) in (None, False)
    assert time.process_time() - begun < 10


def test_solutions_of_people_are_accepted(shared_data: Path) -> None:
    """Of the 1,319 of the test set 1 is refused, and 6 of all 8,792: they do state a false equation."""
    rows = [json.loads(line)["answer"] for line in (shared_data / "gsm8k/test.jsonl").open()]
    found = [states_false_equation(gsm8k_solution(text) + "\n") for text in rows]
    assert found.count(True) <= 0.01 * len(rows)
    assert found.count(False) > 0.5 * len(rows)
