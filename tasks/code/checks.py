"""Programs judged by a function that calls them (HumanEval): `check(candidate)`, with its loops and helpers. One
sandbox runs the program, another the data set's code, in which `candidate` is a stand-in: each call goes as plain data
through this process. Invariant: the program's sandbox sees nothing of the check but the arguments of the calls."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tasks.code.compare import is_plain
from tasks.code.confinement import SandboxError
from tasks.code.outcomes import Boxes, Outcome
from tasks.code.sandbox import Ending, Program, Report, Session

_CALLER = "_candidate"


def judge_check(record: Mapping[str, Any], source: str, boxes: Boxes) -> list[Outcome]:
    """The outcome of a problem's check. Raises SandboxError."""
    prompt, entry = record["prompt"], record["entry"]
    if not re.search(rf"^(async )?def {entry}\b", source, re.MULTILINE):
        source = f"{prompt}\n{source}"  # it continues the prompt
    # the prompt's imports and helpers come first anyway
    before = "" if source.startswith(prompt) else prompt
    own = Program(f"{prompt}\n{record['tests'][0]}")
    with (
        boxes.program.session(Program(source, before=before), interactive=True) as program,
        boxes.own.session(own, interactive=True) as checker,
    ):
        return [_relay(program, checker, entry)]


def _relay(program: Session, checker: Session, entry: str) -> Outcome:
    """Pass the check's calls on to the program until the check ends."""
    checker.tell({"expressions": [f"check({_CALLER})"], "values": {}, "caller": _CALLER})
    called, checked = Ending(), Ending()
    answers = program.lines(called)
    report, asked = Report(1), False
    for line in checker.lines(checked):
        match _read(line):
            case ["call", arguments, named]:
                asked = True
                values = {"_a": arguments, "_k": named}
                program.tell({"expressions": [f"{entry}(*_a, **_k)"], "values": values, "more": True})
                answer = _answer(answers)
                if answer.syntax:
                    return Outcome(False, answer.syntax, raised=True, syntax=True)
                if not is_plain(answer.values.get(0, ["o"])):
                    why = answer.failed or answer.raised.get(0) or called.why or "a value that is no plain data"
                    return Outcome(False, why, raised=True)
                checker.tell({"value": answer.values[0]})
            case _ if not report.take(line):
                break
    if 0 in report.values:
        return Outcome(True)
    if why := report.syntax or report.failed or ("" if asked else checked.why):
        raise SandboxError(f"the check could not be run: {why}")
    why = checked.why  # a program can cause it: with answers that are slow, or take long to check
    return Outcome(False, f"check({entry}): {why or report.raised.get(0, 'no answer')}", raised=bool(why))


def _read(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _answer(lines: Iterator[bytes]) -> Report:
    """What the program answers to one call; nothing when its process has ended."""
    report = Report(1)
    for line in lines:
        if not report.take(line) or report.values or report.raised or report.syntax or report.failed:
            break
    return report
