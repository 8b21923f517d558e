"""Programs judged by unit tests: MBPP's rows, and the graded reward of a response.

Called by `tasks/task.py` (rows to items) and, in the judging processes, by `tasks/judge_worker.py` (`verifier`). To judge a test,
`tasks/code/unit_tests.py` splits it, a sandbox evaluates the program's side, and the resulting values are compared here.
Invariants: the process that runs the program never has an expected value. Its results are compared with Python's == as plain data
of builtin types; an object of a class of the program equals nothing. The only tolerance is what the test itself writes. No code of
the program or of the data set runs in this process.
"""

import json
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from itertools import accumulate
from typing import Any

from core.config import CodeConfig, Columns, TaskConfig
from core.errors import ConfigError, DataError
from core.records import Verdict
from tasks.code.sandbox import Limits, ProgramJob, Report, Sandbox, SandboxError
from tasks.code.sandbox_driver import DEEPEST
from tasks.code.unit_tests import TestError, UnitTest, read_setup, split_test, statements
from tasks.problems import Item, level_of, solution_of, text_of
from tasks.sources import Row

_DECIMAL = re.compile(r"-?(\d+(\.\d+)?(E[+-]\d+)?|Infinity|NaN)")
_MOST_DIGITS = 5000
"""Bound on an encoded Decimal: parsing one takes time quadratic in its length."""
_FENCED = re.compile(r"^([ \t]*)```[^\n`]*\n(.*?)(?:^\1```|\Z)", re.MULTILINE | re.DOTALL)
_DEFINES = re.compile(r"^[ \t]*(?:async[ \t]+def|def|class)\b", re.MULTILINE)
_HEX = re.compile(r"-?0x[0-9a-f]+")
_SCALARS = (bool, int, float, str)


@dataclass(frozen=True, slots=True)
class Reference:
    """What a program is judged against."""

    setup: str
    imports: str  # import statements of the setup; questions need them, too
    tests: tuple[UnitTest, ...]

    @property
    def holes(self) -> list[str]:
        """The expressions that the program evaluates, of all tests in order."""
        return [hole for test in self.tests for hole in test.holes]

    @property
    def offsets(self) -> list[int]:
        """For each test, the index of its first hole in `holes`."""
        return list(accumulate((len(test.holes) for test in self.tests), initial=0))[:-1]

    @property
    def skippable(self) -> set[int]:
        """Indices in `holes` of those that short-circuiting may skip."""
        return {at + i for at, test in zip(self.offsets, self.tests, strict=True) for i in test.skippable}


@lru_cache(4096)
def parse_reference(text: str) -> Reference:
    """The reference of an item made by `read_mbpp`."""
    record = json.loads(text)
    setup = read_setup(record["setup"])
    return Reference(
        record["setup"], "\n".join(setup.imports), tuple(split_test(test, setup) for test in record["tests"])
    )


def program_of(response: str) -> str:
    """The program in a response: its last fenced block (closed or not) that defines something, or else its last block.

    So an example after the program is left out. A response without a block is taken whole. Blocks may be indented, as in a list.
    """
    blocks = [textwrap.dedent(block) if indent else block for indent, block in _FENCED.findall(response)]
    return next((block for block in reversed(blocks) if _DEFINES.search(block)), blocks[-1] if blocks else response)


def read_mbpp(row: Row, columns: Columns, where: str) -> Item:
    """The item of a row with a list of asserts. The prompt shows only the first one, because it names the function.

    Raises DataError, and ConfigError when task.columns.tests is empty.
    """
    if columns.tests is None:
        raise ConfigError("task.columns.tests is empty: task mbpp needs the column of unit tests (MBPP's is test_list)")
    setup = (
        _setup(row[columns.setup], f"{where}: column {columns.setup!r} (task.columns.setup)") if columns.setup else ""
    )
    tests = _tests(row[columns.tests], setup, f"{where}: column {columns.tests!r} (task.columns.tests)")
    solution = solution_of(row, columns, where)
    prompt = f"{text_of(row, columns.prompt, 'prompt', where)}\nFor example: {tests[0]}"
    reference = json.dumps({"setup": setup, "tests": tests})
    return Item(prompt, reference, level_of(row, columns), solution and _lines(solution))


@contextmanager
def _refused(where: str) -> Iterator[None]:
    try:
        yield
    except TestError as error:
        raise DataError(f"{where}: {error}; fix or delete the row") from None


def _setup(value: object, where: str) -> str:
    given: list[Any] = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(line, str) for line in given):
        raise DataError(f"{where} is neither text nor a list of lines; fix the row")
    setup = _lines("\n".join(given))
    with _refused(where):
        read_setup(setup)
    return setup


def _tests(value: object, setup: str, where: str) -> list[str]:
    with _refused(where):
        found: object = statements(value) if isinstance(value, str) else value
    if not isinstance(found, list) or not found or not all(isinstance(test, str) for test in found):
        raise DataError(f"{where} is no list of asserts; fix or delete the row")
    tests = []
    for number, test in enumerate(found, 1):
        with _refused(f"{where}: test {number} cannot be used"):
            tests.append(split_test(test, read_setup(setup)).text)
    return tests


def _lines(text: str) -> str:
    return text.replace("\r\n", "\n").strip()


