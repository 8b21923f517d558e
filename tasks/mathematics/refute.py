r"""Cheap proof that two answers differ: both are evaluated at one point, in microseconds instead of math-verify's milliseconds.

Called by `tasks/mathematics/answers.py` before math-verify. Invariant: only answers that differ are refuted. What is not surely read
(words, functions, unions, ambiguous products such as `1/2x`) is left to math-verify,
and so is every pair whose values agree or whose letters are not the same. A letter, large or small as for math-verify, stands for one fixed number, as do i and e for theirs: expressions that are
equal for all values agree at that point, too.
"""

import cmath
import math
import re
from collections.abc import Callable, Sequence
from fractions import Fraction

Number = Fraction | complex
CLOSE = Fraction(1, 100_000)
"""Relative difference from which values count as different: far above rounding, and above what math-verify rounds to."""
_LONGEST = 300
_MOST_BITS = 40_000
_NOISE = re.compile(r"\\(?:left|right|displaystyle|[,;:! ])|[\s~]")
_TOKEN = re.compile(r"[0-9]+(?:\.[0-9]+)?|\.[0-9]+|\\[a-zA-Z]+|[a-zA-Z]|[-+*/^(){}!\[\]]")
_DEGREES = re.compile(r"\^\{?\s*\\circ\}?")
_SUFFIX = re.compile(r"(?:\\text\{[^{}]*\}|\\mbox\{[^{}]*\}|\\%)+$")
_COMMAND = re.compile(r"\\[a-zA-Z]+")
_TWO_NUMERALS = re.compile(r"[0-9]\s+[0-9]")
_BARE = re.compile(r"\\([dt]?)frac\s*([0-9])\s*([0-9])")
_NO_POLYNOMIAL = re.compile(r"/[^0-9]|\}\{[^{}]*[a-zA-Z]|\\sqrt|\^\{?[^{0-9]")
_INFINITE, _UNDEFINED = Fraction(10**60), Fraction(10**80)
_MATRIX = re.compile(r"\\begin\{([a-z]*matrix)\}(.*)\\end\{\1\}", re.DOTALL)
_PRODUCTS = {"*", "\\cdot", "\\times"}
_FRACTIONS = {"\\frac", "\\dfrac", "\\tfrac"}
_VARIABLES = frozenset(["\\alpha", "\\beta", "\\gamma", "\\delta", "\\theta", "\\lambda", "\\mu", "\\omega", "\\phi"])


class _UnreadError(Exception):
    """This is not surely read."""


def differ(one: str, other: str) -> bool:
    """Whether two answers are surely different. False says nothing."""
    if max(len(one), len(other)) > _LONGEST:
        return False
    one, other = (_BARE.sub(r"\\frac{\2}{\3}", text.strip()).replace("{,}", "") for text in (one, other))
    one, other = _without_units(one, other)
    if _TWO_NUMERALS.search(one) or _TWO_NUMERALS.search(other) or _letters(one) != _letters(other):
        return False
    try:
        return _parts_differ(one, other) or _equations_differ(_NOISE.sub("", one), _NOISE.sub("", other))
    except OverflowError:  # an exact value beyond the floats against a rough one
        return False


def _letters(text: str) -> set[str]:
    """Those outside commands, in lower case: where only one answer has some they may be a unit."""
    return set(_COMMAND.sub("", text).lower()) & set("abcdefghijklmnopqrstuvwxyz")


def _parts_differ(one: str, other: str) -> bool:
    """Whether two answers of one kind have components that the other has not."""
    left, right = _parts(one), _parts(other)
    if left is None or right is None or left[0] != right[0] or len(left[1]) != len(right[1]):
        return False
    values = [[_value(part) for part in parts] for parts in (left[1], right[1])]
    return any(_unmatched(value, values[1 - side]) for side in (0, 1) for value in values[side])


def _equations_differ(one: str, other: str) -> bool:
    """Whether the difference of one's two sides is no multiple of that of the other's: their quotient is not constant.

    Of polynomials only: y = 1/x and xy = 1 are the same, and their quotient is x.
    """
    if _NO_POLYNOMIAL.search(one) or _NO_POLYNOMIAL.search(other):
        return False
    quotients = []
    for shift in (0.0, 0.618):
        sides = [_value(side, shift) for text in (one, other) for side in text.split("=")]
        if len(sides) != 4 or any(side is None for side in sides):
            return False
        a, b, c, d = (complex(side) for side in sides if side is not None)
        if a == b or c == d:
            return False
        quotients.append((a - b) / (c - d))
    return _apart(quotients[0], quotients[1])


