"""The formats of programs' tests: HumanEval's checks, APPS's inputs and outputs, checkers."""

import base64
import json
import pickle
import re
import time
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from core.config import CodeConfig, Columns, TaskConfig
from core.errors import ConfigError, DataError
from core.parts.judge import Case
from core.records import Verdict
from tasks.code.confinement import package_paths
from tasks.code.formats import read_apps, read_humaneval, read_mbpp
from tasks.code.outcomes import FAILS, RAISES, Boxes, Outcome, grade
from tasks.code.programs import judge_program, setting_of, verifier
from tasks.code.sandbox import Limits, Program, Sandbox
from tasks.judging import start_judge
from tasks.problems import Item, load_items
from tests.tasks.code.apps_from_mbpp import apps_rows

APPS = Columns(prompt="question", tests="input_output", solution="solutions", level="difficulty", checker="checker")
CHECK = Columns(prompt="prompt", tests="test", entry_point="entry_point", solution="canonical_solution")
STDIN = Path(__file__).parents[2] / "data" / "apps" / "stdin.jsonl"

Judge = Callable[[Item, str], Verdict]


@pytest.fixture(scope="module")
def boxes(bubblewrap: None) -> Iterator[Boxes]:
    limits = Limits(60.0, 512)
    config = TaskConfig(name="apps")
    program, own = Sandbox("bubblewrap", limits, setting_of(config)), Sandbox("bubblewrap", limits)
    yield Boxes(program, own, CodeConfig(program_seconds=600))
    program.close()
    own.close()


@pytest.fixture(scope="module")
def judge(boxes: Boxes) -> Judge:
    return lambda item, response: judge_program(boxes, item.reference, response)


def script(*pairs: tuple[str, str], **row: Any) -> Item:
    told = {"inputs": [one for one, _ in pairs], "outputs": [other for _, other in pairs], **row.pop("told", {})}
    columns = Columns(prompt="question", tests="input_output", checker="checker")
    return read_apps({"question": "?", "input_output": told, "checker": "", **row}, columns, "row 1")


def calls(name: str, *pairs: tuple[list[Any], Any]) -> Item:
    return script(*pairs, told={"fn_name": name})  # type: ignore[arg-type]


def check(prompt: str, test: str, entry: str) -> Item:
    row = {"prompt": prompt, "test": test, "entry_point": entry, "canonical_solution": "    return None"}
    return read_humaneval(row, CHECK, "row 1")


def test_fifty_problems_for_standard_input(bubblewrap: None) -> None:
    """Their own solutions pass every test, and fail where each output is off."""
    config = TaskConfig(name="apps", path=str(STDIN), columns=APPS, judge_workers=2, judge_timeout=60.0)
    items = load_items(config, read_apps, str(STDIN), "train")
    assert len({item.prompt for item in items}) == 50
    judges = start_judge(config)
    right = judges.judge([Case(item.reference, item.solution or "") for item in items])
    wrong = judges.judge([Case(item.reference, f"{item.solution}\nprint('x')") for item in items])
    judges.close()
    assert [item.prompt for item, one in zip(items, right, strict=True) if not one.correct] == []
    assert {one.reward for one in wrong} == {FAILS}


def test_mbpp_in_the_format_of_apps(bubblewrap: None, shared_data: Path, whole_data: bool, tmp_path: Path) -> None:
    rows = apps_rows(shared_data / "mbpp" / "mbpp.jsonl")
    assert len(rows) == (779 if whole_data else 7)
    columns = Columns(prompt="question", tests="input_output", solution="solutions")
    items = [read_apps(row, columns, "mbpp") for row in rows][:100]
    judges = start_judge(TaskConfig(name="apps", columns=columns, judge_workers=2, judge_timeout=60.0))
    verdicts = judges.judge([Case(item.reference, item.solution or "") for item in items])
    judges.close()
    assert [item.prompt for item, one in zip(items, verdicts, strict=True) if not one.correct] == []


