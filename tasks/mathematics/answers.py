r"""Mathematics: final answers of GSM8K (`#### n`) and MATH (`\boxed{}`), compared by value with math-verify.

Called by `tasks/task.py` (rows to items) and by `tasks/judge_worker.py` in the judging processes (`verify_gsm8k`, `verify_math`).
Invariants: a response without an answer in the required form is wrong, with that reason. Equal texts, plain numbers and answers too
large to evaluate are decided here; math-verify decides the rest. Nothing here limits time: the judge ends what takes too long.
"""

import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any

from core.config import Columns
from core.errors import DataError
from core.records import Verdict
from tasks.problems import Item, level_of, solution_of, text_of
from tasks.sources import Row

_CALCULATOR = re.compile(r"<<[^<>\n]*>>")
_HASHES = re.compile(r"^[ \t]*####(.*)$", re.MULTILINE)
_PLAIN = re.compile(r"[-+]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)?(?:\.[0-9]+)?")
_BASED = re.compile(r"(-?[0-9A-Z]+(?:\.[0-9A-Z]+)?)(?:_(?:\{([0-9]+)\}|([0-9])))?")
_BARE_FRACTION = re.compile(r"\\([dt]?frac)\s*(\\[a-zA-Z]+|[0-9])\s*(\\[a-zA-Z]+|[0-9])(?![a-zA-Z{])")
_FRACTION = re.compile(
    r"(-?)\s*(?:\\[dt]?frac\s*\{\s*(-?[0-9]+)\s*\}\s*\{\s*(-?[0-9]+)\s*\}|\\[dt]?frac\s*([0-9])\s*([0-9])|([0-9]+)\s*/\s*([0-9]+))"
)
_UNIT = re.compile(r"\\(?:text|mbox|mathrm|textrm)\{\s*([a-zA-Z. ]+?)\s*\}\s*\^\{?([0-9])\}?$")
_WORDS = re.compile(r"[a-zA-Z]{2,}(?:\s+[a-zA-Z]{2,})+")
_MOST_DIGITS = 4000
"""Digits of a plain number; a longer one is not read as a number."""
_LONGEST = 500
"""Most characters of an answer that math-verify parses: the time grows fast with the length."""
_DEEPEST = 10
"""Deepest nesting of brackets that math-verify parses: the time doubles with each level."""
_FACTORIAL = re.compile(r"([0-9]{4,})\s*!")
_EXPLODES = re.compile(
    r"!\s*!|[({][^()a-zA-Z]*[)}]\s*!"  # a factorial of a factorial, or of numbers in brackets
    r"|\^\s*\{?\s*[0-9]{6,}"  # an exponent of six digits
    r"|[)}]\s*\^\s*\{?\s*[0-9]{3,}"  # an exponent of three digits on a bracket: simplifying expands the power
    r"|\^\s*\{[^{}]*[0-9]\}?\s*\^"  # a tower of powers
    r"|\^\s*\{?[0-9]+\}?\s*[)}]\s*\^"  # a power of a power
)


def gsm8k_solution(answer: str) -> str:
    """The canonical solution as a model should write it: without the calculator marks.

    GSM8K writes `48/2 = <<48/2=24>>24`. Everything from `<<` to the next `>>` on the same line is removed (`48/2 = 24` stays), and
    white space at the ends of lines.
    """
    lines = _CALCULATOR.sub("", answer).strip().split("\n")
    return "\n".join(line.rstrip() for line in lines)


def hash_answer(text: str) -> str | None:
    """The text after the last `####` on its line; None if there is none."""
    found = _HASHES.findall(text)
    return (found[-1].strip() or None) if found else None


def boxed_answer(text: str) -> str | None:
    r"""The content of the last `\boxed{...}` (or `\fbox{...}`, `\boxed 7`) of a text; None if it is missing or not closed."""
    start = max(text.rfind("\\boxed"), text.rfind("\\fbox"))
    if start < 0:
        return None
    rest = text[start:].removeprefix("\\boxed").removeprefix("\\fbox").lstrip()
    if not rest.startswith("{"):
        word = re.match(r"[^\s$\\.,]+", rest)
        return word[0] if word else None
    depth = 0
    for position, character in enumerate(rest):
        escaped = position > 0 and rest[position - 1] == "\\"
        depth += 0 if escaped else (character == "{") - (character == "}")
        if depth == 0:
            return rest[1:position].strip() or None
    return None


