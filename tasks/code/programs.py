"""Judges programs: the program in a response, its tests (`asserts`, `checks`, `scripts`), the verdict. Invariants: the
process that runs a program never has an expected value. This process runs no code of the program or the data set."""

import json
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

from core.config import TaskConfig
from core.records import Verdict
from tasks.code.asserts import AssertTests
from tasks.code.checks import judge_check
from tasks.code.confinement import SandboxError
from tasks.code.outcomes import Boxes, Outcome, grade
from tasks.code.parsing import program_of
from tasks.code.sandbox import Limits, Sandbox, Setting
from tasks.code.scripts import judge_calls, judge_script

_MODULES = (
    "string, re, datetime, collections, heapq, bisect, copy, math, random, statistics, itertools, functools, "
    "operator, io, sys, json"
)
BENCHMARK_PRELUDE = "\n".join(
    [
        *(f"from {module} import *" for module in (*_MODULES.split(", "), "builtins", "typing")),
        f"import {_MODULES}",
        "sys.setrecursionlimit(50000)",
    ]
)
"""What LiveCodeBench and APPS import before a program."""


Judge = Callable[[str, Boxes], list[Outcome]]  # (program, where it runs) -> the outcome of every test, in order
FORMATS: Mapping[str, Callable[[Mapping[str, Any]], Judge]] = {
    "asserts": lambda record: AssertTests(record).judge,
    "check": lambda record: partial(judge_check, record),
    "script": lambda record: partial(judge_script, record),
    "calls": lambda record: partial(judge_calls, record),
}


@lru_cache(256)
def parse_reference(text: str) -> tuple[Mapping[str, Any], Judge, frozenset[int]]:
    """The record of an item made by `tasks/code/formats.py`, its judge, and the indices of the tests that its prompt
    shows."""
    record = json.loads(text)
    return record, FORMATS[record["format"]](record), frozenset(record.get("shown", ()))


def judge_program(boxes: Boxes, reference: str, response: str) -> Verdict:
    """Judge a response against the reference of its item."""
    try:
        record, judge, shown = parse_reference(reference)
        return grade(judge(program_of(response, record), boxes), shown, boxes.config)
    except SandboxError as error:
        return Verdict(boxes.config.worst, False, f"no sandbox: {error}", judge_failed=True)


def limits_of(config: TaskConfig) -> Limits:
    """What one test of a program may use."""
    return Limits(config.judge_timeout, config.code.memory_mib)


def setting_of(config: TaskConfig) -> Setting:
    """What programs start with: the imports of the format's benchmark, and packages."""
    return Setting(BENCHMARK_PRELUDE if config.name == "apps" else "", config.code.packages)


def verifier(settings: str) -> Callable[[str, str], Verdict]:
    """The judge of a process, from the task's configuration as JSON."""
    config = TaskConfig.model_validate_json(settings)
    limits, setting = limits_of(config), setting_of(config)
    program = Sandbox(config.sandbox, limits, setting)
    plain = Setting(packages=setting.packages)  # a check or a checker may need them, too
    own = program if setting == plain else Sandbox(config.sandbox, limits, plain)
    return partial(judge_program, Boxes(program, own, config.code))