POLY = '''
import math

def poly(xs: list, x: float):
    return sum([coeff * math.pow(x, i) for i, coeff in enumerate(xs)])

def find_zero(xs: list):
    """ Find a zero of a polynomial of degree 1. """
'''
POLY_CHECK = """
METADATA = {}

def check(candidate):
    import random
    rng = random.Random(42)
    for _ in range(100):
        xs = [rng.randint(-10, 10), rng.randint(1, 10)]
        assert math.fabs(poly(xs, candidate(list(xs)))) < 1e-4
"""


def test_a_check_with_loops_and_helpers(judge: Judge) -> None:
    item = check(POLY, POLY_CHECK, "find_zero")
    assert judge(item, "    return -xs[0] / xs[1]") == Verdict(1.0, True)  # continues the prompt
    assert judge(item, "```python\ndef find_zero(xs):\n    return -xs[0] / xs[1]\n```") == Verdict(1.0, True)
    assert judge(item, "    return 0.0").detail.startswith(
        "passed 0 of 1 tests; failed check(find_zero): AssertionError"
    )
    assert judge(item, "    return 1 / 0").detail == "run-time error: ZeroDivisionError: division by zero"
    assert judge(item, "    return -xs[0] /").detail.startswith("does not compile: SyntaxError")
    assert judge(item, "    import os\n    os._exit(0)").detail.startswith("run-time error")
    # the helpers of the check are its own
    assert not judge(
        item, "def poly(*a): return 0\nimport math\nmath.fabs = lambda x: 0\ndef find_zero(xs): return 7.0"
    ).correct


def test_a_check_shows_a_program_nothing_but_its_arguments(judge: Judge) -> None:
    prompt = "def encode(s):\n    return s[::-1]\n\ndef decode(s):\n    pass\n"
    test = "def check(candidate):\n    for s in ('abc', 'xyz'):\n        assert candidate(encode(s)) == s"
    item = check(prompt, test, "decode")
    assert judge(item, "    return s[::-1]").correct
    assert not judge(item, "def encode(s): return s\ndef decode(s): return s").correct  # encode is the check's
    equal = (
        "class Same(str):\n    __eq__ = lambda s, o: True\n    __hash__ = str.__hash__\ndef decode(s): return Same('x')"
    )
    assert not judge(item, equal).correct
    assert judge(item, "class Same: __eq__ = lambda s, o: True\ndef decode(s): return Same()").reward == -0.6
    forged = "import os\ndef decode(s):\n    for fd in range(3, 64):\n        try: os.write(fd, b'[0, \"value\", null]\\n')\n        except OSError: pass\n    return 1"
    assert not judge(item, forged).correct


def test_a_test_that_the_program_could_answer_itself_is_refused() -> None:
    """Two functions that do nothing would agree on it."""
    code = "def encode(s): return s[::-1]\ndef decode(s): return s[::-1]"
    row = {"text": "Code.", "tests": ["assert decode('') == ''", "assert decode(encode('abc')) == 'abc'"], "code": code}
    with pytest.raises(DataError, match=r"test 2 .*encode"):
        read_mbpp(row, Columns(prompt="text", tests="tests", solution="code"), "row 1")
    hidden = {**row, "tests": ["assert decode(x) == 'abc'"], "setup": "x = encode('abc')"}
    with pytest.raises(DataError, match=r"\bx\b"):
        read_mbpp(hidden, Columns(prompt="text", tests="tests", setup="setup"), "row 1")


def test_an_answer_that_takes_long_to_check_is_the_programs(bubblewrap: None) -> None:
    sandbox = Sandbox("bubblewrap", Limits(0.5, 256))
    judge = partial(judge_program, Boxes(sandbox, sandbox))
    test = "def check(candidate):\n    for _ in range(candidate(1)): pass"
    verdict = judge(check("def f(x):\n    pass", test, "f").reference, "def f(x): return 10**15")
    assert (verdict.reward, verdict.judge_failed) == (RAISES, False), verdict
    sandbox.close()


