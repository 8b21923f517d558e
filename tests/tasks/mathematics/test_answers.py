r"""Mathematics: what counts as the answer and which answers are the same. Golds of the real data are judged in
test_golds."""

import json
import time
from fractions import Fraction
from pathlib import Path

import pytest

from core.config import Columns
from core.errors import DataError
from tasks.mathematics.answers import (
    boxed_answer,
    gsm8k_solution,
    hash_answer,
    read_gsm8k,
    read_math,
    verify_gsm8k,
    verify_math,
)
from tasks.mathematics.values import number, rational


@pytest.mark.parametrize(
    ("response", "correct"),
    [
        ("48/2 = 24\n#### 1,080", True),
        ("#### 1080", True),
        ("#### $1,080.00", True),
        ("#### 1080.", True),
        ("####1080", True),
        ("#### 3\n#### 1080", True),
        (r"so it is \boxed{1{,}080}", True),
        (r"\boxed{1080}", True),
        ("#### Step 2: Multiply\n8 * 135 = 1080\n\\boxed{1080}", True),
        ("#### Step 1,080: Add\n\\boxed{2}", False),
        ("\\boxed{2}\n#### 1080", True),
        ("#### 1080\n\\boxed{", True),
        ("#### 1080\nI put it in \\boxed format.", True),
        ("#### 1_080", True),
        ("#### 1_080.00 dollars", True),
        ("#### 1_0805", False),
        ("#### 1081", False),
        ("#### 10,80", False),
        ("#### -1080", False),
        ("#### 1080\n#### 3", False),
        ("#### 1080 or 1081", False),
        ("1080", False),
        ("#### ", False),
        ("", False),
    ],
)
def test_gsm8k_answers(response: str, correct: bool) -> None:
    assert verify_gsm8k("1,080", response).correct == correct


DRESSED = ["18", "18 dollars", "**18**", "€18", "$18.00", "18.", "18 km/h", "$18 in total", "x = 18", "**$18** per day", r"\$18",
    r"\boxed{18}", "18 m^2", "18 more apples", "Total: 18 eggs", "+18", "18\u00a0€", "= 18", "eighteen (18)"]  # fmt: skip
BARE = [
    "19",
    "18 or 19",
    "not 18",
    "more than 18",
    "18 of 20",
    "-18",
    "1,8",
    "18.5",
    "eighteen",
    "18%5",
    r"\neq 18",
    "< 18",
    "18 million",
    "18k",
    "18 hundred",
    "18^2",
]


@pytest.mark.parametrize(
    "unit", ["", " dollars", " ft", " m", " s", " days", " zebras", " t", " cents", " kg", " people"]
)
def test_gsm8k_takes_one_number_with_any_words_around_it(unit: str) -> None:
    for text in DRESSED:
        assert verify_gsm8k("18", f"6 * 3 = 18\n#### {text}{unit}").correct, text
        assert verify_gsm8k("18", f"The answer is #### {text}{unit}").correct, text
        assert not verify_gsm8k("17", f"#### {text}{unit}").correct, text
    for text in BARE:
        assert not verify_gsm8k("18", f"#### {text}{unit}").correct, text


def test_floats_with_exponents_load_and_are_compared_as_floats() -> None:
    """GSM-Hard's targets are Python floats."""
    columns = Columns(prompt="input", answer="target")
    item = read_gsm8k({"input": "?", "target": 1.2345e16}, columns, "row 1")
    assert (item.reference, verify_gsm8k(item.reference, "#### 12345000000000000").correct) == ("1.2345e+16", True)
    third = read_gsm8k({"input": "?", "target": 49 / 3}, columns, "row 2").reference
    assert verify_gsm8k(third, "#### 49/3").correct
    assert verify_gsm8k(third, "#### 16.33333333333").correct
    assert not verify_gsm8k(third, "#### 16.33").correct
    with pytest.raises(DataError, match="row 3"):
        read_gsm8k({"input": "?", "target": float("inf")}, columns, "row 3")


