r"""Values of single expressions: plain numbers exactly, other expressions through math-verify's parser and sympy.
Invariant: an expression is evaluated only after its size is bounded (`_digits`), and never expanded or simplified: two
expressions are equal when their values agree at a few points. So no answer can stall a judge."""

import hashlib
import re
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any

_PLAIN = re.compile(
    r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,3}(?:_[0-9]{3})+|[0-9]+)?(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,3})?"
)
_THIN = re.compile(r"(?<=[0-9])(?:\\,)(?=[0-9]{3}(?![0-9]))|\\,(?![0-9])|(?<![0-9])\\,|(\\,)")
_NUMBER = r"-?[0-9]*\.?[0-9]+"
_PART = rf"(?:\{{\s*({_NUMBER})\s*\}}|([0-9]))"  # of a fraction: a number in braces, or a digit
_FRACTION = re.compile(rf"(?:([0-9]+)\s*)?(?:\\[dtc]?frac\s*{_PART}\s*{_PART}|(?<![0-9])({_NUMBER})\s*/\s*({_NUMBER}))")
_MIXED = re.compile(r"([0-9]+) ([0-9]+)/([0-9]+)")
_REPEATING = re.compile(r"([0-9]*)\.([0-9]*)(?:\\(?:overline|bar|dot)\s*(?:\{\s*([0-9]+)\s*\}|([0-9]))|\(([0-9]+)\))")
_DOTTED = re.compile(r"([0-9]*\.[0-9]*)\\dot\s*\{?([0-9])\}?([0-9]*)\\dot\s*\{?([0-9])\}?")
_BARE_FRACTION = re.compile(r"\\(frac)\s*(\\[a-zA-Z]+|[0-9a-zA-Z])\s*(\\[a-zA-Z]+|[0-9a-zA-Z])(?![a-zA-Z{])")
_BASE = re.compile(r"\\log\s*_\s*([0-9])")
"""A base without braces, as TeX reads it: one digit, also in `\\log_2 8`, which is no product, and `\\log_2(8)`."""
_LAZY = re.compile(
    r"(?:[^\\]|\\(?:"
    r"frac|sqrt|cdot|times|div|pm|infty|pi|binom|sin|cos|tan|sec|csc|cot|arcsin|arccos|arctan|sinh|cosh|tanh|log|ln|"
    r"exp|lfloor|rfloor|lceil|rceil|vert|lvert|rvert|overline|bar|text|sum|prod|int|dots|ldots|cdots|alpha|beta|"
    r"gamma|delta|epsilon|varepsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|rho|sigma|tau|phi|varphi|chi|psi|"
    r"omega|Gamma|Delta|Theta|Lambda|Sigma|Phi|Psi|Omega"
    r")(?![a-zA-Z]))*"
)
"""Text whose commands the parser reads without evaluating their arguments; `\\gcd` and others it evaluates."""
_BINOMIAL = re.compile(r"\\binom\s*(?=[{0-9a-zA-Z])")
_ARGUMENT = re.compile(r"\s*(?:\{([^{}]*)\}|([0-9a-zA-Z]))")
_SMALL = re.compile(r"(?:[-+* ()0-9a-zA-Z]|\\cdot(?![a-zA-Z]))*")
_MOST_CHOSEN = 2000  # of a binomial coefficient that is evaluated
_TOWER = re.compile(r"(?:\^\s*\w\s*){4}")
_MOST_DIGITS = 3000  # of a plain number; a longer one is not read. With an exponent of 999 Python still prints it.
_LONGEST = 500  # most characters of an expression that is parsed: the time grows fast with the length
_DEEPEST = 10  # deepest nesting of brackets that is parsed: the time doubles with each level
_LARGEST = 20_000.0  # most decimal digits of a value, also of one inside an expression, that is evaluated
_POINTS = (0.7390851332, 1.6180339887, -0.5772156649)  # where expressions are compared; see `_value_at`
_PRECISION = 40


def number(answer: str) -> Decimal | None:
    """The value of a plain number: sign, digits, thousands separators, decimals, exponent, currency or percent sign.

    >>> number("$1,080"), number("-3.50"), number("1.5e3"), number("1,2"), number("x+1")
    (Decimal('1080'), Decimal('-3.50'), Decimal('1.5E+3'), None, None)
    """
    text = (
        _THIN.sub(lambda space: space[1] or "", answer.replace("\\!", ""))
        .replace("\\$", "$")
        .replace("\\%", "%")
        .strip()
    )
    negative = text.startswith("-")
    text = text.removeprefix("-").removeprefix("+").strip().removeprefix("$").removesuffix("$").removesuffix("%")
    text = text.strip().removesuffix(".")
    if not text or len(text) > _MOST_DIGITS or not _PLAIN.fullmatch(text) or not re.match(r"\.?[0-9]", text):
        return None
    value = Decimal(text.replace(",", "").replace("_", ""))
    return -value if negative else value


