"""Programs judged by unit tests: MBPP's own solutions, what a test may be, what equals what, what is earned."""

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest

from core.config import CodeConfig, Columns, TaskConfig
from core.errors import ConfigError, DataError
from core.parts.judge import Case
from core.records import Verdict
from tasks.code.asserts import AssertTests, ask
from tasks.code.confinement import SandboxError
from tasks.code.formats import read_mbpp
from tasks.code.outcomes import FAILS, RAISES, Boxes
from tasks.code.programs import judge_program, limits_of
from tasks.code.sandbox import DRIVER, Limits, Sandbox, check_sandbox
from tasks.code.unit_tests import split_test
from tasks.judge_pool import JudgePool
from tasks.judging import check_judge, start_judge
from tasks.limits import TokenLimits
from tasks.problems import Item, load_items
from tasks.task import build_task

MBPP = Columns(prompt="text", tests="test_list", setup="test_setup_code", solution="code")

Judge = partial[Verdict]


@pytest.fixture(scope="module")
def judge(bubblewrap: None) -> Iterator[Judge]:
    sandbox = Sandbox("bubblewrap", Limits(60.0, 512))
    yield partial(judge_program, Boxes(sandbox, sandbox))
    sandbox.close()


def reference(*tests: str, setup: str = "") -> str:
    return json.dumps({"format": "asserts", "setup": setup, "tests": tests})


def mbpp(shared_data: Path) -> list[Item]:
    file = str(shared_data / "mbpp" / "mbpp.jsonl")
    return load_items(TaskConfig(name="mbpp", path=file, columns=MBPP), read_mbpp, file, "train")