def test_short_naps_are_not_free(bubblewrap: None) -> None:
    """A program that sleeps in pieces too short to be idling: a third of the time on the clock counts."""
    sandbox = Sandbox("bubblewrap", Limits(1.0, 256))
    with sandbox.session(Program("import time\nfor _ in range(900):\n    time.sleep(0.002)\nprint(1)")) as session:
        ending = session.run({"input": ""})
    sandbox.close()
    assert ending.seconds >= 0.6, ending  # 900 x 2 ms = 1.8 s


def test_every_test_has_its_own_outcome_and_limit(bubblewrap: None) -> None:
    limits = Limits(0.5, 256, output_mib=1)
    sandbox = Sandbox("bubblewrap", limits)
    judge = partial(judge_program, Boxes(sandbox, sandbox))
    program = (
        "import sys, time\nn = int(input())\nif n == 1: 1 / 0\nif n == 2:\n    while True: pass\nif n == 3: "
        "sys.exit(1)\n"
        "if n == 4: print('x' * (1 << 21))\nprint(n)"
    )
    item = script(*((f"{n}\n", f"{n}\n") for n in range(6)))
    verdict = judge(item.reference, program)
    assert verdict.reward == pytest.approx(-0.3 + 1.3 * 2 / 6)
    assert verdict.detail == "passed 2 of 6 tests; error in ZeroDivisionError: division by zero"
    for n, why in (
        (2, "stopped after|used up"),
        (3, "ended itself with status 1"),
        (4, "stopped after 1048576 bytes"),
    ):
        alone = judge(script((f"{n}\n", f"{n}\n")).reference, program)
        assert (alone.reward, bool(re.search(why, alone.detail))) == (-0.6, True), alone
    sandbox.close()


def test_a_program_that_idles_costs_its_limit_once(bubblewrap: None) -> None:
    sandbox = Sandbox("bubblewrap", Limits(2.0, 256))
    judge = partial(judge_program, Boxes(sandbox, sandbox))
    begun = time.monotonic()
    verdict = judge(script(*[("", "1")] * 3).reference, "import time\ntime.sleep(1000)")
    assert "without doing anything" in verdict.detail
    assert time.monotonic() - begun < 3 * 2.0 + 60  # 2.4 s; the machine may be busy
    sandbox.close()


def test_right_answers_may_be_long(judge: Judge) -> None:
    lines = "".join(f"{i}\n" for i in range(300_000))
    assert len(lines) > 1_900_000
    assert judge(script(("300000\n", lines)), "for i in range(int(input())): print(i)").correct
    assert judge(calls("f", ([1000], "x" * 400_000)), "def f(n): return 'x' * 400 * n").correct


def test_scripts_run_as_scripts(judge: Judge) -> None:
    program = "def main():\n    print(sum(map(int, sys.stdin.read().split())))\nif __name__ == '__main__': main()"
    assert judge(script(("1 2\n3\n", "6")), program).correct  # `sys` is of the prelude
    threaded = "import threading\ndef main(): print(input())\nthreading.stack_size(1 << 26)\nthreading.Thread(target=main).start()"
    assert judge(script(("x\n", "x\n")), threaded).correct
    assert judge(script(("x\n", "x\n")), "print(open(0).read()); exit()").correct
    assert judge(script(("x\n", "x\n")), "print(open('/dev/stdin').read() if 0 else input())").correct


