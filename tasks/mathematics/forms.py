r"""The form of an answer: an expression, words, or a list, set, tuple, interval, union, matrix of such, perhaps named.
Pure text, no values. Invariant: brackets are part of the form, so a tuple is no set and an open interval no closed one.
An inequality becomes the interval that it describes."""

import re
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from tasks.mathematics.notation import closing, plain_notation
from tasks.mathematics.values import rational


@dataclass(frozen=True, slots=True)
class Single:
    """One expression, or words."""

    text: str
    unit: str = ""  # 'cm^2' of `3 \text{ cm}^2`
    percent: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """Several parts between brackets."""

    opening: str  # '' for a list without brackets, 'union' for a union of intervals, 'matrix' and 'row'
    closing: str
    parts: tuple["Form", ...]

    @property
    def ordered(self) -> bool:
        """Whether the order of the parts matters: not in a list, a set or a union."""
        return self.opening not in ("", "{", "union")


@dataclass(frozen=True, slots=True)
class Equation:
    """`x = 3` and chains `x = 1 + 2 = 3`. Its value are its parts but the first, which must all be equal."""

    name: str
    parts: tuple["Form", ...]
    assigns: bool  # whether the name is one symbol, so that its value alone says the same


Form = Single | Group | Equation

_MATRIX = re.compile(r"\\begin\{([pbB]?matrix|smallmatrix|array)\}(?:\{[lcr|]*\})?(.*)\\end\{\1\}", re.DOTALL)
_MATRIX_BRACKETS = re.compile(
    r"^(?:\(|\[|\\\{)?\s*(\\begin\{(?:small)?(?:matrix|array)\}.*\\end\{(?:small)?(?:matrix|array)\})\s*(?:\)|\]|\\\})?$",
    re.DOTALL,
)
_AND = re.compile(
    r"\s*,?\s*\\text\{\s*,?\s*(?:and|or)\s*,?\s*\}\s*,?\s*|\s*,?\s+(?:and|or)\s+|(?<=[0-9}]),?\s*(?:and|or)\s*(?=[-0-9\\])|\\(?:vee|lor)(?![a-zA-Z])"
)
_BETWEEN = re.compile(r"(<|>|\\le(?![a-zA-Z])|\\ge(?![a-zA-Z]))")
_SYMBOL = re.compile(
    r"\\?[a-zA-Z]+(?:_\{?[a-zA-Z0-9]+\}?)?'?|[a-zA-Z]\^\{-1\}\([a-z]\)|[a-zA-Z]\([a-zA-Z0-9,]+\)|\\text\{[a-zA-Z ]+\}"
)
_REALS = re.compile(
    r"\\mathbb\s*\{?R\}?|\\text\{\s*all real numbers\s*\}|all real numbers|\\R(?![a-zA-Z])", re.IGNORECASE
)
_PUNCTURED = re.compile(
    rf"(?:{_REALS.pattern})\s*(?:\\(?:setminus|smallsetminus|backslash)|-)\s*\\\{{(.*)\\\}}", re.I | re.S
)
_NEGATED = re.compile(r"-\(\s*[0-9.][^()+-]*\)")  # -(864 \text{ inches})
_THOUSANDS = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9,])")
_UNITS = (
    "cm|mm|km|kg|mg|ml|ft|feet|foot|in|inch|inches|yd|yards?|miles?|mi|meters?|metres?|grams?|liters?|litres?|hours?|hrs?|"
    "minutes?|mins?|seconds?|secs?|days?|weeks?|months?|years?|dollars?|cents?|mph|units?|lbs?|pounds?|ounces?|oz|ways?|"
    "[ap]\\.?m\\b\\.?|[AP]\\.?M\\b\\.?"
)
_SCALES: dict[str, Fraction | int] = {
    **{"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12},
    **{"tenth": Fraction(1, 10), "hundredth": Fraction(1, 100), "thousandth": Fraction(1, 1000)},
}
_POWERS = {"squared": 2, "cubed": 3}
_SCALED = re.compile(
    rf"(?P<value>.*?[0-9}}])\s*(?P<text>\\text\s*\{{)?\s*(?P<word>{'|'.join((*_SCALES, *_POWERS))})s?(?![a-zA-Z])"
    r"\s*(?P<rest>.*)",
    re.DOTALL | re.IGNORECASE,
)
_NO_UNIT = re.compile(
    r"\b(?:pi|sqrt|mod|modulo|or|and|to|plus|minus|times|over|divided|by|of|log|ln|if|for|when|where|is|not|the|choose|"
    r"base|percent|degrees?|half|halves|thirds?|fourths?|quarters?|fifths?)\b",
    re.IGNORECASE,
)
_PLAIN_UNIT = re.compile(
    r"(?P<value>-?[0-9][0-9.,/]*|.*\})\s+(?P<unit>[a-zA-Z]{2,}\.?(?:\s+[a-zA-Z]{2,}\.?|\s*/\s*[a-zA-Z]+)*|[a-zA-Z]+\s*/\s*[a-zA-Z]+)"
)
_TEXT_UNITS = re.compile(
    r"(?P<value>.*?[0-9}])\s*(?P<unit>(?:\\text\s*\{(?:[^{}]|\{[^{}]*\})*\}\s*(?:\^\s*(?:\{\s*-?[0-9]+\s*\}|[0-9]))?\s*(?:\\cdot|/)?\s*)+)",
    re.DOTALL,
)
_UNIT = re.compile(
    rf"(?P<value>.*?[0-9a-zA-Z}}\)!%])\s*(?:\\text\{{\s*(?P<text>[a-zA-Z][a-zA-Z "
    rf"./]*?)\s*\.?\s*\}}|(?<![a-zA-Z\\])(?P<bare>(?:sq(?:uare|\.)? |cu(?:bic|\.)? )?(?:{_UNITS})))\s*"
    r"(?P<slash>/\s*\\text\{[a-z]+\})?\s*(?:\^\s*\{?(?P<power>[0-9])\}?)?",
    re.DOTALL,
)


def read_form(answer: str) -> Form:
    r"""The form of an answer as a model or a data set writes it.

    >>> read_form("x = 3").parts, read_form(r"1 \le x < 5").parts == (read_form("[1, 5)"),), read_form("1, 2").opening
    ((Single(text='3', unit='', percent=False),), True, '')
    """
    return _read(plain_notation(answer))


def _read(text: str) -> Form:
    if (rays := _punctured(text)) is not None:
        return rays
    text = _unwrapped(_REALS.sub(r"(-\\infty ,\\infty )", text).strip())
    matrix = _matrix(text)
    if matrix is not None:
        return matrix
    bracketed = re.search(r"[(\[]|\\\{", text)
    joined = text if bracketed else _THOUSANDS.sub(lambda digits: digits[0].replace(",", ""), text)
    parts = [part for part in _split(_AND.sub(",", joined), ",;") if part.strip()]
    if len(parts) > 1:
        forms = tuple(_read(part) for part in parts)
        if all(_is_interval(form) for form in forms) and _BETWEEN.search(text):
            return Group("union", "", forms)  # x < 1 or x > 2
        return Group("", "", forms)
    text = parts[0].strip() if parts else text
    pieces = _split(text.replace(r"\cup", "∪"), "∪")
    if len(pieces) > 1:
        return Group("union", "", tuple(_read(piece) for piece in pieces))
    return _relation(text) or _brackets(text) or _plus_minus(text) or _single(text)


def _unwrapped(text: str) -> str:
    """Without braces, and without round brackets that enclose everything and hold no comma."""
    while True:
        if (text.startswith("{") and closing(text, 0) == len(text) - 1) or (
            text.startswith("(") and text.endswith(")") and len(_split(text[1:-1], ",")) == 1 and _encloses(text)
        ):
            text = text[1:-1].strip()
        elif _NEGATED.fullmatch(text):
            text = f"-{text[2:-1].strip()}"
        else:
            return text


def _encloses(text: str) -> bool:
    depth = 0
    for place, character in enumerate(text):
        depth += (character in "([") - (character in ")]")
        if depth <= 0:
            return place == len(text) - 1
    return False


def _split(text: str, separators: str) -> list[str]:
    """The parts between separators that stand outside of all brackets and environments."""
    parts, depth, begun = [], 0, 0
    for match in re.finditer(r"\\begin|\\end|\\[{}]|[()\[\]{}]|[" + separators + "]", text):
        token = match[0]
        if token in separators:
            if depth == 0:
                parts.append(text[begun : match.start()])
                begun = match.end()
        else:
            depth += 1 if token in (r"\begin", r"\{", "(", "[", "{") else -1
    return [*parts, text[begun:]]


def _matrix(text: str) -> Group | None:
    bare = _MATRIX_BRACKETS.fullmatch(text)
    match = _MATRIX.fullmatch(bare[1] if bare else text)
    if match is None or r"\begin" in match[2]:
        return None
    rows = [row for row in re.split(r"\\\\(?:\[[^\]]*\])?", match[2]) if row.strip()]
    cells = (tuple(_read(cell.strip()) for cell in row.split("&")) for row in rows)
    return Group("matrix", "", tuple(Group("row", "", row) for row in cells))


def _relation(text: str) -> Form | None:
    r"""`=`, `\in`, `\ne` and inequalities; None for anything else."""
    sides = [side.strip() for side in _split(text, "=")]
    if len(sides) > 1:
        compares = re.search(r"<|>|\\(?:le|ge|ne|approx|not)(?![a-zA-Z])|!$", text)
        return _equation(sides) if all(sides) and not compares else None
    member = re.fullmatch(r"(.*?)\\in(?![a-zA-Z])(.*)", text, re.DOTALL)
    if member and _SYMBOL.fullmatch(member[1].strip()):
        return Equation(member[1].strip(), (_read(member[2].strip()),), assigns=True)
    unequal = re.fullmatch(r"(.*?)\\ne(?![a-zA-Z])(.*)", text, re.DOTALL)
    if unequal and _SYMBOL.fullmatch(unequal[1].strip()) and unequal[2].strip():
        return Equation(unequal[1].strip(), (_without_points([unequal[2].strip()]),), assigns=True)
    return _interval(_BETWEEN.split(text))


def _punctured(text: str) -> Group | None:
    r"""`\mathbb{R} \setminus \{a, b\}` as a union of intervals; None for anything else."""
    match = _PUNCTURED.fullmatch(text.strip())
    return _without_points([part.strip() for part in _split(match[1], ",;")]) if match and match[1].strip() else None


def _without_points(points: list[str]) -> Group:
    """The real numbers without some points. Points that are not plain numbers stay in their order."""
    values = [rational(point) for point in points]
    if all(value is not None for value in values):
        points = [point for _, point in sorted(zip(values, points, strict=True))]  # type: ignore[type-var]
    ends = [Single(r"-\infty"), *map(_read, points), Single(r"\infty")]
    return Group("union", "", tuple(Group("(", ")", pair) for pair in pairwise(ends)))


def _equation(sides: list[str]) -> Equation:
    if not _SYMBOL.fullmatch(sides[0]) and _SYMBOL.fullmatch(sides[-1]):
        sides.reverse()  # 3 = x
    if not _has_letters(sides[0]) and _has_letters(sides[-1]):
        sides.reverse()  # 4 = x^2 + y^2
    named = _has_letters(sides[0])
    name = sides[0].replace(" ", "") if named else ""
    return Equation(
        name, tuple(_read(side) for side in (sides[1:] if named else sides)), bool(_SYMBOL.fullmatch(sides[0]))
    )


def _has_letters(side: str) -> bool:
    return re.search(r"[a-zA-Z]", re.sub(r"\\(?:frac|sqrt|cdot|pi|times)", "", side)) is not None


def _is_interval(form: Form) -> bool:
    inner = form.parts[0] if isinstance(form, Equation) else form
    return isinstance(inner, Group) and (
        inner.opening == "union" or (len(inner.parts) == 2 and inner.opening in ("(", "["))
    )


def _interval(pieces: list[str]) -> Equation | None:
    """The interval of `a < x <= b`, `x > a`, `a > x`: pieces alternate between expressions and signs."""
    sides = [piece.strip() for piece in pieces[::2]]
    signs = pieces[1::2]
    turned = {">": "<", r"\ge": r"\le"}
    if all(sign in turned for sign in signs):
        sides, signs = sides[::-1], [turned[sign] for sign in signs[::-1]]
    if len(sides) == 2 and _SYMBOL.fullmatch(sides[0]):
        sides, signs = [r"-\infty", *sides], ["<", *signs]
    elif len(sides) == 2:
        sides, signs = [*sides, r"\infty"], [*signs, "<"]
    if len(sides) != 3 or not all(sides) or not _SYMBOL.fullmatch(sides[1]) or not turned.keys().isdisjoint(signs):
        return None
    start, name, end = sides
    low, high = "[" if signs[0] == r"\le" else "(", "]" if signs[1] == r"\le" else ")"
    return Equation(name, (Group(low, high, (_read(start), _read(end))),), assigns=True)


def _brackets(text: str) -> Group | None:
    r"""A tuple, an interval or a set; None for anything else."""
    match = re.fullmatch(r"\\(\{)(.*)\\(\})|([(\[])(.*)([)\]])", text, re.DOTALL)
    if not match or not _encloses(text.replace(r"\{", "(").replace(r"\}", ")")):
        return None
    opening, inner, ending = (part for part in match.groups() if part is not None)
    parts = _split(inner, ",;")
    if (len(parts) < 2 and opening != "{") or not all(part.strip() for part in parts):
        return None
    return Group(opening, ending, tuple(_read(part.strip()) for part in parts))


def _plus_minus(text: str) -> Group | None:
    r"""`a \pm b` as the list of its two values; None for anything else."""
    if text.count(r"\pm") + text.count(r"\mp") != 1:
        return None
    first, second = ((text.replace(r"\pm", sign).replace(r"\mp", other)) for sign, other in ("+-", "-+"))
    return Group("", "", (_read(first.strip()), _read(second.strip())))


def _single(text: str) -> Single:
    percent = text.endswith("%")
    text = _unscaled(text.removesuffix("%").strip())
    if (other := _with_other_unit(text, percent)) is not None:
        return other
    match = _UNIT.fullmatch(text)
    if not match or not (re.search("[0-9]", match["value"]) or match["value"].endswith(("}", "!"))):
        return Single(text, "", percent)
    unit = match["text"] or match["bare"] or ""
    value = match["value"].strip()
    if value.endswith("%"):
        value, percent = value[:-1].strip(), True
    return Single(value, unit.strip().lower() + (f"^{match['power']}" if match["power"] else ""), percent)


def _unscaled(text: str) -> str:
    r"""`5 \text{ million people}` as `5000000 \text{people}`, and `3 \text{ squared}` as `9`."""
    match = _SCALED.fullmatch(text)
    value = rational(match["value"].strip()) if match else None
    if match is None or value is None:
        return text
    word = match["word"].lower()
    value = value ** _POWERS[word] if word in _POWERS else value * _SCALES[word]
    rest = match["rest"] if not match["text"] else f"\\text{{{match['rest']}" * (match["rest"].strip() != "}")
    return f"{value} {rest}".strip()


def _with_other_unit(text: str, percent: bool) -> Single | None:
    """A number with a unit of several parts, or of words outside of `\\text`; None for anything else."""
    match = _PLAIN_UNIT.fullmatch(text) or _TEXT_UNITS.fullmatch(text)
    if match is None or rational(match["value"].strip()) is None or _NO_UNIT.search(match["unit"]):
        return None
    unit = re.sub(r"\\text|\\cdot|[{}\s]+", " ", match["unit"])
    return Single(match["value"].strip(), " ".join(unit.split()).lower(), percent)
