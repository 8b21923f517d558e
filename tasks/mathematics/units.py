r"""Units and words behind a number: `3\text{ cm}^2`, `20 km/h`, `5 million`. Units that are not known, such as `ways`,
are ignored; words that change the number (`million`, `hundredths`, `squared`) are part of its value."""

import re
from fractions import Fraction

_NAMES = (
    "mm millimeter millimetre", "cm centimeter centimetre", "m meter metre", "km kilometer kilometre", "in inch inche",
    "ft foot feet", "yd yard", "mi mile", "mg milligram", "g gram", "kg kilogram kilo", "lb pound", "oz ounce",
    "s sec second", "ms millisecond", "min minute", "h hr hour", "day", "week wk", "month", "year yr",
    "ml milliliter millilitre", "l liter litre", "gal gallon", "dollar usd buck", "cent", "celsiu", "fahrenheit",
    "n newton", "j joule", "w watt", "kw kilowatt", "pa pascal", "hz hertz", "mol mole", "acre", "hectare ha",
)  # fmt: skip
_KNOWN = {name: names.split()[0] for names in _NAMES for name in names.split()}
_COMPOUND = {"mph": "mi/h", "kph": "km/h", "kmh": "km/h", "kmph": "km/h", "fps": "ft/s", "mps": "m/s", "cc": "cm^3"}
_SHORT = "usd eur gbp cad aud inr cny jpy men kids cats dogs eggs pens cups boys bags units ways"
_BARE = (
    "cm|mm|km|kg|mg|ml|ft|feet|foot|in|inch|inches|yd|yards?|miles?|mi|meters?|metres?|grams?|liters?|litres?|hours?|hrs?|"
    "minutes?|mins?|seconds?|secs?|days?|weeks?|months?|years?|dollars?|cents?|mph|units?|lbs?|pounds?|ounces?|oz|ways?"
)
_PARTS = "half|third|quarter|fourth|fifth|sixth|seventh|eighth|ninth|tenth"
_SCALES: dict[str, Fraction] = {
    **{"ten": Fraction(10), "dozen": Fraction(12), "gross": Fraction(144), "hundred": Fraction(100)},
    **{"thousand": Fraction(10**3), "k": Fraction(10**3), "lakh": Fraction(10**5), "crore": Fraction(10**7)},
    **{"million": Fraction(10**6), "mln": Fraction(10**6), "billion": Fraction(10**9), "bn": Fraction(10**9)},
    **{"trillion": Fraction(10**12), "quadrillion": Fraction(10**15)},
    **{part: Fraction(1, size) for part, size in zip(_PARTS.split("|"), (2, 3, 4, 4, 5, 6, 7, 8, 9, 10), strict=True)},
    **{"halve": Fraction(1, 2), "hundredth": Fraction(1, 100), "thousandth": Fraction(1, 1000)},
    **{"millionth": Fraction(1, 10**6), "billionth": Fraction(1, 10**9)},
}
_NO_UNIT = (
    "or and not no to plus minus times factorial mod modulo over choose than least most less if when except "
    "unless recurring repeating repeated inverse reciprocal root is are equals be of mean false wrong infinity "
    "undefined pi sin cos tan sec csc cot log exp sqrt alpha beta gamma delta theta lambda sigma omega phi"
)
"""Words that say more than a unit does."""
_CONTENT = r"[a-zA-Z](?:[a-zA-Z ./-]|\\cdot|\^\s*\{?\s*-?[0-9]\s*\}?)*"
_POWER = r"(?:\s*\^\s*\{?\s*-?[0-9]\s*\}?)?"
_ONE = rf"\\text\s*\{{\s*{_CONTENT}\s*\}}{_POWER}"
_VALUE = r"(?P<value>.*?[0-9a-zA-Z}\)!%|])"
_WRITTEN = re.compile(
    rf"{_VALUE}\s*(?P<unit>(?:/\s*)?{_ONE}(?:\s*(?:\\cdot\s*|/\s*)?{_ONE})*)",
    re.DOTALL,
)
_INSIDE = re.compile(r"\\text\s*\{\s*(-?[0-9.,/]*[0-9])\s+([a-zA-Z]+)\s*\}")
_UNWRITTEN = re.compile(
    rf"{_VALUE}(?:\s*(?<![a-zA-Z\\])(?P<unit>(?:sq(?:uare|\.)? |cu(?:bic|\.)? )?(?:{_BARE}){_POWER})|"
    rf"(?<=[0-9}}\)!%|])\s+(?P<words>[a-zA-Z]+(?:[ /]+[a-zA-Z]+{_POWER})*))",
    re.DOTALL,
)
_FACTOR = re.compile(r"(/|\bper\b)|([a-z]+)\.?(?:\s*\^\s*\{?\s*(-?[0-9])\s*\}?)?")
_LONGEST = 120  # most characters of a text in which a unit is looked for


