r"""Whether two answers mean the same: equal forms, and equal values of their parts. Invariants: symmetric except for
names (`3` answers `x = 3`, and `x = 3` answers `3`); equal texts are equal; nothing is evaluated whose size is not
bounded (`values.py`)."""

import re
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from tasks.code.compare import pair_off
from tasks.mathematics.characters import plain_characters
from tasks.mathematics.forms import Equation, Form, Group, Single, read_form
from tasks.mathematics.units import cents, units_agree
from tasks.mathematics.values import expression, number, proportional, rational, same_value

_BASED = re.compile(r"(-?[0-9A-Z]+(?:\.[0-9A-Z]+)?)(?:_(?:\{\s*(?:\\text\{)?([0-9a-z]+)\}?\s*\}|([0-9]+)))?")
_BASES = {
    "two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9",
    "sixteen": "16",
}  # fmt: skip
_SEPARATED = re.compile(r"(?<=[0-9]),(?=[0-9])")
_RATIO = re.compile(r"([0-9]{1,30})((?:\s*:\s*[0-9]{1,30})+)")
_CLOCK = re.compile(
    r"([0-9]{1,2})(?:\s*:\s*([0-5][0-9])(?:\s*:\s*([0-5][0-9]))?)?\s*"
    r"(?:(?:\\text\s*\{)?\s*([ap])\.?\s*m\.?\s*\}?)?",
    re.IGNORECASE,
)
_WORD = re.compile(r"\\text|(?<![a-zA-Z\\])[a-zA-Z]{4,}")
_IN_TEXT = re.compile(r"\\text\s*\{[^{}]*\}")
_BARE_WORD = re.compile(r"(?<![a-zA-Z\\])[a-zA-Z]{4,}")
_HYPHEN = re.compile(r"(?<=[a-zA-Z]{2})-(?=[a-zA-Z]{2})")
_OPERATES = re.compile(
    r"[-+*/^_=|]|\\(?!angle|triangle|overline|overrightarrow|vec|[lc]?dots|bar|hat|prime|infty)[a-zA-Z]+"
)
_BLANKS = re.compile(r"(?<![0-9.]) | (?![0-9.])")
_INSIDE_NUMBER = re.compile(r"(?<=[0-9])(?:\s+|[.,:/])(?=[0-9])")
_COMPARES = re.compile(r"[<>=]|\\(?:ne|not|le|ge|approx|sim)(?![a-zA-Z])")
_OF_NUMBERS = re.compile(  # functions that `expression` lacks; an answer has no degree signs any more
    r"\\(?:gcd|max|min|(?:operatorname|text|mathrm)\{(?:gcd|lcm|max|min)\})\([-0-9.,]+\)"
    r"|\\lfloor-?[0-9.]+\\rfloor|\\lceil-?[0-9.]+\\rceil|\\(?:sin|cos|tan|cot|sec|csc)\(?-?[0-9.]+\)?"
)
_LONGEST = 2000  # most characters of an answer that is taken apart; longer ones are compared as texts


def same_answer(gold: str, answer: str) -> bool:
    """Whether two answers, written without `####` or box, mean the same. Currency, degree and percent signs are
    ignored, and so are a unit or a base that only one of the two writes."""
    gold, answer = plain_characters(gold).strip(), plain_characters(answer).strip()
    if _same_text(gold, answer):
        return True
    if max(len(gold), len(answer)) > _LONGEST:
        plain = number(gold)
        return plain is not None and plain == number(answer)
    values = rational(gold), rational(answer)
    if None not in values and "%" not in gold + answer:
        return values[0] == values[1]
    based = _BASED.fullmatch(gold), _BASED.fullmatch(answer)
    if based[0] and based[1]:
        bases = {_BASES.get(base, base) for match in based if match and (base := match[2] or match[3])}
        return based[0][1] == based[1][1] and len(bases) < 2
    first, second = read_form(gold), read_form(answer)
    if _same_form(first, second):
        return True
    return "," in gold + answer and _same_form(*(read_form(_SEPARATED.sub(", ", text)) for text in (gold, answer)))


def _same_form(gold: Form, answer: Form) -> bool:
    if isinstance(gold, Equation) or isinstance(answer, Equation):
        return _same_equation(gold, answer)
    if isinstance(gold, Group) and isinstance(answer, Group):
        return _same_group(gold, answer)
    if isinstance(gold, Group):
        return gold.opening == "{" and len(gold.parts) == 1 and _same_form(gold.parts[0], answer)
    if isinstance(answer, Group):
        return answer.opening == "{" and len(answer.parts) == 1 and _same_form(gold, answer.parts[0])
    return _same_single(gold, answer)


def _same_equation(gold: Form, answer: Form) -> bool:
    if isinstance(gold, Equation) and isinstance(answer, Equation):
        if gold.name == answer.name and gold.name:
            return all(_same_form(gold.parts[-1], part) for part in answer.parts)
        return _same_curve(gold, answer)
    if isinstance(gold, Equation):
        return gold.assigns and _same_form(gold.parts[-1], answer)
    assert isinstance(answer, Equation)
    return _says_value(answer) and all(_same_form(gold, part) for part in answer.parts)


def _says_value(equation: Equation) -> bool:
    r"""Whether an equation says the value of what was asked: `x = 9`, `f(2) = 9`, `2 + 7 = 9`, `\gcd(18, 27) = 9` do;
    `2x = 9` and `10 = 9` do not."""
    name = equation.name
    if (
        equation.assigns
        or not re.search(r"[0-9]", re.sub(r"[\^_]\{?[0-9]+\}?", "", name))
        or _OF_NUMBERS.fullmatch(name)
    ):
        return True
    left = expression(name)
    return left is not None and all(_same_form(Single(name), part) for part in equation.parts)