def beside(value: Any) -> Any:
    """A value of the same type that is just not this one."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return value + "x"
        case list():
            return [*value, 0]
        case tuple():
            return (*value, 0)
        case set():
            return value | {"x"}
        case dict():
            return {**value, "x": 0}
    assert value is None
    return 0


def asserts(text: str) -> AssertTests:
    return AssertTests(json.loads(text))


def with_wrong_values(item: Item) -> str:
    """The reference of an item with every expected value off by a little."""
    tests = asserts(item.reference).tests
    return reference(*(f"assert {test.holes[0]} == {beside(test.literal[0])!r}" for test in tests if test.literal))


def is_usual(item: Item) -> bool:
    """Whether its tests compare with a literal, and need nothing else."""
    asked = asserts(item.reference)
    return not asked.setup and all(test.literal for test in asked.tests)


def test_the_canonical_solutions_of_mbpp_pass(bubblewrap: None, shared_data: Path, whole_data: bool) -> None:
    """Every fourth of the 974 (`launch.py check` judges all), and none passes a test whose expected value is off by a
    little."""
    items = mbpp(shared_data)
    assert len(items) == (974 if whole_data else 11)
    items = items[::4] if whole_data else items
    config = TaskConfig(name="mbpp", columns=MBPP, judge_workers=2, judge_timeout=60.0)  # the machine may be busy
    judges = start_judge(config)
    verdicts = judges.judge([Case(item.reference, item.solution or "") for item in items])
    usual = [item for item in items if is_usual(item)][:40]
    assert len(usual) == (40 if whole_data else 9)
    wrong = judges.judge([Case(with_wrong_values(item), item.solution or "") for item in usual])
    judges.close()
    assert [item.prompt for item, verdict in zip(items, verdicts, strict=True) if not verdict.correct] == []
    assert {verdict.reward for verdict in verdicts} == {1.0}
    assert {verdict.reward for verdict in wrong} == {FAILS}  # they ran, and passed none


def test_rewards_are_graded(judge: Judge) -> None:
    tests = reference("assert f(1) == 1", "assert f(2) == 4", "assert f(3) == 9")
    graded = {
        "def f(x) return x": (-1.0, "does not compile: SyntaxError: expected ':' (<program>, line 1)"),
        "def f(x): return y": (-0.6, "run-time error: NameError: name 'y' is not defined"),
        "def f(x): return x * x if x < 3 else 1 / 0": (
            -0.3 + 1.3 * 2 / 3,
            "passed 2 of 3 tests; error in ZeroDivisionError",
        ),
        "1 / 0": (-0.6, "run-time error: ZeroDivisionError: division by zero"),
        "": (-0.6, "run-time error: NameError: name 'f' is not defined"),
        "def f(x): return 0": (-0.3, "passed 0 of 3 tests; failed assert f(1) == 1"),
        "def f(x): return x": (-0.3 + 1.3 / 3, "passed 1 of 3 tests; failed assert f(2) == 4"),
        "def f(x): return x * x if x < 3 else 0": (-0.3 + 1.3 * 2 / 3, "passed 2 of 3 tests; failed assert f(3) == 9"),
        "def f(x): return x * x": (1.0, ""),
    }
    for program, (reward, detail) in graded.items():
        verdict = judge(tests, program)
        assert verdict.reward == pytest.approx(reward), program
        assert verdict.correct == (reward == 1.0)
        assert verdict.detail.startswith(detail)


@pytest.mark.parametrize(
    ("how", "rewards"),
    [("graded", [-1.0, -0.6, -0.3, 0.35, 1.0]), ("share", [0, 0, 0, 0.5, 1]), ("all", [0, 0, 0, 0, 1])],
)
def test_a_program_is_graded_or_judged_by_its_tests_alone(
    bubblewrap: None, how: Literal["graded", "share", "all"], rewards: list[float]
) -> None:
    sandbox, config = Sandbox("bubblewrap", Limits(60.0, 512)), CodeConfig(reward=how)
    judge = partial(judge_program, Boxes(sandbox, sandbox, config))
    tests = reference("assert f(1) == 1", "assert f(2) == 4")
    programs = ("def f(x)", "def f(x): 1 / 0", "def f(x): return 0", "def f(x): return 1", "def f(x): return x * x")
    assert [judge(tests, program).reward for program in programs] == pytest.approx(rewards)
    assert config.worst == min(rewards)


def test_questions_are_asked_of_plain_values(judge: Judge) -> None:
    tests = reference(
        "assert sorted(f(3)) == [0, 1, 2]", "assert math.isclose(g(2), 0.6667, rel_tol=0.001)", "assert not f(0)",
        "assert set(f(2)) == {0, 1} and len(f(2)) == 2", "assert isinstance(f(1), list)", "assert g(3) is not None",
    )  # fmt: skip
    assert judge(tests, "def f(n): return list(range(n))[::-1]\ndef g(x): return x / 3").correct
    # ranges are not plain: what asks for one fails, what makes a list of it does not
    lazy = judge(tests, "def f(n): return range(n)\ndef g(x): return x / 3")
    assert lazy.detail.startswith("passed 4 of 6 tests; failed assert not f(0)")


def test_functions_that_look_at_a_value_look_at_the_value_itself(judge: Judge) -> None:
    program = (
        "from decimal import Decimal\nfrom fractions import Fraction\ndef many(n): yield from range(n)\n"
        "def table(): return {'a': 2}\ndef half(): return Decimal('0.5')\ndef third(): return Fraction(1, 3)\n"
        "def cold(): return frozenset({1})\ndef warm(): return {1}"
    )
    true = reference(
        "assert list(many(3)) == [0, 1, 2]", "assert sum(many(4)) == 6", "assert len(list(many(200000))) == 200000",
        "assert list(table().values()) == [2]", "assert half() == 0.5", "assert str(half()) == '0.5'",
        "assert third() == Fraction(1, 3)", "assert third() * 3 == 1", "assert abs(float(third()) - 0.3333) < 0.001",
        "assert isinstance(warm(), set)", "assert isinstance(cold(), frozenset)", "assert isinstance(half(), Decimal)",
        setup="from decimal import Decimal\nfrom fractions import Fraction",
    )  # fmt: skip
    assert judge(true, program) == Verdict(1.0, True)
    false = ("third() * 3 == 2", "third() == 0.3333", "isinstance(warm(), frozenset)", "isinstance(cold(), set)")
    for wrong in false:
        assert judge(reference(f"assert {wrong}"), program).reward == FAILS


def test_what_python_leaves_out_need_not_have_a_value(judge: Judge) -> None:
    tests = reference("assert f(0) is None or f(0)[0] == 1", "assert f(2)[0] == 1 if f(2) else f(0)[0] == 1")
    assert judge(tests, "def f(x): return [1] if x else None") == Verdict(1.0, True)
    assert judge(tests, "def f(x): return []").reward == FAILS  # the second of each is asked for and raises
    assert judge(tests, "def f(x): raise ValueError").reward == RAISES


def test_no_opinion_where_the_questions_themselves_fail(judge: Judge) -> None:
    sandbox = judge.args[0].own
    verdict = judge(reference("assert f(1) == 2 and f(1) == 2", setup="from math import nothing"), "def f(x): return 2")
    assert verdict.detail.startswith("run-time error: ImportError")  # beside the program, where it is found first
    asked = split_test("assert f(1) == 2 and f(1) == 2")
    with pytest.raises(SandboxError, match="ImportError"):
        ask([(0, asked, {0: 2, 1: 2})], "from math import nothing", sandbox)
    forged = ["i", "forged"]
    assert ask([(0, asked, {0: forged, 1: 2}), (1, asked, {0: 2, 1: 2})], "", sandbox) == {
        0: False,
        1: True,
    }  # what cannot be decoded spoils no other answer


def test_a_program_has_no_future_but_its_own(judge: Judge) -> None:
    """Annotations are values unless it says otherwise; the driver's own `from __future__` is not passed on."""
    program = "def f(function): return function.__annotations__['x'] is int\ndef g(x: int): pass\ndef h(): return f(g)"
    setup = "def here(x: int): pass\nseen = f(here)"
    assert judge(reference("assert h() == True", "assert seen == True", setup=setup), program).correct
    assert judge(reference("assert h() == False"), f"from __future__ import annotations\n{program}").correct


