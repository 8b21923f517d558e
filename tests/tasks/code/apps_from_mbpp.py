"""Converts MBPP to the format of APPS: `python -m tests.tasks.code.apps_from_mbpp MBPP.jsonl APPS.jsonl`.

A test `assert f(1, 'a') == [2]` becomes the input [1, "a"] and the output [2] of `fn_name` f. Rows with other tests,
with a setup, or with arguments that JSON would change (tuples, sets) are left out.
"""

import ast
import json
import sys
from pathlib import Path
from typing import Any


def apps_row(row: dict[str, Any]) -> dict[str, Any] | None:
    """The row in the format of APPS; None if it cannot be converted."""
    if row["test_setup_code"]:
        return None
    names, inputs, outputs = set(), [], []
    for test in row["test_list"]:
        match ast.parse(test).body:
            case [ast.Assert(ast.Compare(ast.Call(ast.Name(name), arguments, []), [ast.Eq()], [expected]))]:
                try:
                    given, wanted = [ast.literal_eval(each) for each in arguments], ast.literal_eval(expected)
                    if json.loads(json.dumps(given)) != given or json.loads(json.dumps(wanted)) != wanted:
                        return None
                except (ValueError, TypeError):
                    return None
            case _:
                return None
        names.add(name)
        inputs.append(given)
        outputs.append(wanted)
    if len(names) != 1:
        return None
    told = {"fn_name": names.pop(), "inputs": inputs, "outputs": outputs}
    return {"question": row["text"], "input_output": json.dumps(told), "solutions": json.dumps([row["code"]])}


def apps_rows(file: Path) -> list[dict[str, Any]]:
    """All rows of a file of MBPP that can be converted."""
    rows = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    return [converted for row in rows if (converted := apps_row(row))]


if __name__ == "__main__":
    Path(sys.argv[2]).write_text("".join(json.dumps(row) + "\n" for row in apps_rows(Path(sys.argv[1]))))