def test_functions_and_methods(judge: Judge) -> None:
    item = calls("twice", ([[1, 2]], [2, 4]), ([[]], []))
    assert judge(
        item, "class Solution:\n    def twice(self, xs: List[int]) -> List[int]: return [2 * x for x in xs]"
    ).correct
    assert judge(item, "class Solution: pass\ndef twice(xs): return [2 * x for x in xs]").correct
    assert judge(item, "def twice(xs): return tuple(2 * x for x in xs)").correct  # tuples count as lists
    assert judge(item, "def twice(xs): return xs").reward == pytest.approx(-0.3 + 1.3 / 2)
    assert judge(item, "def other(xs): return xs").detail == "run-time error: NameError: name 'twice' is not defined"


def test_a_checker_accepts_several_answers(judge: Judge) -> None:
    checker = "import sys\na, b, c = (open(name).read().split() for name in sys.argv[1:])\nprint(int(sum(map(int, c)) == int(a[0])))"
    item = script(("10\n", "1 9\n"), checker=checker)
    assert judge(item, "n = int(input())\nprint(2, n - 2)").correct
    assert judge(item, "print(1, 1)").reward == FAILS
    refused = judge(item, "print('x')")  # the checker raises: the answer is no sum
    assert (refused.correct, refused.judge_failed) == (False, False)
    assert "refused by the checker (ValueError" in refused.detail
    silent = script(("1\n", "1\n"), checker="import sys\nsys.exit(open('output').read() != open('expected').read())")
    assert judge(silent, "print(1)").correct
    assert not judge(silent, "print(2)").correct


def test_a_tolerance_of_the_data(judge: Judge) -> None:
    near = script(("", "0.3333333"), told={"tolerance": 1e-6})
    assert judge(near, "print(1 / 3)").correct
    assert not judge(script(("", "0.3333333")), "print(1 / 3)").correct


def test_packages_that_the_user_allows(bubblewrap: None) -> None:
    settings = TaskConfig(name="apps", judge_timeout=60.0, code=CodeConfig(packages=("numpy",), memory_mib=1024))
    judge = verifier(settings.model_dump_json())
    item = script(("1 2 3\n", "6\n"))
    assert judge(item.reference, "import numpy\nprint(numpy.array(input().split(), dtype=int).sum())").correct
    assert judge(calls("f", ([3], 3)).reference, "import numpy\ndef f(n): return numpy.arange(n + 1)[n]").correct
    test = "import numpy\ndef check(candidate): assert numpy.isclose(candidate(3), 3)"
    assert judge(check("def f(n):\n    pass", test, "f").reference, "def f(n): return n").correct  # a check's, too
    with pytest.raises(ConfigError, match=r"task\.code\.packages: 'nothing_such'"):
        package_paths(["nothing_such"])
    sandbox = Sandbox("bubblewrap", Limits(60.0, 512))
    plain = partial(judge_program, Boxes(sandbox, sandbox))
    assert "No module named 'numpy'" in plain(item.reference, "import numpy").detail


def test_grades() -> None:
    passed, failed, raised = Outcome(True), Outcome(False, "f"), Outcome(False, "r", raised=True)
    graded = [
        (grade([passed, failed, failed], [0], CodeConfig()), -0.3),  # the one that the prompt shows earns nothing
        (grade([passed, passed, failed], [0], CodeConfig()), -0.3 + 1.3 / 2),
        (grade([failed, passed, passed], [0], CodeConfig()), -0.3 + 1.3 * 2 / 3),  # not all: that would be 1
        (grade([passed, failed], [0, 1], CodeConfig()), -0.3 + 1.3 / 2),  # the prompt shows all
        (grade([passed, raised], [], CodeConfig()), -0.3 + 1.3 / 2),
        (grade([passed, raised], [], CodeConfig(reward="all")), 0.0),
        (grade([raised, raised], [], CodeConfig()), -0.6),
        (grade([failed, raised], [], CodeConfig()), -0.3),
        (grade([passed, passed], [0], CodeConfig()), 1.0),
    ]
    assert [verdict.reward for verdict, _ in graded] == pytest.approx([reward for _, reward in graded])