def rational(answer: str) -> Fraction | None:
    r"""The value of a plain number, a fraction or mixed number, or a repeating decimal.

    >>> rational("-\\frac{6}{4}"), rational("3/2"), rational("1\\frac{1}{4}"), rational("0.\\overline{3}")
    (Fraction(-3, 2), Fraction(3, 2), Fraction(5, 4), Fraction(1, 3))
    """
    plain = number(answer)
    if plain is not None:
        return Fraction(plain)
    text = answer.strip()
    if len(text) > 100:
        return None
    negative = text.startswith("-")
    text = text.removeprefix("-").removeprefix("+").strip()
    text = _MIXED.sub(r"\1\\frac{\2}{\3}", text) if _MIXED.fullmatch(text) else text
    repeating = _REPEATING.fullmatch(_DOTTED.sub(r"\1\\overline{\2\3\4}", text))
    if repeating:
        whole, fixed, period = (part for part in repeating.groups() if part is not None)
        ending = Fraction(int(period), 10 ** len(period) - 1)
        value = (int(whole + fixed or "0") + ending) / Fraction(10 ** len(fixed))
        return -value if negative else value
    match = _FRACTION.fullmatch(text)
    if match is None:
        return None
    top, bottom = (part for part in match.groups()[1:] if part is not None)
    if Fraction(bottom) == 0 or (match[1] and (match[6] or top.startswith("-") or bottom.startswith("-"))):
        return None
    value = Fraction(match[1] or 0) + Fraction(top) / Fraction(bottom)
    return -value if negative else value


def approximate(text: str) -> float | None:
    """The value of a text about; None if it is no real number."""
    exact = rational(text)
    if exact is not None:
        return float(exact)
    read = expression(text)
    value = None if read is None or read.free_symbols else _value_at(read, [], 0.0)
    return float(value) if value is not None and value.is_real else None


def _parsed(text: str) -> Any:
    """What math-verify's parser makes of a text, unevaluated. Imported late: it loads sympy and a grammar."""
    from latex2sympy2_extended import NormalizationConfig
    from latex2sympy2_extended.latex2sympy2 import latex2sympy, normalize_latex

    rules = NormalizationConfig(basic_latex=True, malformed_operators=True, nits=False, units=False, boxed="none")
    return latex2sympy(normalize_latex(text, rules), is_real=True, convert_degrees=False, normalization_config=None)


@lru_cache(20_000)
def expression(text: str) -> Any:
    """The sympy expression of a text, with exact decimals; None if it is too long, too large, or no expression."""
    import sympy

    text = _BASE.sub(r"\\log_{\1}", text)
    if _nested(text) > _DEEPEST or len(text) > _LONGEST or re.search(r"[0-9] +[0-9]", text):
        return None  # the parser adds numbers that stand side by side
    if _TOWER.search(text) or not _LAZY.fullmatch(text):
        return None
    text = _without_large_binomials(re.sub(r"([0-9]{4,})\s*!", r"k_{\1}", text))  # a symbol for a large factorial
    text = _BARE_FRACTION.sub(r"\\\1{\2}{\3}", text)  # the parser misreads `\frac \pi4`,
    text = re.sub(r"(?<![0-9.\\a-zA-Z}])([0-9]+)/([0-9]+)(?![0-9.!^(])", r"\\frac{\1}{\2}", text)  # `3/4x`,
    text = re.sub(r"(?<=[)0-9])\s*\(", r"\\cdot (", text)  # `2(3)`,
    text = re.sub(r"(?<![a-zA-Z\\])(pi)(?![a-z])", r"\\\1", text)
    # and capitals
    text = re.sub(r"(?<![a-zA-Z\\{])([A-Z])(?![_a-z])", lambda letter: rf"\alpha_{{{ord(letter[1])}}}", text)
    try:
        parsed = _parsed(text)
        if not isinstance(parsed, sympy.Expr) or _digits(parsed) > _LARGEST:
            return None
        exact: dict[Any, Any] = {real: sympy.Rational(repr(float(real))) for real in parsed.atoms(sympy.Float)}
        exact[sympy.Symbol("i", real=True)] = sympy.I
        return parsed.xreplace(exact).doit()
    except Exception:  # the parser and sympy raise whatever they like on text that is no mathematics
        return None


