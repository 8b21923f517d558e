r"""Arithmetic in running text: the tokens of a line, and the exact value of an expression.

Pure. Invariant: the time is linear in the length of the text, whatever it contains, because numbers, expressions and
powers that are too large have no value.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

Kind = Literal["number", "word", "operator", "percent", "open", "close", "equals", "break", "other"]

LONGEST = 48
"""Most tokens of an expression that is evaluated."""
_DIGITS = 18
"""Most characters of a number that is read."""
_LARGEST = 10**60
"""Values whose numerator or denominator is larger are not computed."""
_POWER = 60
"""Largest exponent."""

_REWRITTEN = {
    **{"−": "-", "–": "-", "×": "*", "⋅": "*", "·": "*", "÷": "/", "²": "^2", "³": "^3", "％": "%", "\u00a0": " "},
    **{
        "½": " 1/2",
        "¼": " 1/4",
        "¾": " 3/4",
        "⅓": " 1/3",
        "⅔": " 2/3",
        "’": "'",
        '"': " ",
        "“": " ",
        "”": " ",
        "`": " ",
    },
    **{r"\times": "*", r"\cdot": "*", r"\div": "/", r"\%": "%", r"\$": "$", r"\left": "", r"\right": "", "{,}": ","},
    **{r"\(": " $ ", r"\)": " $ ", r"\[": " $ ", r"\]": " $ ", r"\,": " ", r"\!": "", r"\;": " ", r"\:": " ", "&": " "},
}
_REWRITE = re.compile("|".join(map(re.escape, sorted(_REWRITTEN, key=len, reverse=True))))
_FRACTION = re.compile(r"\\[dtc]?frac\s*(?:\{([-\d.,* +/()]{1,40})\}\s*\{([-\d.,* +/()]{1,40})\}|(\d)(\d))")
_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mbox|boxed)\s*\{([^{}]{0,60})\}")
_EXPONENT = re.compile(r"\^\{(\d{1,3})\}")
_MIXED = re.compile(r"(?<![0-9.,/^])([0-9]{1,3}) +([0-9]{1,3}/[0-9]{1,3})(?![0-9.,/])")
_BOLD = re.compile(r"(?<![\d)])\*\*|\*\*(?![\d(])")
_TOKEN = re.compile(
    r"(?P<space>[ \t\r]+)"
    r"|(?P<number>(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
    r"|(?P<break>[.,;:?]+(?=\s)|(?<![0-9)])!+(?=\s)|(?<=[a-zA-Z]):|\n)"
    r"|(?P<equals>==?(?![=>]))"
    r"|(?P<operator>\*\*|[-+*/^])"
    r"|(?P<times>[xX](?=[ ]{0,3}[$(.0-9]))"
    r"|(?P<word>[^\W\d_]+(?:['-][^\W\d_]+)*(?![\d_])|[$€£¢])"
    r"|(?P<percent>%)"
    r"|(?P<open>\()"
    r"|(?P<close>\))"
    r"|(?P<other>=+>?|.)"
)
_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2, "~": 3, "^": 4}  # ~ is the sign of a negative number


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of a line."""

    kind: Kind
    text: str
    spaced: bool  # a blank or the beginning of the line is before it
    at: int  # place in the line

    @property
    def operand(self) -> bool:
        """Whether it ends an operand, so that an operator may follow."""
        return self.kind in ("number", "percent", "close")

    @property
    def decimals(self) -> int:
        """Digits after the point of a number."""
        return len(self.text.partition(".")[2])


def plain(line: str) -> str:
    r"""A line in one notation: signs for LaTeX's commands and Unicode's operators, no emphasis.

    >>> plain(r"\frac{1}{2} × **10** = 5\text{ apples}")
    ' ((1)/(2)) * 10 = 5 apples'
    """
    line = _FRACTION.sub(lambda part: f" (({part[1] or part[3]})/({part[2] or part[4]}))", _TEXT.sub(r"\1", line))
    line = _EXPONENT.sub(r"^\1", _REWRITE.sub(lambda sign: _REWRITTEN[sign[0]], line))
    return _MIXED.sub(r"(\1+\2)", _BOLD.sub("", line))


def tokens(line: str) -> list[Token]:
    """The tokens of a plain line."""
    found: list[Token] = []
    spaced = True
    for match in _TOKEN.finditer(line):
        kind, text = str(match.lastgroup), match[0]
        if kind == "space":
            spaced = True
            continue
        if kind == "times":
            kind, text = ("operator", "*") if found and (found[-1].operand or spaced) else ("other", text)
        elif kind == "number" and (len(text) > _DIGITS or re.match(r"0[0-9]", text)):
            kind = "other"  # 0730 is a time
        elif kind == "word" and text.lower() == "percent":
            kind, text = "percent", "%"
        elif kind == "operator" and text == "**":
            text = "^"
        found.append(Token(kind, text, spaced, match.start()))  # type: ignore[arg-type]
        spaced = False
    return found


class NoValueError(ValueError):
    """An expression that has no value, or none that is computed."""


def value(parts: Sequence[Token], percent: Fraction = Fraction(1, 100), shifted: int = -1) -> Fraction:
    """The exact value of an expression of numbers, operators, brackets and percent signs; `percent`: of one such sign.

    `shifted`: number of the token to whose last decimal 1 is added. Raises NoValueError.

    >>> value(tokens("20% * (3 + 4) - 2^2"))
    Fraction(-13, 5)
    """
    if len(parts) > LONGEST:
        raise NoValueError("too long")
    values: list[Fraction] = []
    waiting: list[str] = []  # operators and opening brackets

    def _reduce(least: int) -> None:
        while waiting and waiting[-1] != "(" and _PRECEDENCE[waiting[-1]] >= least:
            _apply(waiting.pop(), values)

    operand = False  # whether the last token ended one
    for place, part in enumerate(parts):
        if part.kind == "number" and not operand:
            last = Fraction(1, 10**part.decimals) if place == shifted else Fraction(0)
            values.append(Fraction(part.text.replace(",", "")) + last)
        elif part.kind == "open" and not operand:
            waiting.append("(")
        elif part.kind == "percent" and operand:
            values[-1] *= percent
        elif part.kind == "close" and operand and "(" in waiting:
            _reduce(0)
            waiting.pop()
        elif part.kind == "operator" and operand:
            _reduce(_PRECEDENCE[part.text] + (part.text == "^"))  # powers are computed from the right
            waiting.append(part.text)
        elif part.text == "-":
            waiting.append("~")
        else:
            raise NoValueError(f"not expected: {part.text}")
        operand = part.operand
    if not operand:
        raise NoValueError("not complete")
    _reduce(0)
    if waiting:
        raise NoValueError("a bracket is open")
    return values[0]


def _apply(operator: str, values: list[Fraction]) -> None:
    """Replace the last operands by the result."""
    second = values.pop()
    if operator == "~":
        values.append(-second)
        return
    first = values.pop()
    if operator == "^":
        size = max(abs(first.numerator), first.denominator).bit_length()
        if second.denominator != 1 or abs(second) > _POWER or size * abs(second) > 200 or (second < 0 and not first):
            raise NoValueError("power")
        result = Fraction(first ** int(second))
    elif operator == "/":
        if not second:
            raise NoValueError("division by 0")
        result = first / second
    else:
        result = {"+": first.__add__, "-": first.__sub__, "*": first.__mul__}[operator](second)
    if max(abs(result.numerator), result.denominator) > _LARGEST:
        raise NoValueError("too large")
    values.append(result)