def _unmatched(value: Number | None, others: Sequence[Number | None]) -> bool:
    """Whether it is in no order a part of the other answer; what was not read may be anything."""
    return value is not None and all(other is not None and _apart(value, other) for other in others)


def _apart(one: Number, other: Number) -> bool:
    if isinstance(one, Fraction) and isinstance(other, Fraction):
        return abs(one - other) > CLOSE * max(abs(one), abs(other))
    return abs(complex(one) - complex(other)) > float(CLOSE) * max(1.0, abs(complex(one)), abs(complex(other)))


def _without_units(one: str, other: str) -> tuple[str, str]:
    """Without the unit that both write alike: degrees everywhere, others at the end."""
    degrees = len(_DEGREES.findall(one))
    if degrees and degrees == len(_DEGREES.findall(other)):
        one, other = _DEGREES.sub("", one), _DEGREES.sub("", other)
    units = _SUFFIX.search(one), _SUFFIX.search(other)
    if units[0] and units[1] and units[0][0] == units[1][0]:
        return one[: units[0].start()], other[: units[1].start()]
    return one, other


def _parts(text: str) -> tuple[str, list[str]] | None:
    """The kind of an answer and its components: `(a, b)`, a list, a matrix, `y = a`, or one expression."""
    matrix = _MATRIX.fullmatch(text)
    if matrix:
        rows = [row.split("&") for row in re.split(r"\\\\", matrix[2]) if row.strip()]
        return f"{matrix[1]} {[len(row) for row in rows]}", [part for row in rows for part in row]
    text = _NOISE.sub("", text)
    equation = re.fullmatch(r"([a-z])=([^=<>]*)", text)
    if equation:
        name, text = equation[1], equation[2]
        return None if re.search(rf"(?<![a-zA-Z\\]){name}", text) else (f"{name} =", [text])
    if text.startswith(("\\{", "(", "[")) and text.endswith(("\\}", ")", "]")) and "," in text:
        wide = 2 if text.startswith("\\{") else 1
        tail = 2 if text.endswith("\\}") else 1
        inside = text[wide:-tail]
        pieces = _split(inside)
        return None if pieces is None else (text[:wide] + text[-tail:], pieces)
    pieces = _split(text)
    return None if pieces is None else ("list" if len(pieces) > 1 else "one", pieces)


def _split(text: str) -> list[str] | None:
    """Cut at the commas outside all brackets; None where brackets do not match."""
    pieces, depth, start = [], 0, 0
    for place, character in enumerate(text):
        depth += (character in "({[") - (character in ")}]")
        if depth < 0:
            return None
        if character == "," and depth == 0:
            pieces.append(text[start:place])
            start = place + 1
    return None if depth else [*pieces, text[start:]]


def _value(text: str, shift: float = 0.0) -> Number | None:
    """The value of an expression; None if it is not surely read. `shift` moves the values of the letters."""
    text = _NOISE.sub("", text)
    if text.lstrip("+-") == "\\infty":
        return _INFINITE if text[0] != "-" else -_INFINITE
    tokens = _TOKEN.findall(text)
    if not tokens or "".join(tokens) != text:
        return None
    try:
        reader = _Reader(tokens, shift)
        value = reader.total()
        if not reader.ended or (isinstance(value, complex) and not cmath.isfinite(value)):
            return None
    except (_UnreadError, ArithmeticError, ValueError, RecursionError):
        return None
    return value