def _same_curve(gold: Equation, answer: Equation) -> bool:
    """Whether two equations differ by a factor only."""
    differences = []
    for equation in (gold, answer):
        if len(equation.parts) != 1 or not isinstance(equation.parts[0], Single):
            return False
        left, right = expression(equation.name), expression(equation.parts[0].text)
        if left is None or right is None:
            return False
        differences.append(left - right)
    return proportional(*differences)


def _same_group(gold: Group, answer: Group) -> bool:
    # 1, 2 says the same as {1, 2}
    brackets = [(group.opening or "{", group.closing or "}") for group in (gold, answer)]
    if brackets[0] != brackets[1] or len(gold.parts) != len(answer.parts):
        return False
    if gold.ordered:
        return all(_same_form(*pair) for pair in zip(gold.parts, answer.parts, strict=True))
    return pair_off(answer.parts, gold.parts, lambda part, of_gold: _same_form(of_gold, part))


def _same_single(gold: Single, answer: Single) -> bool:
    times = _clock(gold), _clock(answer)
    if times[0] and times[1]:
        return _same_time(times[0], times[1])
    money = cents(gold.unit), cents(answer.unit)
    first, second = rational(gold.text), rational(answer.text)
    if money[0] and money[1] and money[0] != money[1]:
        return first is not None and second is not None and first * money[0] == second * money[1]
    if _same_text(gold.text + gold.unit, answer.text + answer.unit):
        return True  # 5 g, of which one reads g as a symbol
    if not units_agree(gold.unit, answer.unit):
        return False
    if _same_text(gold.text, answer.text):
        return True
    if first is not None and second is not None:
        scale = Fraction(100) if gold.percent else Fraction(1, 100)
        return first == second or (gold.percent != answer.percent and first == second * scale)
    ratios = _RATIO.fullmatch(gold.text), _RATIO.fullmatch(answer.text)
    if ratios[0] and ratios[1]:
        return not any(time and time.certain for time in times) and _same_ratio(gold.text, answer.text)
    if _WORD.search(gold.text) or _WORD.search(answer.text) or None not in ratios:
        if _OPERATES.search(_without_text(gold.text)) or _OPERATES.search(_without_text(answer.text)):
            return _same_formula(gold.text, answer.text)
        return _words(gold) == _words(answer) != ""
    import sympy  # imported here, because it takes a second that most answers do not need

    left, right = (  # `expression` would read the e of 1e3 as Euler's number
        expression(text) if value is None else sympy.Rational(value.numerator, value.denominator)
        for text, value in ((gold.text, first), (answer.text, second))
    )
    return left is not None and right is not None and same_value(left, right)


def _same_ratio(gold: str, answer: str) -> bool:
    first, second = (tuple(map(int, text.split(":"))) for text in (gold, answer))
    return len(first) == len(second) and all(
        a * d == b * c for (a, b), (c, d) in zip(pairwise(first), pairwise(second), strict=True)
    )


class _Time(NamedTuple):
    hour: int
    minutes: tuple[int, int]  # and seconds
    half: str  # a or p, '' for none
    certain: bool  # no ratio looks like it


def _clock(answer: Single) -> _Time | None:
    """The time of a clock, with minutes or a half of the day; None for anything else, such as `3:4` and `30:45`."""
    match = _CLOCK.fullmatch(f"{answer.text} {answer.unit}".strip())
    if match is None or not (match[2] or match[4]) or int(match[1]) > 24:
        return None
    half, minute = (match[4] or "").lower(), match[2] or "00"
    return _Time(int(match[1]), (int(minute), int(match[3] or 0)), half, bool(half) or minute[0] == "0")


def _same_time(gold: _Time, answer: _Time) -> bool:
    if gold.minutes != answer.minutes:
        return False
    if bool(gold.half) == bool(answer.half):
        return gold.half == answer.half and (
            gold.hour == answer.hour or (bool(gold.half) and (gold.hour - answer.hour) % 12 == 0)
        )
    halved, other = (gold, answer) if gold.half else (answer, gold)
    return other.hour in (halved.hour, halved.hour % 12 + (12 if halved.half == "p" else 0))


def _same_text(gold: str, answer: str) -> bool:
    return _close(gold) == _close(answer)


def _close(text: str) -> str:
    """Without blanks but those inside numbers: `1 2` is not 12."""
    return _BLANKS.sub("", " ".join(text.split()))


def _without_text(text: str) -> str:
    return _HYPHEN.sub("", _IN_TEXT.sub("w", text))


def _same_formula(gold: str, answer: str) -> bool:
    r"""Whether formulas over words are the same, such as `\frac{\text{distance}}{\text{time}}`: a word is a symbol."""
    names: dict[str, int] = {}

    def _symbol(word: re.Match[str]) -> str:
        letters = re.sub("[^a-z0-9]", "", word[0].removeprefix(r"\text").lower())
        return f" w_{{{names.setdefault(letters, len(names))}}} "

    texts = [_BARE_WORD.sub(_symbol, _IN_TEXT.sub(_symbol, text)) for text in (gold, answer)]
    first, second = map(expression, texts)
    if first is None or second is None:
        return _close(texts[0]) == _close(texts[1])
    return same_value(first, second)


def _words(answer: Single) -> str:
    if _COMPARES.search(answer.text):
        return ""
    text = _INSIDE_NUMBER.sub("_", answer.text)
    letters = re.sub(r"\\text|\\[a-zA-Z]+|[^a-zA-Z0-9_]", "", text + answer.unit)
    return letters.lower() if len(letters) > 1 else letters
