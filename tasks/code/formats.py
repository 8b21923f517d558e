"""From the rows of a data set of programs to items, whose references are the records that `programs.py` judges by.
Invariant: what cannot be judged is refused here, with an error of one line that names row, column and remedy."""

import ast
import base64
import io
import json
import pickle
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from core.config import Columns
from core.errors import ConfigError, DataError
from tasks.code.parsing import cannot_be_parsed
from tasks.code.unit_tests import read_setup, split_test, statements
from tasks.kinds import TaskKind
from tasks.problems import Item, level_of, solution_of, text_of
from tasks.sources import Row


def read_mbpp(row: Row, columns: Columns, where: str) -> Item:
    """A row with a list of asserts (MBPP). The prompt shows only the first one, because it names the function. Raises
    DataError, and ConfigError when task.columns.tests is empty."""
    column = _needed(columns.tests, "tests", "test_list")
    setup = _setup_of(row, columns, where)
    tests = _asserts(row[column], setup, f"{where}: column {column!r} (task.columns.tests)")
    solution = solution_of(row, columns, where)
    prompt = f"{text_of(row, columns.prompt, 'prompt', where)}\nFor example: {tests[0]}"
    record = {"format": "asserts", "setup": setup, "tests": tests, "shown": [0]}
    return Item(prompt, json.dumps(record), level_of(row, columns), solution and _lines(solution))


def read_humaneval(row: Row, columns: Columns, where: str) -> Item:
    """A row with `check(candidate)` and the name of the function that it checks (HumanEval). The prompt is the
    beginning of a program; the response continues it, or is a whole program. Raises as `read_mbpp`."""
    column = _needed(columns.tests, "tests", "test")
    entry = text_of(row, _needed(columns.entry_point, "entry_point", "entry_point"), "entry_point", where)
    if not entry.isidentifier():
        raise DataError(
            f"{where}: column {columns.entry_point!r} (task.columns.entry_point): {entry!r} is no name of a function; "
            "fix or delete the row"
        )
    prompt = _lines(text_of(row, columns.prompt, "prompt", where))
    check = _lines(text_of(row, column, "tests", where))
    place = f"{where}: column {column!r} (task.columns.tests)"
    for text, name in ((prompt, f"{where}: column {columns.prompt!r} (task.columns.prompt)"), (check, place)):
        with _refused(name, "Python"):
            tree = ast.parse(text)
    if not any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in tree.body):
        raise DataError(f"{place} defines no function check(candidate); fix or delete the row")
    solution = None
    if columns.solution is not None and solution_of(row, columns, where):
        # it may continue the prompt: keep its indentation
        solution = row[columns.solution].replace("\r\n", "\n").strip("\n")
    record = {"format": "check", "prompt": prompt, "tests": [check], "entry": entry}
    return Item(prompt, json.dumps(record), level_of(row, columns), solution)


def read_apps(row: Row, columns: Columns, where: str) -> Item:
    """A row with inputs and outputs (APPS, APPS+, TACO, LiveCodeBench): an object, or its JSON text, with `inputs`,
    `outputs` and perhaps `fn_name`; or a list of objects with `input`, `output`, `testtype`. Raises as `read_mbpp`."""
    column = _needed(columns.tests, "tests", "input_output")
    place = f"{where}: column {column!r} (task.columns.tests)"
    tests = _input_output(row[column], place)
    name = tests.get("fn_name") or _function_name(row, columns, where)
    if tests.get("called") and not name:
        raise DataError(
            f"{place} has tests of a function and no name of it; name its column in task.columns.entry_point"
        )
    inputs, outputs = tests.get("inputs"), tests.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or not inputs or len(inputs) != len(outputs):
        raise DataError(f"{place} has no lists 'inputs' and 'outputs' of one length; fix or delete the row")
    prompt = text_of(row, columns.prompt, "prompt", where)
    record: dict[str, Any] = {"format": "calls" if name else "script", "setup": _setup_of(row, columns, where)}
    if name:
        if not str(name).isidentifier():
            raise DataError(f"{place}: 'fn_name' = {name!r} is no name of a function; fix or delete the row")
        record |= {"fn_name": name, "inputs": [_arguments(each, place) for each in inputs], "outputs": outputs}
    else:
        record["inputs"], record["outputs"] = ([_text(each, place) for each in side] for side in (inputs, outputs))
        pairs = zip(record["inputs"], record["outputs"], strict=True)
        record["shown"] = [i for i, pair in enumerate(pairs) if all(_shows(prompt, text) for text in pair)]
    if (tolerance := tests.get("tolerance")) is not None:
        if not isinstance(tolerance, int | float) or not 0 <= tolerance < 1:
            raise DataError(f"{place}: 'tolerance' = {tolerance!r} is no number from 0 to 1; fix the row")
        record["tolerance"] = tolerance
    if columns.checker and row[columns.checker]:
        record["checker"] = checker = _lines(text_of(row, columns.checker, "checker", where))
        with _refused(f"{where}: column {columns.checker!r} (task.columns.checker)", "Python"):
            compile(checker, "checker", "exec", dont_inherit=True)
    solution = _first_solution(row, columns, where)
    return Item(prompt, json.dumps(record), level_of(row, columns), solution and _lines(solution))


def _needed(column: str | None, field: str, usual: str) -> str:
    if column is None:
        raise ConfigError(f"task.columns.{field} is empty: name the column (usually {usual})")
    return column