@pytest.mark.parametrize(
    ("gold", "answer", "correct"),
    [
        (r"\frac{9}{7}", r"\dfrac97", True),
        (r"\frac{9}{7}", "9/7", True),
        (r"\frac{1}{2}", "0.5", True),
        (r"\frac{1}{2}", r"\frac{1}{3}", False),
        (r"10\sqrt{2}", r"\sqrt{200}", True),
        ("(0,3]", "(0, 3]", True),
        ("(0,3]", "(0,3)", False),
        (r"\{1,2\}", r"\{2, 1\}", True),
        ("1,2", "2,1", True),
        (r"90^\circ", "90", True),
        (r"\$1,000", "1000", True),
        ("x^2-1", "(x-1)(x+1)", True),
        ("x^2-1", "x^2+1", False),
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 1 \\ 2\end{pmatrix}", True),
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 2 \\ 1 \end{pmatrix}", False),
        (r"\text{Tuesday}", "Tuesday", True),
        (r"\text{(A)}", r"\text{(B)}", False),
        ("42_7", "42_{7}", True),
        ("42_7", "42", True),
        ("42_7", "42_8", False),
        ("4A_{16}", "4B_{16}", False),
        (r"\frac \pi4 - \sqrt2", r"\frac{\pi}{4} - \sqrt{2}", True),
        (r"\frac \pi4 - \sqrt2", r"\frac \pi4 - \sqrt3", False),
        (r"440\text{ cm}^2", "440", True),
        (r"440\text{ cm}^2", r"440 \text{cm}^2", True),
        (r"440\text{ cm}^2", r"440\text{ cm}^3", False),
        (r"575 \text{ students}", "574", False),
        ("x+1", "1+x", True),
        (r"\frac{x^2-1}{x-1}", "x+1", True),
        (r"1\frac{1}{4}", r"\frac54", True),
        (r"1\frac{1}{4}", r"1\frac{1}{5}", False),
        ("10!", "3628800", True),
        (r"\frac{1}{2004!}", "1/2004!", True),
        (r"\frac{1}{2004!}", r"\frac{1}{2005!}", False),
        (r"\frac{1}{9}", r"\frac{1}{0}", False),
        ("2^{10}", "1024", True),
        ("2^{2005}", "2^{2006}", False),
        (r"3^{60}\pi", r"(3^{60}+1)\pi", False),
        (r"10^{30}+\sqrt{2}", r"10^{30}+\sqrt{3}", False),
        (r"10^{30}+\sqrt{2}", r"\sqrt{2}+10^{30}", True),
        ("y=x+3", "y-x=3", True),
        ("y = x+3", "y = x+4", False),
        ("4x-5y=-50", "4x-5y=-51", False),
        (r"(-\infty,5)", r"(\infty,5)", False),
        (r"[0,\infty)", r"[1,\infty)", False),
        ("1,2,-2", "1,2,-3", False),
        ("-814+3698i", "-814+3700i", False),
        (r"45^\circ, 135^\circ", r"45^\circ, 136^\circ", False),
        (r"864 \mbox{ inches}^2", r"-(864 \mbox{ inches}^2)", False),  # not the same words: a sign is none
        (r"864 \mbox{ inches}^2", r"-864 \mbox{ inches}^2", False),
        (r"-864 \mbox{ inches}^2", r"-(864 \mbox{ inches}^2)", True),
        (r"\text{half-open}", "half open", True),
        (r"\log_2 8", r"\log_{2} 8", True),
        (r"\log_2 8", r"\log_2(8)", True),
        (r"\log_2 8", r"\log_28", True),  # as TeX reads it
        (r"\log_2 8", r"\log_3 8", False),
        (r"\log_2 8", r"\log_2 9", False),
        ("5:3", r"5\colon 3", True),
        ("5:3", r"3\colon 5", False),
    ],
)
def test_math_answers(gold: str, answer: str, correct: bool) -> None:
    assert verify_math(gold, rf"Thus \boxed{{{answer}}}.").correct == correct


def test_a_verdict_says_why() -> None:
    assert verify_math("2", "it is 2").detail == r"no answer found: expected '\boxed{...}'"
    assert verify_gsm8k("2", "#### 3").detail == "answered '3', expected '2'"


def test_the_last_box_counts_and_must_be_closed() -> None:
    assert boxed_answer(r"\boxed{1} and \boxed{\frac{1}{2}} end") == r"\frac{1}{2}"
    assert boxed_answer(r"\boxed{\{1,2\}}") == r"\{1,2\}"
    assert boxed_answer(r"\boxed 7.") == "7"
    assert boxed_answer(r"\fbox{3}") == "3"
    assert boxed_answer(r"\boxed{1 + ") is None
    assert boxed_answer(r"\boxed{}") is None
    assert boxed_answer("none") is None
    assert boxed_answer("\\boxed{" * 10_000) is None


def test_the_last_hashes_count() -> None:
    assert hash_answer("The answer is #### 5") == "5"
    assert hash_answer("  ####  5  \nmore") == "5"
    assert hash_answer("#### 5\n####  \t") is None  # the last one counts, and it is empty


def test_an_answer_among_many_spaces_is_found_in_linear_time() -> None:
    spaces = " " * 2_000_000  # a pattern that looks at each space twice for each would take hours
    assert hash_answer(f"####{spaces}5 6{spaces}7{spaces}\n{spaces}") == f"5 6{spaces}7"


EXPLODING = [
    "2^{2^{2^{99}}}", "9^{9^{9}}", "9^{9^9}", "2^{10^{9}}", "2^{100000000}", "(2^{99})^{99}", "(2^{100000})^{100000}", "(x+1)^{1000}",
    "(x+y+z)^{300}", r"\frac{1}{2^{100000000}}", "9!!!", "100!!", "(10^9)!", r"\sin(10^{10^{9}})", r"\log_{2}(3^{100000000})",
    r"\sum_{n=1}^{10^{9}} \frac{1}{n}", "9" * 10**6, "0." + "9" * 10**6, "x+" * 10**5 + "x", "(" * 1900 + "1" + ")" * 1900,
    "(" * 20 + "1" + ")" * 20, "-" * 3900 + "1", "x" + "^x" * 200, r"\gcd(9^{9^{9}}, 6)",
    r"\binom{10^9}{5\cdot10^8}", "e^{e^{e^{e^{e}}}}", r"\prod_{n=1}^{10^9} n", "(x+1)^{10000}(x-1)^{10000}", "(1," * 900 + "1" + ")" * 900, "{" * 10**6,
]  # fmt: skip


