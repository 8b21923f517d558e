"""Values as plain data, out of a sandbox and into it. Used inside it too, where nothing else of the project is."""

from __future__ import annotations

import sys
from _json import encode_basestring_ascii

TYPE_CHECKING = False  # importing it from typing would cost a seventh of a sandbox's time
if TYPE_CHECKING:
    from typing import Any

DEEPEST = 100  # deepest nesting of a value; a deeper (or cyclic) one is not plain data


def encode_value(value: Any, depth: int = 0) -> Any:
    """A value as JSON: scalars as they are, containers as [kind, items ...], anything else as ['o', type name]. An
    instance of a subclass is encoded as its base, as == compares it: a Counter as a dict, a named tuple as a tuple."""
    if value is None or isinstance(value, bool):
        return None if value is None else bool(value)
    if isinstance(value, int):
        number = int(value)
        return number if -(2**53) < number < 2**53 else ["i", hex(number)]
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, complex):
        return ["c", value.real, value.imag]
    if isinstance(value, bytes | bytearray):
        return ["b", value.hex()]
    if depth >= DEEPEST:
        return ["o", "too deeply nested"]
    if isinstance(value, dict):
        return ["d", *([encode_value(key, depth + 1), encode_value(item, depth + 1)] for key, item in value.items())]
    sets: tuple[Any, ...] = (set, type({}.keys()), type({}.items()))
    kinds: tuple[tuple[str, Any], ...] = (("l", list), ("t", tuple), ("s", sets), ("z", frozenset))
    module = sys.modules.get("fractions")  # imported if the program has made a Fraction
    if module and isinstance(value, module.Fraction):
        return ["q", hex(value.numerator), hex(value.denominator)]
    module = sys.modules.get("decimal")
    if module and isinstance(value, module.Decimal):
        return ["m", module.Decimal.__str__(value)]
    module = sys.modules.get("numpy")
    if module and isinstance(value, module.generic):
        return encode_value(value.item(), depth + 1)
    for kind, types_ in kinds:
        if isinstance(value, types_):
            return [kind, *(encode_value(item, depth + 1) for item in value)]
    return ["o", type(value).__name__]


def to_json(value: Any) -> bytes:
    """The JSON of an encoded value. Importing the module json would cost a quarter of a sandbox's time."""
    if isinstance(value, list | tuple):
        return b"[" + b",".join(map(to_json, value)) + b"]"
    if isinstance(value, str):
        return encode_basestring_ascii(value).encode()
    if value is None or isinstance(value, bool):
        return b"null" if value is None else b"true" if value else b"false"
    return {"inf": b"Infinity", "-inf": b"-Infinity", "nan": b"NaN"}.get(text := repr(value), text.encode())


def decode_value(data: Any) -> Any:
    """The value of an encoding; opaque objects become None. A malformed encoding may raise any exception."""
    if not isinstance(data, list):
        return data
    kind, *items = data
    if kind == "d":
        return {decode_value(key): decode_value(item) for key, item in items}
    if kind in ("l", "t", "s", "z"):
        container = {"l": list, "t": tuple, "s": set, "z": frozenset}[kind]
        return container(decode_value(item) for item in items)
    if kind == "q":
        return __import__("fractions").Fraction(int(items[0], 16), int(items[1], 16))
    if kind == "m":
        return __import__("decimal").Decimal(items[0])
    if kind == "i":
        return int(items[0], 16)
    if kind == "c":
        return complex(*items)
    return bytes.fromhex(items[0]) if kind == "b" else None