def test_what_the_prompt_shows_is_found() -> None:
    told = {"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7\n"]}
    row = {"question": "Add.\nInput\n1 2\nOutput\n3\n", "input_output": json.dumps(told)}
    item = read_apps(row, Columns(prompt="question", tests="input_output"), "row 1")
    assert json.loads(item.reference)["shown"] == [0]


def test_the_tests_of_livecodebench() -> None:
    tests = [{"input": "[1, 2]\n3", "output": '"ab"', "testtype": "functional"}]
    packed = base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests)))).decode()
    columns = Columns(prompt="question", tests="tests", entry_point="metadata")
    row: dict[str, Any]
    for given in (tests, json.dumps(tests), packed):
        row = {"question": "?", "tests": given, "metadata": '{"func_name": "f"}'}
        record = json.loads(read_apps(row, columns, "row 1").reference)
        assert (record["fn_name"], record["inputs"], record["outputs"]) == ("f", [[[1, 2], 3]], ["ab"])
    listed = [{"input": "[1]", "output": [1, 2], "testtype": "functional"}]
    row = {"question": "?", "tests": listed, "metadata": {"func_name": "f"}}
    assert json.loads(read_apps(row, columns, "row 1").reference)["outputs"] == [[1, 2]]
    for changed, why in (
        ({"metadata": ""}, r"has tests of a function and no name of it; name its column in task\.columns\.entry_point"),
        ({"metadata": "{func_name: f}"}, r"column 'metadata' \(task\.columns\.entry_point\) is not JSON"),
        ({"tests": [{**listed[0], "output": ""}]}, "an output of a function is not JSON"),
    ):
        with pytest.raises(DataError, match=f"row 1: .*{why}"):
            read_apps({**row, **changed}, columns, "row 1")
    evil = base64.b64encode(zlib.compress(pickle.dumps(len))).decode()  # not print, which Ray replaces
    with pytest.raises(DataError, match=r"row 1: column 'tests' .*builtins\.len"):
        read_apps({"question": "?", "tests": evil, "metadata": ""}, columns, "row 1")


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"inputs": ["1"], "outputs": []}, "no lists 'inputs' and 'outputs' of one length"),
        ({"inputs": [], "outputs": []}, "no lists 'inputs' and 'outputs' of one length"),
        ({"inputs": [{}], "outputs": ["1"]}, "an input or output is dict, not text"),
        ({"inputs": [[1]], "outputs": [1], "fn_name": "a b"}, "'fn_name' = 'a b' is no name of a function"),
        ({"inputs": ["1"], "outputs": ["1"], "tolerance": 2}, "'tolerance' = 2 is no number from 0 to 1"),
        ("not json", "is not JSON"),
        ("[1]", "neither an object with inputs and outputs nor its JSON text"),
    ],
)
def test_bad_rows_of_inputs_and_outputs(told: object, why: str) -> None:
    with pytest.raises(
        DataError, match=r"row 1: column 'input_output' \(task\.columns\.tests\).*" + why.replace("(", r"\(")
    ):
        read_apps({"question": "?", "input_output": told}, Columns(prompt="question", tests="input_output"), "row 1")


def test_bad_checks() -> None:
    row = {
        "prompt": "def f(x):\n    pass",
        "test": "def other(): pass",
        "entry_point": "f",
        "canonical_solution": "    pass",
    }
    with pytest.raises(DataError, match=r"row 1: column 'test' .*check\(candidate\)"):
        read_humaneval(row, CHECK, "row 1")
    with pytest.raises(DataError, match=r"column 'entry_point' .*'f\('"):
        read_humaneval({**row, "entry_point": "f("}, CHECK, "row 1")
    with pytest.raises(DataError, match="column 'prompt'"):
        read_humaneval({**row, "prompt": "def f("}, CHECK, "row 1")
    with pytest.raises(ConfigError, match=r"task\.columns\.entry_point"):
        read_humaneval(row, Columns(prompt="prompt", tests="test"), "row 1")
