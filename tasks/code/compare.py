"""Compares what a program gives with what is expected: values, as == does, and printed text, as the benchmarks do.
Invariants: no code of the program or of the data set runs here. An object of a class of the program equals nothing.
Whatever a sandbox says is compared without raising, in time bounded by its length."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any

from tasks.code.sandbox_values import DEEPEST

_DECIMAL = re.compile(r"-?(\d+(\.\d+)?(E[+-]\d{1,15})?|Infinity|NaN)")
_MOST_DIGITS = 5000  # bound on an encoded Decimal: parsing one takes time quadratic in its length
_HEX = re.compile(r"-?0x[0-9a-f]+")
_WORD = re.compile(r"\S+")
_BREAK = re.compile(r"[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")  # what `str.splitlines` splits at
_SCALARS = (bool, int, float, str)
_NUMBER = re.compile(r"[+-]?(\d{1,400}\.?\d{0,400}|\.\d{1,400})([eE][+-]?\d{1,3})?")


def same_output(expected: str, printed: str, tolerance: float = 0.0) -> bool:
    """Whether two printed texts are the same, word by word and line by line, without empty lines. Numbers are equal as
    numbers (`1.0` and `1.00`), or within a tolerance, absolute or relative."""
    wanted = len(expected.split())
    if len(printed.split(None, wanted)) != wanted:  # before anything is made of a flood of words
        return False
    lines = [_lines(text) for text in (expected, printed)]
    return [len(words) for words in lines[0]] == [len(words) for words in lines[1]] and all(
        left == right or _same_number(left, right, tolerance)
        for line, other in zip(*lines, strict=True)
        for left, right in zip(line, other, strict=True)
    )


def _lines(text: str) -> list[list[str]]:
    """The words of each line that has some. Makes nothing of the others: there may be millions."""
    lines: list[list[str]] = []
    end = 0
    for word in _WORD.finditer(text):
        if not lines or _BREAK.search(text, end, word.start()):
            lines.append([])
        lines[-1].append(word[0])
        end = word.end()
    return lines


def _same_number(left: str, right: str, tolerance: float) -> bool:
    if not _NUMBER.fullmatch(left) or not _NUMBER.fullmatch(right):
        return False
    number, other = Decimal(left), Decimal(right)  # as floats, all numbers beyond 1e308 would be equal
    return number == other or abs(number - other) <= Decimal(tolerance) * max(abs(number), abs(other), Decimal(1))


def same_value(expected: Any, returned: Any, tolerance: float = 0.0) -> bool:
    """Whether an encoded value equals one from JSON: a tuple equals a list, and the key 1 the key "1"."""
    match returned:
        case ["l" | "t", *items]:
            return (
                isinstance(expected, list)
                and len(expected) == len(items)
                and all(same_value(item, other, tolerance) for item, other in zip(expected, items, strict=True))
            )
        case ["d", *pairs]:
            return isinstance(expected, dict) and pair_off(
                expected.items(), pairs, lambda item, other: _same_entry(item, other, tolerance)
            )
    if equal(expected, returned):
        return True
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in (expected, returned))
    try:
        return numbers and tolerance > 0 and math.isclose(expected, returned, rel_tol=tolerance, abs_tol=tolerance)
    except OverflowError:  # an integer that no float holds
        return False


def _same_entry(expected: tuple[str, Any], entry: Any, tolerance: float) -> bool:
    match entry:
        case [key, value]:
            return str(key) == expected[0] and same_value(expected[1], value, tolerance)
    return False


def equal(expected: object, returned: Any) -> bool:
    """Whether an encoded value equals a literal, as == decides for the decoded values; a malformed encoding never does.
    No value larger than the literal is built from the program's output."""
    if returned is None or isinstance(returned, _SCALARS):
        return isinstance(expected, (*_SCALARS, complex, type(None))) and bool(expected == returned)
    match returned:
        case ["i", str(digits)] if _HEX.fullmatch(digits):
            return isinstance(expected, int | float | complex) and expected == int(digits, 16)
        case ["c", float() as real, float() as imaginary]:
            return isinstance(expected, int | float | complex) and expected == complex(real, imaginary)
        case ["b", str(digits)]:
            return isinstance(expected, bytes) and expected.hex() == digits
        case ["l" | "t" as kind, *items]:
            return (
                isinstance(expected, list if kind == "l" else tuple)
                and len(expected) == len(items)
                and all(map(equal, expected, items))
            )
        case ["m", str(decimal)] if len(decimal) < _MOST_DIGITS and _DECIMAL.fullmatch(decimal):
            return isinstance(expected, int | float | complex) and expected == Decimal(decimal)
        case ["q", str(above), str(below)] if _HEX.fullmatch(above) and _HEX.fullmatch(below):
            return isinstance(expected, int | float) and _is_ratio(expected, int(above, 16), int(below, 16))
        case ["s" | "z", *items]:
            return isinstance(expected, set | frozenset) and pair_off(expected, items, equal)
        case ["d", *pairs]:
            return isinstance(expected, dict) and pair_off(expected.items(), pairs, _same_pair)
    return False


def _is_ratio(expected: float, above: int, below: int) -> bool:
    """Whether `expected` is exactly above / below. Fraction's == computes a common divisor first, slowly."""
    if below <= 0 or (isinstance(expected, float) and not math.isfinite(expected)):
        return False
    mine, whole = expected.as_integer_ratio()
    return mine * below == above * whole


def pair_off(expected: Iterable[Any], items: Sequence[Any], same: Callable[[Any, Any], bool]) -> bool:
    """Whether every item has an expected member of its own that is the same, and no member is left. `same`: (member,
    item)."""
    left = list(expected)
    if len(left) != len(items):
        return False
    for item in items:
        at = next((i for i, member in enumerate(left) if same(member, item)), None)
        if at is None:
            return False
        del left[at]
    return True


def _same_pair(expected: tuple[Any, Any], pair: Any) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and all(map(equal, expected, pair))


def is_plain(encoding: Any, depth: int = 0) -> bool:
    """Whether an encoding has only builtin types, at every level, and is no deeper than the driver writes."""
    if not isinstance(encoding, list):
        return True
    if depth > DEEPEST:
        return False
    match encoding:
        case ["l" | "t" | "s" | "z", *items]:
            return all(is_plain(item, depth + 1) for item in items)
        case ["d", *pairs]:
            return all(
                isinstance(pair, list) and len(pair) == 2 and all(is_plain(part, depth + 1) for part in pair)
                for pair in pairs
            )
        case ["q", str(above), str(below)]:
            return bool(_HEX.fullmatch(above) and _HEX.fullmatch(below))
        case ["m", str(decimal)]:
            return len(decimal) < _MOST_DIGITS and bool(_DECIMAL.fullmatch(decimal))
        case ["i", str(digits)]:
            return bool(_HEX.fullmatch(digits))
        case ["b", str()] | ["c", float(), float()]:
            return True
    return False
