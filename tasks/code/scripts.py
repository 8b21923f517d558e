"""Programs judged by inputs and outputs: read from standard input and printed, or passed to a function and returned.
Invariant: a program's sandbox sees inputs only; outputs are compared here, or in a checker's sandbox, after its end."""

from collections.abc import Mapping
from typing import Any

from tasks.code.compare import same_output, same_value
from tasks.code.outcomes import Boxes, Outcome, outcome_of_each, unanswered
from tasks.code.sandbox import Program, Session
from tasks.code.sandbox_driver import NOT_COMPILED
from tasks.code.sandbox_values import encode_value

ACCEPTED = ("1", "1.0", "ok", "yes", "true", "accepted")  # first words of a checker's output that accept an answer
Test = tuple[Any, Any]  # input and output: two texts; or the arguments of a call and its value


def judge_script(record: Mapping[str, Any], source: str, boxes: Boxes) -> list[Outcome]:
    """The outcome of every test of a program that reads standard input and prints. Raises SandboxError."""
    tests: list[Test] = list(zip(record["inputs"], record["outputs"], strict=True))
    tolerance, judged_by = record.get("tolerance", 0.0), record.get("checker", "")
    printed: list[tuple[int, Test, str]] = []  # what a checker judges

    def _run(number: int, test: Test) -> tuple[Outcome, float]:
        text, expected = test
        ending = session.run({"input": text})
        if problem := ending.why or (ending.status and (ending.errors or f"ended itself with status {ending.status}")):
            syntax = ending.status == NOT_COMPILED
            return Outcome(False, problem, raised=True, syntax=syntax), ending.seconds
        output = ending.output.decode(errors="replace")
        if judged_by:
            printed.append((number, test, output))
            return Outcome(True), ending.seconds
        same = same_output(expected, output, tolerance)
        why = f"test {number + 1}: expected {expected.strip()[:60]!r}, printed {output.strip()[:60]!r}"
        return Outcome(same, "" if same else why), ending.seconds

    with boxes.program.session(Program(source, before=record["setup"])) as session:
        outcomes = outcome_of_each(tests, _run, boxes.config.program_seconds)
    if printed:
        with boxes.own.session(Program(judged_by)) as checker:
            checked = outcome_of_each(printed, lambda _, one: _checked(checker, *one), boxes.config.program_seconds)
        for (number, _, _), outcome in zip(printed, checked, strict=True):
            outcomes[number] = outcome
    return outcomes


def judge_calls(record: Mapping[str, Any], source: str, boxes: Boxes) -> list[Outcome]:
    """The outcome of every call of `name`, or of `Solution().name` if there is one. Raises SandboxError."""
    name, tolerance = record["fn_name"], record.get("tolerance", 0.0)
    call = f"(Solution().{name} if hasattr(globals().get('Solution'), '{name}') else {name})(*_arguments)"

    def _run(number: int, test: Test) -> tuple[Outcome, float]:
        arguments, expected = test
        report, ending = session.evaluate([call], {"_arguments": encode_value(arguments)})
        if failed := unanswered(report, ending):
            return failed, ending.seconds
        # as APPS has it
        accepted = [expected, *(expected if isinstance(expected, list) and len(expected) == 1 else ())]
        same = any(same_value(each, report.values[0], tolerance) for each in accepted)
        return Outcome(same, "" if same else f"test {number + 1}: expected {str(expected)[:60]!r}"), ending.seconds

    with boxes.program.session(Program(source, before=record["setup"])) as session:
        tests = zip(record["inputs"], record["outputs"], strict=True)
        return outcome_of_each(tests, _run, boxes.config.program_seconds)


def _checked(checker: Session, number: int, test: Test, output: str) -> tuple[Outcome, float]:
    """Run a checker on the files input, expected, output. It accepts by printing 1 or `ok` first, or exiting with 0."""
    files = {"input": test[0], "expected": test[1], "output": output}
    ending = checker.run({"input": "", "files": files, "arguments": list(files)})
    said = ending.output.decode(errors="replace").split(None, 20)
    passed = not ending.why and not ending.status and (not said or said[0].lower() in ACCEPTED)
    why = f"refused by the checker ({ending.why or ending.errors or ' '.join(said[:20])})"
    why = "" if passed else f"test {number + 1}: {why}, printed {output.strip()[:60]!r}"
    return Outcome(passed, why), ending.seconds