def test_setup_and_classes_of_the_program(judge: Judge) -> None:
    program = "class Node:\n    def __init__(self, x): self.x, self.next = x, None\ndef total(n): return n.x + (total(n.next) if n.next else 0)"
    tests = reference("assert total(root) == 3", "assert root.next.x == 2", setup="root = Node(1)\nroot.next = Node(2)")
    assert judge(tests, program) == Verdict(1.0, True)


def test_bad_rows_are_named(tmp_path: Path) -> None:
    good = {"text": "Add.", "test_list": ["assert f(1) == 2"], "test_setup_code": "", "code": "def f(x): return x + 1"}

    def message(**changed: object) -> str:
        file = tmp_path / "rows.jsonl"
        file.write_text(json.dumps({**good, **changed}) + "\n")
        config = TaskConfig(name="mbpp", path=str(file), columns=MBPP)
        with pytest.raises(DataError) as caught:
            load_items(config, read_mbpp, str(file), "train")
        return str(caught.value)

    assert "row 1: column 'test_list' (task.columns.tests) is no list of asserts" in message(test_list=[])
    assert "is no list of asserts" in message(test_list=None)
    assert "is no list of asserts" in message(test_list=[1])
    assert "test 2 cannot be used: it is not one assert" in message(test_list=["assert f(1)", "f(1)"])
    assert "test 1 cannot be used: it does not call the program" in message(test_list=["assert 1 == 1"])
    assert "it is not Python" in message(test_list="assert f(")
    assert "test 1 cannot be used: it uses e from the setup" in message(
        test_list=["assert f(1) == e"], test_setup_code="e = 2"
    )
    assert "column 'test_setup_code' (task.columns.setup) is neither text nor" in message(test_setup_code=[1])
    assert "column 'test_setup_code' (task.columns.setup): the setup is not Python" in message(test_setup_code="1 +")
    listed = read_mbpp({**good, "test_setup_code": ["import math", "x = 2"]}, MBPP, "row 1")
    assert json.loads(listed.reference)["setup"] == "import math\nx = 2"
    assert "column 'text' (task.columns.prompt) is empty" in message(text=" ")
    with pytest.raises(ConfigError, match=r"task\.columns\.tests"):
        read_mbpp(good, Columns(prompt="text"), "row 1")