def number(answer: str) -> Decimal | None:
    """The value of a plain number: sign, digits, thousands separators, decimals; a currency or percent sign is allowed.

    >>> number("$1,080"), number("-3.50"), number("1,2"), number("x+1")
    (Decimal('1080'), Decimal('-3.50'), None, None)
    """
    text = answer.strip().replace("\\!", "").replace("\\,", "").replace("\\$", "$").replace("\\%", "%")
    negative = text.startswith("-")
    text = (
        text.removeprefix("-").strip().removeprefix("$").removesuffix("$").removesuffix("%").removesuffix(".").strip()
    )
    if not text or len(text) > _MOST_DIGITS or not _PLAIN.fullmatch(text) or not text[-1].isdigit():
        return None
    value = Decimal(text.replace(",", ""))
    return -value if negative else value


def rational(answer: str) -> Fraction | None:
    r"""The value of a plain number or of a fraction of integers.

    >>> rational("-\\dfrac{6}{4}"), rational("3/2"), rational("0.5"), rational("\\frac{x}{2}")
    (Fraction(-3, 2), Fraction(3, 2), Fraction(1, 2), None)
    """
    plain = number(answer)
    if plain is not None:
        return Fraction(plain)
    match = _FRACTION.fullmatch(answer.strip()) if len(answer) < 100 else None
    if match is None:
        return None
    top, bottom = next((match[i], match[i + 1]) for i in (2, 4, 6) if match[i] is not None)
    if int(bottom) == 0:
        return None
    return Fraction(int(top), int(bottom)) * (-1 if match[1] else 1)


def same_answer(gold: str, answer: str) -> bool:
    """Whether two answers, written without `####` or box, mean the same.

    Units, currency and percent signs are ignored, and so is a base that only one of the two writes.
    """
    gold, answer = gold.strip(), answer.strip()
    if gold == answer:
        return True
    gold_value, answer_value = rational(gold), rational(answer)
    if gold_value is not None and answer_value is not None:
        return gold_value == answer_value
    gold_based, answer_based = _BASED.fullmatch(gold), _BASED.fullmatch(answer)
    if gold_based and answer_based:  # math-verify ignores the base of `42_7`
        bases = {match[2] or match[3] for match in (gold_based, answer_based)} - {None}
        return gold_based[1] == answer_based[1] and len(bases) < 2
    units = _UNIT.search(gold), _UNIT.search(answer)
    if units[0] and units[1] and units[0][1] == units[1][1] and units[0][2] != units[1][2]:
        return False  # cm^2 and cm^3: math-verify drops units with their exponents
    if _too_large(gold) or _too_large(answer):
        return "".join(gold.split()) == "".join(answer.split())
    return _same_by_math_verify(gold, answer)


def _too_large(answer: str) -> bool:
    r"""Whether evaluating an answer could take seconds. Only common forms are recognised; the judge's limit ends the others.

    >>> [_too_large(text) for text in ("9^{9^{9}}", "(10^9)!", "(x+1)^{999}", "2^{2004}", "(n-1)!", "e^{-x^2}", r"1,\!000")]
    [True, True, True, False, False, False, False]
    """
    depth = deepest = 0
    for character in answer:
        depth += (character in "({[") - (character in ")}]")
        deepest = max(deepest, depth)
    return len(answer) > _LONGEST or deepest > _DEEPEST or _EXPLODES.search(answer) is not None


@lru_cache(1)
def _math_verify() -> tuple[Callable[..., Any], Callable[..., Any], list[Any]]:
    """math-verify's parse, verify and targets. Imported late, because it loads sympy and a grammar."""
    import logging

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its own time limits are off
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    return parse, verify, [LatexExtractionConfig(), ExprExtractionConfig()]


