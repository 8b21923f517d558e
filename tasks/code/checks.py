"""Programs judged by a function that calls them (HumanEval): `check(candidate)`, with its loops and helpers.

Called by `tasks/code/programs.py`. Two sandboxes work together. One runs the program. The other runs the data set's code, in which
`candidate` is a stand-in: each call goes as plain data through this process to the program, and its value comes back the same way.
Invariant: the program's sandbox sees the arguments of the calls and nothing else of the check.
"""

import json
import re
import time
from collections.abc import Mapping
from typing import Any

from tasks.code.compare import is_plain
from tasks.code.confinement import SandboxError
from tasks.code.outcomes import Boxes, Outcome
from tasks.code.sandbox import Ending, Program, Report, Session, end_of

_CALLER = "_candidate"


class CheckTests:
    """The check of one problem."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        self._prompt: str = record["prompt"]
        self._check: str = record["tests"][0]
        self._entry: str = record["entry"]

    def source_of(self, program: str) -> str:
        """The whole program: a response that continues the prompt is put after it; its imports and helpers come first anyway."""
        whole = re.search(rf"^(async )?def {self._entry}\b", program, re.MULTILINE)
        return program if whole else f"{self._prompt}\n{program}"

    def judge(self, source: str, boxes: Boxes) -> list[Outcome]:
        """The outcome of the check. Raises SandboxError."""
        source = self.source_of(source)
        before = "" if source.startswith(self._prompt) else self._prompt
        own = Program(f"{self._prompt}\n{self._check}")
        with (
            boxes.program.session(Program(source, before=before), interactive=True) as program,
            boxes.own.session(own, interactive=True) as checker,
        ):
            return [_relay(program, checker, self._entry)]


def _relay(program: Session, checker: Session, entry: str) -> Outcome:
    """Pass the check's calls on to the program until the check ends."""
    checker.send({"expressions": [f"check({_CALLER})"], "values": {}, "caller": _CALLER})
    called = Conversation(program)
    checked = Conversation(checker)
    report, asked = Report(1), False
    while (line := checked.line()) is not None:
        match _read(line):
            case ["call", arguments, named]:
                asked = True
                answer = called.ask({"expressions": [f"{entry}(*_a, **_k)"], "values": {"_a": arguments, "_k": named}})
                if answer.syntax:
                    return Outcome(False, answer.syntax, raised=True, syntax=True)
                plain = is_plain(answer.values.get(0, ["o"]))
                if not plain:
                    why = answer.failed or answer.raised.get(0) or called.ending.why or "a value that is no plain data"
                    return Outcome(False, why, raised=True)
                checker.send({"value": answer.values[0]})
            case _:
                report.take(line)
    if 0 in report.values:
        return Outcome(True)
    if why := report.syntax or report.failed or ("" if asked else checked.ending.why):
        raise SandboxError(f"the check could not be run: {why}")
    why = checked.ending.why  # a program can cause it: with answers that are slow, or take long to check
    return Outcome(False, f"check({entry}): {why or report.raised.get(0, 'no answer')}", raised=bool(why))


def _read(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


class Conversation:
    """The messages of one process in a sandbox, as lines."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._pending = b""
        self._lines: list[bytes] = []
        self._over = False
        self.ending = Ending()

    def ask(self, test: Mapping[str, Any]) -> Report:
        """Have expressions evaluated; the process waits for more afterwards."""
        self._session.send({**test, "more": True})
        report = Report(len(test["expressions"]))
        while not (report.values or report.raised or report.syntax or report.failed):
            line = self.line()
            if line is None:
                break
            report.take(line)
        return report

    def line(self) -> bytes | None:
        """The next line; None when the process has ended."""
        while not self._lines and not self._over:
            try:
                kind, data = self._session.frame(time.monotonic() + self._session.patience)
            except (TimeoutError, EOFError, ValueError):
                self._over, self.ending.why = True, "ended its sandbox"
                break
            if kind == b"x":
                end_of(self.ending, data)
                self._over = True
            elif kind == b"o":
                *self._lines, self._pending = (self._pending + data).split(b"\n")
        return self._lines.pop(0) if self._lines else None