class _Reader:
    """A recursive-descent evaluator of LaTeX arithmetic. Raises _UnreadError and ArithmeticError."""

    def __init__(self, tokens: Sequence[str], shift: float) -> None:
        self._tokens = tokens
        self._shift = shift
        self._at = 0

    @property
    def ended(self) -> bool:
        """Whether all was read."""
        return self._at == len(self._tokens)

    @property
    def _next(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self, wanted: str = "") -> str:
        token = self._next
        if not token or (wanted and token != wanted):
            raise _UnreadError
        self._at += 1
        return token

    def total(self) -> Number:
        """a + b - c ..."""
        sign = -1 if self._next == "-" else 1
        if self._next in ("-", "+"):
            self._take()
        value = _times(Fraction(sign), self._product())
        while self._next in ("+", "-"):
            sign = 1 if self._take() == "+" else -1
            value = _plus(value, _times(Fraction(sign), self._product()))
        return value

    def _product(self) -> Number:
        """a b * c / d ..., where a product after a quotient, or of two numerals, is not surely read."""
        numeral = self._next[:1].isdigit()
        value = self._power()
        divided = False
        while (token := self._next) and token not in ("+", "-", ")", "}", "]"):
            if token in _PRODUCTS:
                self._take()
            elif token == "/":
                self._take()
                value, divided, numeral = _over(value, self._power()), True, False
                continue
            elif numeral and not divided and self._mixed():
                value, divided, numeral = _plus(value, self._power()), True, False
                continue
            elif divided or (numeral and (token[0].isdigit() or token[0] == "." or token in _FRACTIONS)):
                raise _UnreadError
            numeral = self._next[:1].isdigit()
            value = _times(value, self._power())
        return value

    def _mixed(self) -> bool:
        """Whether a fraction of two numerals is next: after a numeral that is its whole part, as in math-verify."""
        match self._tokens[self._at : self._at + 7]:
            case [fraction, "{", top, "}", "{", bottom, "}"]:
                return fraction in _FRACTIONS and top.isdigit() and bottom.isdigit()
        return False

    def _power(self) -> Number:
        base = self._primary()
        while self._next == "!":
            self._take()
            base = _factorial(base)
        if self._next != "^":
            return base
        self._take()
        if self._next == "{":
            exponent = self._group("{", "}")
        elif len(self._next) == 1 and self._next.isalnum():
            exponent = self._primary()
        else:
            raise _UnreadError
        if self._next in ("^", "!"):
            raise _UnreadError
        return _raised(base, exponent)

    def _group(self, opening: str, closing: str) -> Number:
        self._take(opening)
        value = self.total()
        self._take(closing)
        return value

    def _argument(self) -> Number:
        """Of a command: `{...}`, or one character."""
        if self._next == "{":
            return self._group("{", "}")
        if len(self._next) == 1 and self._next.isalnum():
            return self._primary()
        raise _UnreadError

    def _primary(self) -> Number:
        token = self._next
        if token == "(" or token == "{":
            return self._group(token, ")" if token == "(" else "}")
        self._take()
        if token[0].isdigit() or token[0] == ".":
            return Fraction(token)
        if token in _FRACTIONS:
            top = self._argument()
            return _over(top, self._argument())
        if token == "\\sqrt":
            return self._root()
        if token == "\\pi":
            return complex(math.pi)
        if token == "e":
            return complex(math.e)
        if token == "i":
            return 1j
        if (len(token) == 1 and token.isalpha()) or token in _VARIABLES:
            return complex(1.3 + 0.0137 * sum(map(ord, token.lower())) + self._shift * (ord(token[-1].lower()) % 7 + 1))
        raise _UnreadError

    def _root(self) -> Number:
        degree: Number = Fraction(2)
        if self._next == "[":
            degree = self._group("[", "]")
        value = complex(self._argument())
        if value.imag == 0 and value.real < 0 and degree != 2:
            raise _UnreadError  # the real or the principal root
        return complex(value ** (1 / complex(degree)))


def _both(
    exact: Callable[[Fraction, Fraction], Fraction], rough: Callable[[complex, complex], complex]
) -> Callable[[Number, Number], Number]:
    def compute(one: Number, other: Number) -> Number:
        if isinstance(one, Fraction) and isinstance(other, Fraction):
            return exact(one, other)
        return rough(complex(one), complex(other))

    return compute


_plus = _both(lambda a, b: a + b, lambda a, b: a + b)
_times = _both(lambda a, b: a * b, lambda a, b: a * b)
_quotient = _both(lambda a, b: a / b, lambda a, b: a / b)


def _over(one: Number, other: Number) -> Number:
    return _UNDEFINED if other == 0 and isinstance(other, Fraction) else _quotient(one, other)


def _raised(base: Number, exponent: Number) -> Number:
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        bits = max(base.numerator.bit_length(), base.denominator.bit_length())
        if bits * abs(exponent) > _MOST_BITS:
            raise _UnreadError
        return base ** int(exponent)
    root = complex(base)
    if root.imag == 0 and root.real < 0:
        raise _UnreadError  # the real or the principal root
    return complex(root ** complex(exponent))


def _factorial(value: Number) -> Fraction:
    if not isinstance(value, Fraction) or value.denominator != 1 or not 0 <= value <= 3000:
        raise _UnreadError
    return Fraction(math.factorial(int(value)))