@lru_cache(20_000)
def _parsed(answer: str) -> list[Any]:
    parse, _, targets = _math_verify()
    answer = _BARE_FRACTION.sub(r"\\\1{\2}{\3}", answer)  # its grammar misreads `\frac \pi4`
    answer = _FACTORIAL.sub(r"k_{\1}", answer)  # a symbol, because 1/2004! and 1/2005! both round to 0
    found: list[Any] = parse(f"${answer}$", extraction_config=targets, parsing_timeout=None)
    return found


@lru_cache(50_000)
def _same_by_math_verify(gold: str, answer: str) -> bool:
    _, verify, _ = _math_verify()
    return bool(verify(_parsed(gold), _parsed(answer), timeout_seconds=None))


def gsm8k_answer(response: str) -> str | None:
    """The answer that `verify_gsm8k` judges; a plain number is normalised to its value."""
    return _by_value(hash_answer(response) or boxed_answer(response))


def math_answer(response: str) -> str | None:
    r"""The answer that `verify_math` judges; a plain number or fraction is normalised to its value."""
    return _by_value(boxed_answer(response))


def _by_value(answer: str | None) -> str | None:
    value = None if answer is None else rational(answer)
    return answer if value is None else str(value)


def prepare_judge() -> None:
    """Load math-verify before a judging process judges its first answer."""
    same_answer("x+x", "2x")


def _judge(gold: str, answer: str | None, form: str) -> Verdict:
    if answer is None:
        return Verdict(0.0, False, f"no answer found: expected {form}")
    right = same_answer(gold, answer)
    return Verdict(float(right), right, "" if right else f"answered {answer[:60]!r}, expected {gold[:60]!r}")


def verify_gsm8k(reference: str, response: str) -> Verdict:
    r"""Judge the last `#### n` of a response, or if there is none its last `\boxed{n}` (chat models prefer it)."""
    return _judge(reference, hash_answer(response) or boxed_answer(response), r"'#### n' or '\boxed{n}'")


def verify_math(reference: str, response: str) -> Verdict:
    r"""Judge the last `\boxed{...}` of a response."""
    return _judge(reference, boxed_answer(response), r"'\boxed{...}'")


def read_gsm8k(row: Row, columns: Columns, where: str) -> Item:
    """The item of a row whose `answer` is steps and `#### n`, or the bare number. Raises DataError."""
    answer = text_of(row, columns.answer, "answer", where)
    reference = hash_answer(answer) if "####" in answer else answer
    if reference is None or number(reference) is None:
        raise DataError(f"{where}: column {columns.answer!r} has no number after '####'; fix or delete the row")
    solution = solution_of(row, columns, where)
    prompt = text_of(row, columns.prompt, "prompt", where)
    return Item(prompt, reference, level_of(row, columns), solution and gsm8k_solution(solution))


def read_math(row: Row, columns: Columns, where: str) -> Item:
    r"""The item of a row whose `answer` is a whole solution with `\boxed{}`, or the bare gold answer. Raises DataError."""
    answer = text_of(row, columns.answer, "answer", where)
    reference = boxed_answer(answer) if "\\boxed" in answer or "\\fbox" in answer else answer
    if reference is None:
        raise DataError(f"{where}: column {columns.answer!r} has a \\boxed{{ that is not closed; fix or delete the row")
    if not _is_written(reference):
        raise DataError(
            f"{where}: column {columns.answer!r} has the gold answer {reference[:60]!r}, which no parser reads: braces that do not "
            f"match, no letter or digit, or words outside of \\text{{}}; fix or delete the row"
        )
    prompt = text_of(row, columns.prompt, "prompt", where)
    return Item(prompt, reference, level_of(row, columns), solution_of(row, columns, where))


def _is_written(answer: str) -> bool:
    r"""Whether an answer can be mathematics. Words outside of \text{} cannot: they would be read as products of letters.

    >>> [_is_written(text) for text in (r"\frac{1}{2}", r"\{1, 2\}", r"\text{see figure}", "}{", r"\frac{", "?", "see figure")]
    [True, True, True, False, False, False, False]
    """
    depth = 0
    for brace in re.findall(r"\\.|[{}]", answer):  # `\{` is a set's brace and does not count
        depth += (brace == "{") - (brace == "}")
        if depth < 0:
            return False
    return depth == 0 and any(sign.isalnum() for sign in answer) and not _WORDS.fullmatch(answer.strip())