def test_rows_become_items() -> None:
    row = {"text": "Add. ", "tests": "assert f(1) == 2\nassert f(2) == 3", "code": "def f(x):\r\n  return x + 1\r\n"}
    item = read_mbpp(row, Columns(prompt="text", tests="tests", solution="code"), "row 1")
    assert item.prompt == "Add.\nFor example: assert f(1) == 2"  # the second test is hidden
    assert item.solution == "def f(x):\n  return x + 1"
    assert [test.text for test in asserts(item.reference).tests] == ["assert f(1) == 2", "assert f(2) == 3"]


def test_the_sandbox_fails_closed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Without bubblewrap, or with one that cannot make namespaces, nothing starts; the unsafe mode does and says so."""
    limits = limits_of(TaskConfig(judge_timeout=60.0))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"task\.sandbox = bubblewrap"):
        check_sandbox("bubblewrap", limits)
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(ConfigError, match="No permissions to create new namespace"):
        check_sandbox("bubblewrap", limits)
    sandbox = Sandbox("bubblewrap", limits)
    judged = judge_program(Boxes(sandbox, sandbox), reference("assert f(1) == 1"), "def f(x): return 1")
    assert judged == Verdict(-1.0, False, "no sandbox: bwrap: No permissions to create new namespace", True)
    config = TaskConfig(name="mbpp", path="unused", columns=MBPP)
    with pytest.raises(ConfigError, match=r"task\.sandbox"):
        check_judge(config, [])
    check_sandbox("unsafe-subprocess", limits)
    assert "can read and change your files, use the network" in capfd.readouterr().err


def test_a_judge_that_is_lost_earns_no_more_than_the_worst_program() -> None:
    pool = JudgePool("tests.tasks.verifiers:misbehave", workers=1, limit=60.0, memory_gib=0.0, failed_reward=-1.0)
    verdicts = pool.judge([Case("", "raise"), Case("", "die"), Case("", "say 1")])
    pool.close()
    assert [(verdict.reward, verdict.judge_failed) for verdict in verdicts] == [
        (-1.0, True),
        (-1.0, True),
        (1.0, False),
    ]


def test_without_judging_processes_programs_are_still_confined(bubblewrap: None) -> None:
    judges = start_judge(TaskConfig(name="mbpp", path="unused", columns=MBPP, judge_workers=0, judge_timeout=30.0))
    program = "import os\ndef f(x): return os.listdir('/etc')"
    wrong = "def f(x): return 2"
    verdicts = judges.judge([Case(reference("assert f(1) == 1"), text) for text in (program, wrong)])
    judges.close()
    assert [verdict.reward for verdict in verdicts] == [-0.6, -0.3]


def test_the_driver_stands_alone() -> None:
    """It runs where nothing of the project is."""
    for file in (DRIVER, DRIVER.with_name("sandbox_values.py")):
        assert set(re.findall(r"from ((?:tasks|core)\S*)", file.read_text())) <= {"tasks.code.sandbox_values"}


def test_the_task_is_built_and_judged(bubblewrap: None, shared_data: Path) -> None:
    from tasks.synthetic.corpus import character_tokenizer
    from tests.tasks.test_task import trajectory

    file = shared_data / "mbpp" / "mbpp.jsonl"
    config = TaskConfig(name="mbpp", path=str(file), columns=MBPP, eval_problems=3, problems=5, judge_timeout=30.0)
    tokenizer = character_tokenizer("".join(chr(code) for code in range(32, 127)) + "\n\t\r")
    task = build_task(config, tokenizer, limits=TokenLimits(2000, 4000), context=8192, seed=0)
    problem = task.train[0]
    assert problem.solution_ids is not None
    good = trajectory(problem, [], problem.solution_ids.tolist())
    bad = trajectory(problem, [], [*tokenizer("def")["input_ids"], tokenizer.eos_token_id])
    verdicts = [one.verdict for one in task.judge([good, bad])]
    task.close()
    assert [verdict.reward for verdict in verdicts] == [1.0, -1.0]