def split_unit(text: str) -> tuple[str, str]:
    r"""The value and the unit of a text, the unit in small letters; the text and '' where it has none.

    >>> split_unit(r"3 \text{ cm}^2"), split_unit("20 km/h"), split_unit("5 or more"), split_unit(r"x\text{ if }y")
    (('3', 'cm^2'), ('20', 'km/h'), ('5 or more', ''), ('x\\text{ if }y', ''))
    """
    if len(text) > _LONGEST:
        return text, ""
    inside = _INSIDE.fullmatch(text)  # `\text{18 cm}`
    if inside and _name(inside[2].lower()):
        return inside[1], inside[2].lower()
    match = _WRITTEN.fullmatch(text) or _UNWRITTEN.fullmatch(text)
    if match is None or not (re.search("[0-9]", match["value"]) or match["value"].endswith(("}", "!"))):
        return text, ""
    words = match.groupdict().get("words")
    unit = re.sub(r"\\text|\\cdot|[{}]", " ", words or match["unit"])
    unit = " ".join(unit.lower().split()).replace(" ^", "^").replace("^ ", "^").strip(" .")
    says = re.findall("[a-z]+", unit)
    if (
        not says
        or not set(_NO_UNIT.split()).isdisjoint(says)
        or r"\text" in match["value"]
        or (words and not _is_unit(words))
    ):
        return text, ""
    return match["value"].strip(), unit


def _is_unit(words: str) -> bool:
    """Whether words without `\\text` are no product of symbols: known units, or words of English."""
    each = [word.lower() for word in re.findall("[a-zA-Z]+", words)]
    known = [_name(word) is not None or word in _COMPOUND or word in _SHORT.split() or word in _SCALES for word in each]
    if "/" in words:
        return all(is_known or len(word) > 3 for word, is_known in zip(each, known, strict=True))
    english = ((is_known and len(word) > 1) or _is_word(word) for word, is_known in zip(each, known, strict=True))
    return all(len(word) > 1 for word in each) and next(english)


def _is_word(word: str) -> bool:
    return len(word) > 3 and re.search("[aeiou]", word) is not None


def _name(word: str) -> str | None:
    return _KNOWN.get(word, _KNOWN.get(word.removesuffix("s")))


def scale(unit: str) -> tuple[Fraction, int, str]:
    """What the first words of a unit do to its number: factor and exponent; and the rest of the unit.

    >>> scale("million dollars"), scale("squared"), scale("cm^2")
    ((Fraction(1000000, 1), 1, 'dollars'), (Fraction(1, 1), 2, ''), (Fraction(1, 1), 1, 'cm^2'))
    """
    factor, power, words = Fraction(1), 1, unit.split()
    while words:
        by = _SCALES.get(words[0], _SCALES.get(words[0].removesuffix("s")))
        raised = {"squared": 2, "cubed": 3}.get(words[0])
        if by is None and raised is None:
            break
        factor, power, words = factor * (by or 1), power * (raised or 1), words[1:]
    return factor, power, " ".join(words).removeprefix("of ").removeprefix("a ")


def units_agree(gold: str, answer: str) -> bool:
    r"""Whether two units may be the same. Units that are not known, such as `ways`, and signs of a currency agree with
    all, but a currency's sign not with cents."""
    if not gold or not answer or "$" in (gold, answer):
        return True
    (first, power), (second, other) = _factors(gold), _factors(answer)
    return power == other and (first is None or second is None or first == second)


def cents(unit: str) -> int | None:
    """How many cents the unit is; None for what is neither dollars nor cents."""
    return 100 if unit == "$" else {"dollar": 100, "cent": 1}.get(_name(unit) or "")


def _factors(unit: str) -> tuple[dict[str, int] | None, int]:
    """The powers of the known units in a unit, None if one is not known; and the power of the first."""
    unit = " ".join(_COMPOUND.get(word, word) for word in unit.removeprefix("degrees ").split())
    found: dict[str | None, int] = {}
    first = last = None
    next_power, sign = 1, 1
    for match in _FACTOR.finditer(unit):
        word = match[2]
        if match[1]:
            sign = -1
        elif word in ("square", "sq", "cubic", "cu"):
            next_power = 2 if word[0] == "s" else 3
        elif word in ("squared", "cubed") and last is not None:
            found[last[0]] = last[1] * (2 if word[0] == "s" else 3)
        else:
            power = sign * int(match[3] or next_power)
            last = (_name(word), power)
            found[last[0]] = found.get(last[0], 0) + power
            first, next_power, sign = first or last[0] or word, 1, 1
    known = {name: power for name, power in found.items() if name is not None}
    start = found.get(first if first in found else None, 1)
    return (None if None in found or not found or unit.startswith(("/", "per ")) else known), start
