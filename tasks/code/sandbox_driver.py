"""The script inside a sandbox: it runs one program, evaluates expressions in its namespace, and writes their values as plain data.

`tasks/code/sandbox.py` starts it with the limits as arguments. It imports nothing of the project, which is not in the sandbox. It
writes `ready`, reads one job as a line of JSON, writes one line of JSON per step, and ends.

A program that tampers with this process (builtins, frames, the output itself) can change only the values that come out. The
process knows inputs, never expected values: `tasks/code/programs.py` compares outside.
"""

from __future__ import annotations

import builtins
import json
import math
import os
import resource
import sys
import types

TYPE_CHECKING = False  # importing it from typing would cost a seventh of a sandbox's time
if TYPE_CHECKING:
    from typing import Any

LARGEST_VALUE = 1 << 18
"""Most characters of an encoded value; a larger one is reported as too large."""
DEEPEST = 100
"""Deepest nesting of a value; a deeper (or cyclic) one is not plain data."""
MODULE = "program"


def encode_value(value: Any, depth: int = 0) -> Any:
    """A value as JSON: scalars as they are, containers as [kind, items ...], anything else as ['o', type name].

    An instance of a subclass is encoded as its base, as == compares it: a Counter as a dict, a named tuple as a tuple.
    """
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
    for kind, types_ in kinds:
        if isinstance(value, types_):
            return [kind, *(encode_value(item, depth + 1) for item in value)]
    return ["o", type(value).__name__]


def decode_value(data: Any) -> Any:
    """The value of an encoding. Opaque objects become None, because an expression over them is refused earlier.

    May raise any exception for a malformed encoding.
    """
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


def limit(seconds: float, mebibytes: int, file_mebibytes: int) -> None:
    """Bound this process: processor time, address space, file size, threads, open files, no core files."""
    cpu = math.ceil(seconds)
    for kind, soft, hard in (
        (resource.RLIMIT_CPU, cpu, cpu + 1),
        (resource.RLIMIT_AS, mebibytes << 20, mebibytes << 20),
        (resource.RLIMIT_FSIZE, file_mebibytes << 20, file_mebibytes << 20),
        (resource.RLIMIT_NPROC, 64, 64),
        (resource.RLIMIT_NOFILE, 64, 64),
        (resource.RLIMIT_CORE, 0, 0),
    ):
        present = resource.getrlimit(kind)[1]  # the hard limit of the parent can only be lowered
        if present != resource.RLIM_INFINITY:
            soft, hard = min(soft, present), min(hard, present)
        resource.setrlimit(kind, (soft, hard))


def reason(error: BaseException) -> str:
    """The text of an exception, also if its __str__ raises."""
    try:
        return f"{type(error).__name__}: {error}"[:200]
    except BaseException:
        return "an exception that cannot be printed"


def run_job(job: dict[str, Any], output: int) -> None:
    """Compile and run the program, run the setup, evaluate every expression. Write a line for each step."""

    def _say(*items: Any) -> None:
        text = json.dumps(items)
        if len(text) > LARGEST_VALUE:
            text = json.dumps([items[0], "large"])
        data = text.encode() + b"\n"
        while data:
            data = data[os.write(output, data) :]

    module = types.ModuleType(MODULE)
    sys.modules[MODULE] = module  # where dataclasses and pickle look for it
    names = module.__dict__
    try:
        code = compile(job["program"], "<program>", "exec", dont_inherit=True)
    except BaseException as error:
        return _say("syntax", reason(error))
    _say("compiled")
    try:
        exec(code, names)
        exec(compile(job["setup"], "<setup>", "exec", dont_inherit=True), names)
    except BaseException as error:
        return _say("failed", reason(error))
    for name, value in job["values"].items():
        try:
            names[name] = decode_value(value)
        except Exception:  # not an encoding of the driver: only expressions that read it raise
            continue
    for index, expression in enumerate(job["expressions"]):
        try:
            _say(index, "value", encode_value(eval(compile(expression, "<test>", "eval", dont_inherit=True), names)))
        except BaseException as error:
            _say(index, "raised", reason(error))
    return None


def main() -> None:
    """Command line: SECONDS MEBIBYTES FILE_MEBIBYTES."""
    job_in, output = os.dup(0), os.dup(1)
    null = os.open("/dev/null", os.O_RDWR)
    for standard in (0, 1, 2):  # discard what a program prints
        os.dup2(null, standard)
    os.close(null)
    # modules that programs often import: loaded here, while the sandbox is a spare
    for name in ("collections", "heapq", "itertools", "re", "operator", "bisect"):
        builtins.__import__(name)
    limit(float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    os.write(output, b"ready\n")
    with os.fdopen(job_in, "rb") as source:
        line = source.readline()
    if line:
        run_job(json.loads(line), output)
    os._exit(0)  # atexit handlers and threads of the program must not delay the end


if __name__ == "__main__":
    main()
