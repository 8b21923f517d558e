r"""The form of an answer: an expression, words, or a list, set, tuple, interval, union, matrix of such, perhaps named.
Values count only where they decide the form.
Invariant: brackets are part of the form, so a tuple is no set and an open interval no closed one.
An inequality becomes the interval that it describes."""

import re
from dataclasses import dataclass, replace
from itertools import pairwise

from tasks.mathematics.notation import closing, plain_notation
from tasks.mathematics.units import scale, split_unit
from tasks.mathematics.values import approximate, rational


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
_OPTION = re.compile(
    r"[(\[]?\s*([A-Z])\s*[)\].:]|\\text\{\s*(?:[Oo]ption|[Cc]hoice)\s*\(?([A-Z])\)?\s*\}"
)  # of a question with several answers
_BETWEEN = re.compile(r"(<|>|\\le(?![a-zA-Z])|\\ge(?![a-zA-Z]))")
_SYMBOL = re.compile(
    r"\\?[a-zA-Z]+(?:_\{?[a-zA-Z0-9]+\}?)?'?|[a-zA-Z](?:'*|\^\{-1\})\(-?[a-zA-Z0-9]+(?:,-?[a-zA-Z0-9]+)*\)|"
    r"\\text\{[a-zA-Z ]+\}|\(\s*[a-zA-Z](?:\s*,\s*[a-zA-Z])+\s*\)"
)
_REALS = re.compile(
    r"\\mathbb\s*\{?R\}?|\\text\{\s*all real numbers\s*\}|all real numbers|\\R(?![a-zA-Z])", re.IGNORECASE
)
_DOLLARS = re.compile(r"\\\$|^[^$]*\$[^$]*$")
_WITHOUT = re.compile(
    r"\(-\\infty ,\\infty \)\s*(?:\\setminus|-|\\text\{\s*(?:except|without|but)(?: for)?\s*\}|except(?: for)?)\s*"
    r"(?:\\\{(.*)\\\}|\{(.*)\}|([^{}]*))"
)
_BUILDER = re.compile(  # {x | x > 1}
    r"\\\{\s*[a-zA-Z]\s*(?:\\in\s*\(-\\infty ,\\infty \)\s*)?(?:\\mid|\\vert|[:|])\s*"
    r"([a-zA-Z]\s*(?:\\ne(?![a-zA-Z])|\\le|\\ge|[<>]).*|.*[<>e]\s*[a-zA-Z]\s*(?:\\le|\\ge|[<>]).*)\\\}"
)
_THOUSANDS = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9,])")


def read_form(answer: str) -> Form:
    r"""The form of an answer as a model or a data set writes it.

    >>> read_form("x = 3").parts, read_form(r"1 \le x < 5").parts == (read_form("[1, 5)"),), read_form("1, 2").opening
    ((Single(text='3', unit='', percent=False),), True, '')
    """
    form = _read(plain_notation(answer))
    return replace(form, unit="$") if isinstance(form, Single) and not form.unit and _DOLLARS.search(answer) else form


def _read(text: str) -> Form:
    text = re.sub(r"\\text\{\s*all real numbers,?\s+(?=except|but)", r"\\mathbb{R}\\text{", text)
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
    without = _WITHOUT.fullmatch(text)
    if without and (points := _ordered(_split(next(filter(None, without.groups()), ""), ",;"))):
        ends = [r"-\infty", *points, r"\infty"]
        rays = (Group("(", ")", (_read(low), _read(high))) for low, high in pairwise(ends))
        return Group("union", "", tuple(rays))
    builder = _BUILDER.fullmatch(text)
    if builder:
        return _read(builder[1].strip())
    pieces = _split(text.replace(r"\cup", "∪"), "∪")
    if len(pieces) > 1:
        return Group("union", "", tuple(_read(piece) for piece in pieces))
    return _relation(text) or _brackets(text) or _plus_minus(text) or _single(text)


def _ordered(points: list[str]) -> list[str]:
    """Points of the real line in order; none if the value of one is not known."""
    values = {point.strip(): approximate(point.strip()) for point in points}
    known = {point: value for point, value in values.items() if value is not None}
    return sorted(known, key=known.__getitem__) if len(known) == len(values) else []


def _unwrapped(text: str) -> str:
    """Without braces, and without round brackets that enclose everything and hold no comma."""
    while True:
        option = _OPTION.fullmatch(text)
        if option:
            return option[1] or option[2]
        if (text.startswith("{") and closing(text, 0) == len(text) - 1) or (
            text.startswith("(") and text.endswith(")") and len(_split(text[1:-1], ",")) == 1 and _encloses(text)
        ):
            text = text[1:-1].strip()
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
    named, about, rest = text.partition(r"\approx")
    if about and _SYMBOL.fullmatch(named.strip()) and r"\approx" not in rest:
        text = f"{named}={rest}"
    sides = [side.strip() for side in _split(text, "=")]
    if len(sides) > 1:
        compares = re.search(r"<|>|\\(?:le|ge|ne|approx|not)(?![a-zA-Z])|!$", text)
        return _equation(sides) if all(sides) and not compares else None
    member = re.fullmatch(r"(.*?)\\in(?![a-zA-Z])(.*)", text, re.DOTALL)
    if member and _SYMBOL.fullmatch(member[1].strip()):
        return Equation(member[1].strip(), (_read(member[2].strip()),), assigns=True)
    unequal = re.fullmatch(r"(.*?)\\ne(?![a-zA-Z])(.*)", text, re.DOTALL)
    if unequal and _SYMBOL.fullmatch(unequal[1].strip()) and unequal[2].strip():
        point = _read(unequal[2].strip())
        rays = Group("(", ")", (Single(r"-\infty"), point)), Group("(", ")", (point, Single(r"\infty")))
        return Equation(unequal[1].strip(), (Group("union", "", rays),), assigns=True)
    return _interval(_BETWEEN.split(text))


def _equation(sides: list[str]) -> Equation:
    if not _SYMBOL.fullmatch(sides[0]) and (
        _SYMBOL.fullmatch(sides[-1]) or (not _named(sides[0]) and _named(sides[-1]))
    ):
        sides.reverse()  # 3 = x, 4 = x^2 + y^2
    named = _named(sides[0])
    name = sides[0].replace(" ", "") if named else ""
    return Equation(
        name, tuple(_read(side) for side in (sides[1:] if named else sides)), bool(_SYMBOL.fullmatch(sides[0]))
    )


def _named(side: str) -> bool:
    """Whether a side of an equation has a letter."""
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
    inner = text.removeprefix("-").strip()
    if text.startswith("-") and inner.startswith("(") and inner.endswith(")") and _encloses(inner):
        positive = _single(inner[1:-1].strip())
        if positive.unit and rational(positive.text) is not None and positive.text[0] != "-":
            return replace(positive, text=f"-{positive.text}")
    percent = text.endswith("%")
    value, unit = split_unit(text.removesuffix("%").strip())
    factor, power, unit = scale(unit)
    if value.endswith("%"):
        value, percent = value[:-1].strip(), True
    if power != 1 or factor != 1:
        number = rational(value)
        value = (
            rf"({value})^{power}\cdot\frac{{{factor.numerator}}}{{{factor.denominator}}}"
            if number is None
            else (str(number**power * factor))
        )
    return Single(value, unit, percent)
