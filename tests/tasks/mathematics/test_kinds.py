"""Kinds of answers that were judged wrongly once. equal.txt and different.txt beside this file hold a gold answer and an
answer per line, between them a tab: clock times and ratios, upright letters, words that scale a number, blanks inside
numbers, signs in Unicode, roots, layout, units, sets, sides of equations, repeating decimals."""

import time
from pathlib import Path

import pytest

from tasks.mathematics.answers import verify_gsm8k, verify_math
from tasks.mathematics.equality import same_answer
from tasks.mathematics.units import scale, split_unit


def _table(name: str) -> list[tuple[str, str]]:
    lines = Path(__file__).with_name(name).read_text(encoding="utf-8").split("\n")
    pairs = [line.split("\t") for line in lines if line]
    return [(gold, answer) for gold, answer in pairs]


def test_answers_that_mean_the_same_are_accepted_both_ways() -> None:
    pairs = _table("equal.txt")
    refused = [pair for pair in pairs if not verify_math(pair[0], rf"\boxed{{{pair[1]}}}").correct]
    turned = [pair for pair in pairs if not same_answer(pair[1], pair[0])]
    assert (refused, turned) == ([], [])
    assert len(pairs) > 180


def test_answers_that_look_the_same_are_refused_both_ways() -> None:
    pairs = _table("different.txt")
    accepted = [pair for pair in pairs if verify_math(pair[0], rf"\boxed{{{pair[1]}}}").correct]
    turned = [pair for pair in pairs if same_answer(pair[1], pair[0])]
    assert (accepted, turned) == ([], [])
    assert len(pairs) > 110


NEGATIVE = [
    "- 42", "-$42", "$-42", "- $ 42", "-(42)", "(-42)", "(- 42)", "\u2212 42", "\u2013 42", "\u2014 42", "\u2010" + "42", "\uff0d42",
    "x = - 42", "x=\u221242", "Answer: - 42", "The answer is - 42", "The answer is minus 42", "negative $42", "Minus 42", "- 42 dollars",
    "-**42**", "**- 42**", "__- 42__", "`- 42`", '"- 42"', "- 42.00", "- 42%", "= - 42", "Total -42", "Profit = - 42", "-\u20ac42",
    "- USD 42", r"-\,42", r"-\ 42", "-~42", "-\u00a042", "{-}42", "- {42}", r"\text{-}42", r"\text{minus }42", r"\text{negative } 42",
    r"-\$ 42", r"\mathbf{-42}", r"-\text{ }42", "42 degrees below zero", "- 42 (a loss)", "[- 42]", "$- 42$", r"\(-42\)",
]  # fmt: skip
POSITIVE = [
    "42",
    "+ 42",
    "Total: 42",
    "one-time fee: 42",
    "42 - done",
    r"\text{positive }42",
    "x-y = 42",
    "non-negative: 42",
]
UNCLEAR = ["Total - 42", "x - 42", "x-42", "Day-42", "x minus 42", "-42 or 42", "not -42", "the negative is 42"]


@pytest.mark.parametrize("form", ["#### {}", r"\boxed{{{}}}", "4 - 46 = -42\n#### {}"])
def test_the_sign_of_a_number_counts_however_it_is_written(form: str) -> None:
    for text, verdicts in [(t, (False, True)) for t in NEGATIVE] + [(t, (True, False)) for t in POSITIVE]:
        response = form.format(text)
        assert tuple(verify_gsm8k(gold, response).correct for gold in ("42", "-42")) == verdicts, response


@pytest.mark.parametrize("text", UNCLEAR)
def test_a_dash_that_may_join_words_is_no_sign(text: str) -> None:
    assert not any(verify_gsm8k(gold, f"#### {text}").correct for gold in ("42", "-42"))


@pytest.mark.parametrize(
    "text",
    [r"18\text{ million}", r"18\text{ dozen}", "18 thousandths", "18 lakh", r"18\text{ squared}", "18 bn", r"1\,8"],
)
def test_a_word_that_scales_is_part_of_the_number(text: str) -> None:
    assert not verify_gsm8k("18", f"#### {text}").correct
    assert not verify_gsm8k("18", rf"\boxed{{{text}}}").correct


SLOW = [
    r"\binom{1000000}{500000}", r"\binom{200000}{100000}", r"\tbinom{300000}{150000}", r"\binom{10^6}{500000}", r"\binom{x}{500000}",
    r"\binom{1000000+0}{500000}", r"\binom{\binom{1000}{500}}{500}", r"\binom{\pi}{100000}", r"\binom{0.5}{100000}",
    r"\lfloor 10^{3000}\pi\rfloor", r"\lceil 10^{5000}e\rceil", r"\lfloor 10^{3000}\pi\rfloor + x", r"\lfloor e^{9999}\rfloor",
    r"\frac{1}{\lfloor 10^{3000}\pi\rfloor}", r"floor(10^{3000}\pi)", r"\tan(\frac{\pi}{2}+10^{-3000})", r"\sin(10^{3000})",
]  # fmt: skip


@pytest.mark.parametrize("answer", SLOW)
def test_large_values_are_wrong_at_once(answer: str) -> None:
    begun = time.process_time()
    assert not verify_math(r"\frac{x}{7}+1", rf"\boxed{{{answer}}}").correct
    assert verify_math(answer, rf"\boxed{{ {answer} }}").correct
    assert time.process_time() - begun < 1.0


def test_small_binomial_coefficients_are_evaluated() -> None:
    for text, value in ((r"\binom{5}{2}", "10"), (r"\binom52", "10"), (r"\binom{100000}{2}", "4999950000")):
        assert verify_math(value, rf"\boxed{{{text}}}").correct
    assert verify_math(r"\binom{n}{2}", r"\boxed{\frac{n(n-1)}{2}}").correct
    assert verify_math(r"\binom{1000000}{500000}+1", r"\boxed{1+\dbinom{1000000}{500000}}").correct


def test_units_and_scales() -> None:
    assert split_unit("20 meters per second") == ("20", "meters per second")
    assert [split_unit(text)[1] for text in ("20 or 30", "20 pi", "20 x", "20 xyz", "20 m", "5 factorial")] == [""] * 6
    assert [scale(text)[0] for text in ("hundred thousand", "thirds", "ways")] == [100_000, scale("third")[0], 1]