def equal(expected: object, found: Any) -> bool:
    """Whether an encoded value (`tasks/code/sandbox_driver.py`) equals a literal, as == decides for the decoded values.

    No value larger than the literal is built from the program's output. A malformed encoding equals nothing.
    """
    if found is None or isinstance(found, _SCALARS):
        return isinstance(expected, (*_SCALARS, complex, type(None))) and bool(expected == found)
    match found:
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
            return isinstance(expected, set | frozenset) and _pair_up(expected, items, equal)
        case ["d", *pairs]:
            return isinstance(expected, dict) and _pair_up(expected.items(), pairs, _same_pair)
    return False


def _is_ratio(expected: float, above: int, below: int) -> bool:
    """Whether `expected` is exactly above / below. Fraction's == says the same, but computes a common divisor first, slowly."""
    if below <= 0 or not math.isfinite(expected):
        return False
    mine, whole = expected.as_integer_ratio()
    return mine * below == above * whole


def _pair_up(expected: Iterable[Any], found: list[Any], same: Callable[[Any, Any], bool]) -> bool:
    """Whether the two can be paired off: each expected item with the same found one, and none left."""
    left = list(expected)
    if len(left) != len(found):
        return False
    for item in found:
        at = next((i for i, member in enumerate(left) if same(member, item)), None)
        if at is None:
            return False
        del left[at]
    return True


def _same_pair(expected: tuple[Any, Any], found: Any) -> bool:
    return isinstance(found, list) and len(found) == 2 and all(map(equal, expected, found))


def is_plain(found: Any, depth: int = 0) -> bool:
    """Whether an encoding has only values of builtin types, at every level, and is nested no deeper than the driver writes."""
    if not isinstance(found, list):
        return True
    if depth > DEEPEST:
        return False
    match found:
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


@dataclass(frozen=True, slots=True)
class _Asked:
    """The question of test `number`, and the values of its holes by their index in the test."""

    number: int
    test: UnitTest
    values: Mapping[int, Any]


class CodeJudge:
    """Judges programs. Each judging process has one, because it keeps a spare sandbox."""

    def __init__(self, sandbox: Sandbox, rewards: CodeConfig) -> None:
        self._sandbox = sandbox
        self._rewards = rewards

    def __call__(self, reference: str, response: str) -> Verdict:
        """Judge a response against the reference of its item."""
        known = parse_reference(reference)
        rewards = self._rewards
        try:
            report = self._sandbox.run(ProgramJob(program_of(response), known.holes, known.setup))
            if report.syntax:
                return Verdict(rewards.compile_error, False, f"does not compile: {report.syntax}")
            missing = {i: why for i, why in report.raised.items() if i not in known.skippable}
            problem = report.failed or next(iter(missing.values()), "") or report.ended
            if problem or len(report.values) + len(report.raised) < len(known.holes):
                return Verdict(rewards.runtime_error, False, f"run-time error: {problem or 'no answer'}")
            passed, why = self._passed(known, report)
        except SandboxError as error:
            return Verdict(rewards.worst, False, f"no sandbox: {error}", judge_failed=True)
        if passed == len(known.tests):
            return Verdict(rewards.passed, True)
        share = rewards.fraction * passed / len(known.tests)
        reward = rewards.failed + share * (rewards.passed - rewards.failed)
        return Verdict(reward, False, f"passed {passed} of {len(known.tests)} tests; {why}")

    def _passed(self, known: Reference, report: Report) -> tuple[int, str]:
        """How many tests passed, and a description of the first that failed (empty: none)."""
        answers: list[bool | None] = []
        asked: list[_Asked] = []  # the tests that are more than `hole == literal`
        for number, (at, test) in enumerate(zip(known.offsets, known.tests, strict=True)):
            values = {i: report.values[at + i] for i in range(len(test.holes)) if at + i in report.values}
            if test.literal is not None:
                answers.append(equal(test.literal[0], values[0]))
            elif all(map(is_plain, values.values())):
                answers.append(None)
                asked.append(_Asked(number, test, values))
            else:
                answers.append(False)
        for number, answer in self._ask(asked, known.imports).items():
            answers[number] = answer
        first = next((test for test, answer in zip(known.tests, answers, strict=True) if not answer), None)
        return sum(map(bool, answers)), f"failed {first.text[:120]}" if first else ""

    def _ask(self, asked: list[_Asked], imports: str) -> Mapping[int, bool]:
        """Evaluate questions over plain values in a new sandbox, in which the program has never run.

        Raises SandboxError when that sandbox ends early: neither the program nor its answers can cause this.
        """
        if not asked:
            return {}
        values = {f"t{one.number}_{i}": value for one in asked for i, value in one.values.items()}
        # a hole that raised is not passed: a question that reads it raises, too
        questions = [
            f"bool((lambda {', '.join(f'h{i}=t{one.number}_{i}' for i in one.values)}: {one.test.question})())"
            for one in asked
        ]
        modules = sorted({f"import {name}" for one in asked for name in one.test.modules})
        report = self._sandbox.run(ProgramJob("", questions, "\n".join([imports, *modules]), values))
        if stopped := report.syntax or report.failed or report.ended:
            raise SandboxError(f"the values could not be compared: {stopped}")
        return {one.number: report.values.get(i) is True for i, one in enumerate(asked)}


def limits_of(config: TaskConfig) -> Limits:
    """What one program may use."""
    return Limits(config.judge_timeout, config.code.memory_mib)


def verifier(settings: str) -> Callable[[str, str], Verdict]:
    """The judge of a process, from the task's configuration as JSON."""
    config = TaskConfig.model_validate_json(settings)
    return CodeJudge(Sandbox(config.sandbox, limits_of(config)), config.code)