@contextmanager
def _refused(where: str, form: str = "") -> Iterator[None]:
    """Raises DataError when what is read inside is not of this form, or is a test that cannot be used."""
    try:
        yield
    except (SyntaxError, ValueError, RecursionError) as error:
        why = f" is not {form} ({error})" if form else f": {error}"
        raise DataError(f"{where}{why}; fix or delete the row") from None


def _setup_of(row: Row, columns: Columns, where: str) -> str:
    if columns.setup is None:
        return ""
    place = f"{where}: column {columns.setup!r} (task.columns.setup)"
    value = row[columns.setup]
    lines: list[Any] = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(line, str) for line in lines):
        raise DataError(f"{place} is neither text nor a list of lines; fix the row")
    setup = _lines("\n".join(lines))
    with _refused(place):
        read_setup(setup)
    return setup


def _asserts(value: object, setup: str, where: str) -> list[str]:
    with _refused(where):
        asserts: object = statements(value) if isinstance(value, str) else value
    if not isinstance(asserts, list) or not asserts or not all(isinstance(test, str) for test in asserts):
        raise DataError(f"{where} is no list of asserts; fix or delete the row")
    scope, tests = read_setup(setup), []
    for index, text in enumerate(asserts, 1):
        with _refused(f"{where}: test {index} cannot be used"):
            tests.append(split_test(text, scope).text)
    return tests


def _input_output(value: Any, where: str) -> dict[str, Any]:
    """The object in a column: as it is, as JSON text, or as LiveCodeBench packs its hidden tests."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except RecursionError:
            raise DataError(f"{where} is nested too deeply; fix or delete the row") from None
        except ValueError:
            value = _unpacked(value, where)
    if isinstance(value, list) and all(isinstance(each, dict) and {"input", "output"} <= each.keys() for each in value):
        called = any(each.get("testtype") == "functional" for each in value)
        inputs, outputs = ([each[side] for each in value] for side in ("input", "output"))
        if called:  # LiveCodeBench has the values as JSON
            with _refused(f"{where}: an output of a function", "JSON"):
                outputs = [json.loads(each) if isinstance(each, str) else each for each in outputs]
        return {"inputs": inputs, "outputs": outputs, "called": called}
    if not isinstance(value, dict):
        raise DataError(
            f"{where} is neither an object with inputs and outputs nor its JSON text; fix or delete the row"
        )
    return value


class _TextOnly(pickle.Unpickler):
    """Reads a pickled text. A pickle of anything else could run code, and is refused."""

    def find_class(self, module: str, name: str) -> Any:
        """Refuse to look up a function or class."""
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def _unpacked(text: str, where: str) -> Any:
    try:
        return json.loads(_TextOnly(io.BytesIO(zlib.decompress(base64.b64decode(text, validate=True)))).load())
    except Exception as error:  # a damaged text raises one of many types; all mean that it cannot be read
        raise DataError(f"{where} is not JSON ({error}); fix or delete the row") from None


def _function_name(row: Row, columns: Columns, where: str) -> str:
    """The name in a column of its own: as text, or as `func_name` of an object (LiveCodeBench's metadata)."""
    value = row[columns.entry_point] if columns.entry_point else None
    if isinstance(value, str) and value.lstrip().startswith("{"):
        with _refused(f"{where}: column {columns.entry_point!r} (task.columns.entry_point)", "JSON"):
            value = json.loads(value)
    return str(value.get("func_name") or "") if isinstance(value, dict) else str(value or "")


def _arguments(value: Any, where: str) -> list[Any]:
    """The arguments of a call; LiveCodeBench has them as lines of JSON."""
    if isinstance(value, str):
        with _refused(f"{where}: an input of a function", "JSON"):
            value = [json.loads(line) for line in value.splitlines()]
    return value if isinstance(value, list) else [value]


def _text(value: Any, where: str) -> str:
    """An input or output as text; some rows have lists of lines."""
    if isinstance(value, list) and all(isinstance(line, str | int | float) for line in value):
        return "\n".join(map(str, value))
    if isinstance(value, str | int | float):
        return str(value)
    raise DataError(f"{where}: an input or output is {type(value).__name__}, not text; fix or delete the row")


def _shows(prompt: str, text: str) -> bool:
    """Whether the lines of a text are whole lines of the prompt, in a row."""
    lines = [line.strip() for line in text.strip().splitlines()]
    return bool(lines) and "\n{}\n".format("\n".join(lines)) in "\n{}\n".format(
        "\n".join(line.strip() for line in prompt.splitlines())
    )


def _first_solution(row: Row, columns: Columns, where: str) -> str | None:
    """The canonical solution; of a list of solutions (or its JSON text) the first."""
    value = row[columns.solution] if columns.solution else None
    if isinstance(value, str) and re.match(r"\s*\[\s*[\"\]]", value):
        try:
            value = json.loads(value)
        except ValueError:
            return value  # a program that begins with a list
    if isinstance(value, list):
        return str(value[0]) if value else None
    return solution_of(row, columns, where)


def _lines(text: str) -> str:
    return text.replace("\r\n", "\n").strip()


MBPP, HUMANEVAL, APPS = (
    TaskKind("tasks.code.programs:verifier", read=read, runs_programs=True, prefix_is_wrong=cannot_be_parsed)
    for read in (read_mbpp, read_humaneval, read_apps)
)