def _without_large_binomials(text: str) -> str:
    """A symbol for each binomial coefficient that the parser would take long to evaluate."""
    for found in reversed(list(_BINOMIAL.finditer(text))):
        top = _ARGUMENT.match(text, found.end())
        bottom = top and _ARGUMENT.match(text, top.end())
        if top is None or bottom is None:
            over, under, end = "?", "?", found.end()  # what is chosen is no plain text
        else:
            (over, under), end = ((part[1] or part[2] or "").strip() for part in (top, bottom)), bottom.end()
        if over.isdigit() and under.isdigit():
            small = min(int(under), abs(int(over) - int(under))) <= _MOST_CHOSEN
        else:
            small = all(_SMALL.fullmatch(part) and not re.search("[0-9]{4}", part) for part in (over, under))
        if small:
            text = rf"{text[: found.start()]}\binom{{{over}}}{{{under}}}{text[end:]}"
        else:
            name = int.from_bytes(hashlib.sha256(f"{over}, {under}".encode()).digest()[:6])
            text = f"{text[: found.start()]} b_{{{name}}} {text[end:]}"
    return text


def _nested(text: str) -> int:
    depth = deepest = 0
    for character in text:
        depth += (character in "({[") - (character in ")}]")
        deepest = max(deepest, depth)
    return deepest


def _digits(value: Any) -> float:
    r"""A bound on the decimal digits of a value and of every value inside it; infinite for sums, integrals etc."""
    import sympy

    if isinstance(value, sympy.Rational):
        return max(len(str(abs(part))) for part in (value.p, value.q)) if abs(value.p) < 10**4000 else float("inf")
    if value.is_Atom:
        return 1.0
    inner = [_digits(part) for part in value.args]
    if isinstance(value, sympy.Sum | sympy.Product | sympy.Integral | sympy.Limit | sympy.Derivative):
        return float("inf")
    most = max(inner, default=1.0)
    if isinstance(value, sympy.Mul):
        most = sum(inner)
    elif isinstance(value, sympy.Pow):
        most = inner[0] * _magnitude(value.args[1], inner[1])
    elif isinstance(value, sympy.factorial | sympy.factorial2 | sympy.binomial | sympy.exp | sympy.gamma):
        most = max(_magnitude(part, size) * size for part, size in zip(value.args, inner, strict=True))
    elif isinstance(value, sympy.Add):
        most += 1
    return max(most, *inner)


def _magnitude(value: Any, digits: float) -> float:
    """A bound on the absolute value of something with so many digits."""
    if value.is_Integer:
        return float(max(1, abs(int(value)))) if digits < 300 else float("inf")
    return 10.0**digits if digits < 9 else float("inf")


def same_value(first: Any, second: Any) -> bool:
    """Whether two expressions agree at all points of `_POINTS`; below 0 only where both have real values."""
    import sympy

    if first == second or (first.is_Rational and second.is_Rational):
        return bool(first == second)
    symbols = sorted(first.free_symbols | second.free_symbols, key=str)
    for point in _POINTS if symbols else _POINTS[:1]:
        a, b = (_value_at(part, symbols, point) for part in (first, second))
        if a is None or b is None:
            return False
        if point < 0 and not (abs(sympy.im(a)) < 1e-30 and abs(sympy.im(b)) < 1e-30):
            continue
        size = max(abs(a), abs(b))
        if size > 1e9:  # 2^{100} is not 2^{100} + 1
            precision = _PRECISION + int(sympy.log(size, 10))
            a, b = (_value_at(part, symbols, point, precision) for part in (first, second))
        if abs(a - b) > sympy.Float("1e-25") * min(1, size):
            return False
    return True


def _value_at(value: Any, symbols: list[Any], point: float, precision: int = _PRECISION) -> Any:
    import sympy

    at = sympy.Float(point, precision)  # with logarithms of primes no sums or products of the symbols' values agree
    logarithms = (sympy.log(sympy.prime(k + 2), evaluate=False).evalf(precision) for k in range(len(symbols)))
    places = {symbol: at * log + k * at**2 / 3 for k, (symbol, log) in enumerate(zip(symbols, logarithms, strict=True))}
    try:
        numeric = value.evalf(precision, subs=places)
    except Exception:  # sympy raises what it likes, such as PrecisionExhausted for a rounded large number
        return None
    if not numeric.is_number or numeric.has(sympy.nan, sympy.zoo, sympy.oo, -sympy.oo) or numeric.atoms(sympy.Function):
        return None
    return numeric


def proportional(first: Any, second: Any) -> bool:
    """Whether `first = 0` and `second = 0` are the same equation up to a constant factor."""
    symbols = sorted(first.free_symbols | second.free_symbols, key=str)
    values = [[_value_at(part, symbols, point) for part in (first, second)] for point in (*_POINTS, 2.2360679775)]
    if not symbols or any(value is None or value == 0 for pair in values for value in pair):
        return False
    (a, b), *others = values
    return all(abs(a * d - b * c) <= 1e-25 * abs(a * d) for c, d in others)
