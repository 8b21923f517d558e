"""Programs judged by assert statements. `unit_tests.py` splits a test; a sandbox evaluates the program's side; the
values are compared here, or in a sandbox in which the program has never run.

Invariants: the process that runs the program never has an expected value. Its results are compared with Python's == as
plain data of builtin types. The only tolerance is what the test itself writes.
"""

from collections.abc import Mapping
from typing import Any

from tasks.code.compare import equal, is_plain
from tasks.code.confinement import SandboxError
from tasks.code.outcomes import Boxes, Outcome, outcome_of_each, unanswered
from tasks.code.sandbox import Program, Sandbox
from tasks.code.unit_tests import UnitTest, read_setup, split_test

Asked = tuple[int, UnitTest, Mapping[int, Any]]  # number of a test, the test, the values of its holes by their index


class AssertTests:
    """The tests of one problem."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        setup = read_setup(record["setup"])
        self.setup: str = record["setup"]
        self.tests = tuple(split_test(test, setup) for test in record["tests"])
        self._imports = "\n".join(setup.imports)  # questions need them, too

    def judge(self, source: str, boxes: Boxes) -> list[Outcome]:
        """The outcome of every test. Raises SandboxError."""
        asked: list[Asked] = []  # the tests that are more than `hole == literal`
        program = Program(source, after=self.setup)

        def _run(index: int, test: UnitTest) -> tuple[Outcome, float]:
            report, ending = session.evaluate(test.holes)
            if failed := unanswered(report, ending, test.skippable):
                return failed, ending.seconds
            if test.literal is not None:
                return self._outcome(test, equal(test.literal[0], report.values[0])), ending.seconds
            if plain := all(map(is_plain, report.values.values())):
                asked.append((index, test, report.values))
            return self._outcome(test, plain), ending.seconds

        with boxes.program.session(program) as session:
            outcomes = outcome_of_each(self.tests, _run, boxes.config.program_seconds)
        for index, answer in ask(asked, self._imports, boxes.own).items():
            outcomes[index] = self._outcome(self.tests[index], answer)
        return outcomes

    @staticmethod
    def _outcome(test: UnitTest, passed: bool) -> Outcome:
        return Outcome(passed, "" if passed else test.text[:120])


def ask(asked: list[Asked], imports: str, sandbox: Sandbox) -> Mapping[int, bool]:
    """Evaluate questions over plain values in a new sandbox. Raises SandboxError when that sandbox ends early. Answers
    can cause this only by being slow to compare, and earn the least."""
    if not asked:
        return {}
    values = {f"t{index}_{i}": value for index, _, values_of_test in asked for i, value in values_of_test.items()}
    # a hole that raised is not passed: a question that reads it raises, too
    questions = [
        f"bool((lambda {', '.join(f'h{i}=t{index}_{i}' for i in values_of_test)}: {test.question})())"
        for index, test, values_of_test in asked
    ]
    modules = sorted({f"import {name}" for _, test, _ in asked for name in test.modules})
    with sandbox.session(Program("\n".join([imports, *modules]))) as session:
        report, ending = session.evaluate(questions, values)
    if stopped := report.syntax or report.failed or ending.why:
        raise SandboxError(f"the values could not be compared: {stopped}")
    return {index: report.values.get(i) is True for i, (index, _, _) in enumerate(asked)}
