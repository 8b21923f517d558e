r"""Whether two answers mean the same: equal forms, and equal values of their parts. Invariants: symmetric except for
names (`3` answers `x = 3`, and `x = 3` answers `3`); equal texts are equal; nothing is evaluated whose size is not
bounded (`values.py`)."""

import re

from tasks.code.compare import pair_off
from tasks.mathematics.forms import Equation, Form, Group, Single, read_form
from tasks.mathematics.values import expression, number, proportional, rational, same_value

_BASED = re.compile(r"(-?[0-9A-Z]+(?:\.[0-9A-Z]+)?)(?:_(?:\{\s*(?:\\text\{)?([0-9a-z]+)\}?\s*\}|([0-9]+)))?")
_BASES = {
    "two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9",
    "sixteen": "16",
}  # fmt: skip
_SEPARATED = re.compile(r"(?<=[0-9]),(?=[0-9])")
_RATIO = re.compile(r"[0-9]+(?:\s*:\s*[0-9]+)+")
_CLOCK = re.compile(r"[0-9]{1,2}(?:\s*:\s*[0-5][0-9])+")
_WORD = re.compile(r"\\text|(?<![a-zA-Z\\])[a-zA-Z]{4,}")
_NEGATIVE = re.compile(r"(?<![a-zA-Z0-9])-(?=[\s({]*(?:\\text\s*\{\s*)?[0-9.])")
_HYPHEN = re.compile(r"(?<=[a-zA-Z])-(?=[a-zA-Z])")
_BLANKS = re.compile(r"(?<![0-9])\s+|\s+(?![0-9])")
_COMPARES = re.compile(r"[<>=]|\\(?:ne|not|le|ge|approx|sim)(?![a-zA-Z])")
_LONGEST = 2000  # most characters of an answer that is taken apart; longer ones are compared as texts
_UNITS = (
    "mm millimeter millimetre", "cm centimeter centimetre", "m meter metre", "km kilometer kilometre", "in inch inche",
    "ft foot feet", "yd yard", "mi mile", "g gram", "kg kilogram", "lb pound", "oz ounce", "s sec second", "min minute",
    "h hr hour", "day", "week", "month", "year yr", "dollar usd", "cent", "mph", "l liter litre", "ml milliliter",
    "celsius", "fahrenheit", "am a.m", "pm p.m",
)  # fmt: skip
_UNIT_NAMES = {name: number for number, names in enumerate(_UNITS) for name in names.split()}


def same_answer(gold: str, answer: str) -> bool:
    """Whether two answers, written without `####` or box, mean the same. Currency, degree and percent signs are
    ignored, and so are a unit or a base that only one of the two writes."""
    gold, answer = gold.strip(), answer.strip()
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
    if re.search(r"[0-9]", re.sub(r"[\^_]\{?[0-9]+\}?", "", answer.name)):
        return False  # 2x = 9 does not say 9
    return all(_same_form(gold, part) for part in answer.parts)


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
    if not _units_agree(gold.unit, answer.unit):
        return False
    if _same_text(gold.text, answer.text):
        return True
    first, second = rational(gold.text), rational(answer.text)
    if first is not None and second is not None:
        return first == second or (gold.percent != answer.percent and first == second * (100 if gold.percent else 0.01))
    ratios = _RATIO.fullmatch(gold.text), _RATIO.fullmatch(answer.text)
    if ratios[0] and ratios[1]:
        return _same_ratio(gold.text, answer.text)
    if _WORD.search(gold.text) or _WORD.search(answer.text):
        return _words(gold) == _words(answer) != ""
    left, right = expression(gold.text), expression(answer.text)
    return left is not None and right is not None and same_value(left, right)


def _same_ratio(gold: str, answer: str) -> bool:
    """Whether two ratios differ by a factor only. What may be times of a clock, as 2:30 and 1:15, must be equal."""
    first, second = (tuple(map(int, text.split(":"))) for text in (gold, answer))
    if len(first) != len(second):
        return False
    if _CLOCK.fullmatch(gold) and _CLOCK.fullmatch(answer):
        return first == second
    return all(a * second[0] == b * first[0] for a, b in zip(first, second, strict=True))


def _same_text(gold: str, answer: str) -> bool:
    """Blanks do not count, but between two digits: 1 2 is not 12."""
    return _BLANKS.sub("", gold.strip()) == _BLANKS.sub("", answer.strip())


def _words(answer: Single) -> str:
    """The words of an answer, without fonts, blanks and marks of a sentence. Signs and brackets of a formula stay."""
    if _COMPARES.search(answer.text):
        return ""
    text = _NEGATIVE.sub("minus", answer.text)
    text = _HYPHEN.sub("", re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", text)) + answer.unit
    words = re.sub(r"[\s.,;:'\"!?{}$]|\\text", "", text)
    words = words[1:-1] if re.fullmatch(r"\([^()]*\)", words) else words
    return words.lower() if len(words) > 1 else words


def _units_agree(gold: str, answer: str) -> bool:
    r"""Whether two units may be the same: units that are not known, such as `ways`, are ignored."""
    if not gold or not answer:
        return True
    (first, power), (second, other) = (_unit(unit) for unit in (gold, answer))
    return power == other and (first is None or second is None or first == second)


def _unit(unit: str) -> tuple[int | None, str]:
    base, _, power = unit.partition("^")
    for words, meant in (("square ", "2"), ("sq. ", "2"), ("sq ", "2"), ("cubic ", "3"), ("cu. ", "3"), ("cu ", "3")):
        if base.startswith(words):
            base, power = base.removeprefix(words), meant
    return _UNIT_NAMES.get(base.strip(" ."), _UNIT_NAMES.get(base.strip(" .").removesuffix("s"))), power or "1"