@pytest.mark.parametrize("answer", EXPLODING, ids=lambda answer: answer[:20])
@pytest.mark.parametrize("gold", ["5", "x+1", r"\frac{\pi}{4}", "(1,2)", r"\frac{1}{2004!}"])
def test_an_answer_that_explodes_is_told_apart_without_evaluating_it(gold: str, answer: str) -> None:
    """Each of them keeps math-verify busy for more than five seconds, or for all memory."""
    begun = time.process_time()
    assert not verify_math(gold, rf"\boxed{{{answer}}}").correct
    assert verify_math(answer, rf"\boxed{{ {answer} }}").correct == (answer.count("{") == answer.count("}"))
    assert time.process_time() - begun < 3.0


@pytest.mark.parametrize("answer", ["99999!", "9999999!", "9" * 35 + "!"])
def test_a_large_factorial_is_compared_as_a_symbol(answer: str) -> None:
    begun = time.process_time()
    assert verify_math(rf"\frac{{1}}{{{answer}}}", rf"\boxed{{1/{answer}}}").correct
    assert not verify_math("5", rf"\boxed{{{answer}}}").correct
    assert time.process_time() - begun < 5.0


def test_plain_numbers_are_compared_as_such() -> None:
    assert number("1,234,567.50") == number("1234567.5")
    assert number("-$3") == number("-3")
    assert number("1.5e+16") == 15_000_000_000_000_000
    assert [number(text) for text in ("", "-", ".", "1,23", "1e", "½", "١", "1 2", "9" * 5000)] == [None] * 9


def test_fractions_of_integers_are_compared_exactly() -> None:
    assert [rational(text) for text in (r"-\frac{6}{4}", r"\dfrac{-6}{4}", "-3/2", "-1.5")] == [Fraction(-3, 2)] * 4
    assert rational(r"\frac23") == Fraction(2, 3)
    assert [rational(text) for text in (r"\frac{1}{0}", "1/2/3", r"\frac{x}{2}", r"2\frac{-1}{2}", "")] == [None] * 5
    assert [rational(text) for text in (r"2\frac{1}{2}", "2 1/2", "-2 1/2", r"2.1\overline{6}", r"\frac{.5}{.2}")] == [
        *(Fraction(5, 2), Fraction(5, 2), Fraction(-5, 2), Fraction(13, 6), Fraction(5, 2))
    ]


def test_canonical_solutions_lose_their_calculator_marks(shared_data: Path, whole_data: bool) -> None:
    assert gsm8k_solution("So 48/2 = <<48/2=24>>24 clips. \n#### 24") == "So 48/2 = 24 clips.\n#### 24"
    lines = (shared_data / "gsm8k" / "train.jsonl").read_text().splitlines()
    solutions = [gsm8k_solution(json.loads(line)["answer"]) for line in lines]
    assert len(solutions) == (7473 if whole_data else 10)
    assert not any("<<" in text or ">>" in text for text in solutions)
    assert all(hash_answer(text) for text in solutions)


def test_rows_become_items() -> None:
    columns = Columns(prompt="q", answer="a", solution="a", level="l")
    item = read_gsm8k({"q": "How many? ", "a": "1+1=<<1+1=2>>2\n#### 2", "l": 3}, columns, "row 1")
    assert (item.prompt, item.reference, item.level, item.solution) == ("How many?", "2", "3", "1+1=2\n#### 2")
    bare = read_gsm8k({"q": "?", "a": 7}, Columns(prompt="q", answer="a"), "row 1")
    assert (bare.reference, bare.solution) == ("7", None)
    mathematics = read_math({"q": "?", "a": r"so \boxed{x}", "l": "Level 5"}, columns, "row 1")
    assert (mathematics.reference, mathematics.solution, mathematics.level) == ("x", r"so \boxed{x}", "Level 5")
    with pytest.raises(DataError, match="not closed"):
        read_math({"q": "?", "a": r"\boxed{1", "l": ""}, columns, "row 1")


@pytest.mark.parametrize("gold", [r"\frac{", "}{", "?", "see figure", r"\boxed{\frac{}", "1}"])
def test_a_gold_that_is_no_mathematics_is_refused(gold: str) -> None:
    with pytest.raises(
        DataError, match=r"^f: row 1: column 'answer' (has the gold answer '|has a .boxed. that is not closed)"
    ):
        read_math({"prompt": "?", "answer": gold}, Columns(), "f: row 1")


@pytest.mark.parametrize(
    "gold", [r"\text{see figure}", "east", r"\{1, 2\}", r"[1, \infty)", r"\sin x", r"\boxed{\frac12}"]
)
def test_a_gold_in_any_usual_form_is_taken(gold: str) -> None:
    item = read_math({"prompt": "?", "answer": gold}, Columns(), "f: row 1")
    assert verify_math(item.reference, rf"\boxed{{{item.reference}}}").correct
