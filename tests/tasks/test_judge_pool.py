"""Judging processes: order, limits, and verifiers that misbehave in every way."""

import os
import re
import resource
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from core.config import TaskConfig
from core.errors import ActorError, ConfigError
from core.parts.judge import Case
from tasks.code.sandbox import Limits, Program, Sandbox
from tasks.judge_pool import JudgePool, LocalJudge
from tasks.judging import start_judge

SELF = "tests.tasks.verifiers"


@pytest.fixture
def pool() -> Iterator[JudgePool]:
    judges = JudgePool(f"{SELF}:misbehave", workers=2, limit=60.0, memory_gib=2.0)  # nothing here comes near it
    yield judges
    judges.close()


def test_verdicts_come_in_the_order_of_the_items(pool: JudgePool) -> None:
    verdicts = pool.judge([Case("", f"say {i}") for i in range(300)])
    assert [verdict.reward for verdict in verdicts] == [float(i) for i in range(300)]
    assert pool.judge([]) == []


def test_whatever_a_verifier_does_is_one_verdict_with_its_reason(pool: JudgePool) -> None:
    asked = {
        "raise": "judge raised ValueError: no (verifiers.py, line N)",
        "exit": "judge raised SystemExit: 3 (verifiers.py, line N)",
        "nan": "judge returned a reward of nan",
        "none": "judge returned NoneType, expected a number or a Verdict",
        "list": "judge returned list, expected a number or a Verdict",
        "alarm": "judge crashed: killed by signal 14",  # its own timer, which is for a driver that is gone
        "die": "judge crashed: exit status 7",
        "segfault": "judge crashed: killed by signal 11",
        "memory": "judge raised MemoryError:  (verifiers.py, line N)",
        "huge": "judge raised OverflowError: int too large to convert to float",
        "huge in a verdict": "judge raised OverflowError: int too large to convert to float",
        "silent": "judge raised _Silent, which cannot be printed (verifiers.py, line N)",
        "unprintable": ("\\ud800 half\\n\\x1b[2J" + "x" * 300)[:300],
        "no text": "None",
        "print": "",
        "number": "",
        "true": "",
    }
    items = [Case("", word) for word in asked] + [Case("", "say 1")] * 50
    verdicts = pool.judge(items)
    told = {word: re.sub(r"line \d+", "line N", one.detail) for word, one in zip(asked, verdicts, strict=False)}
    assert told == asked
    assert [verdict.reward for verdict in verdicts[: len(asked)]] == [0.0] * 14 + [1.0, 0.25, 1.0]
    assert all(verdict.reward == 1.0 for verdict in verdicts[len(asked) :])
    assert pool.replaced == 3  # an alarm, two crashes


def test_what_does_not_come_back_is_ended_with_its_worker(pool: JudgePool, monkeypatch: pytest.MonkeyPatch) -> None:
    hasty = JudgePool(f"{SELF}:misbehave", workers=1, limit=60.0, memory_gib=2.0, patience=1.0)
    assert hasty.judge([Case("", "hang")])[0].detail == "judge timed out after 1 s"  # it sleeps
    hasty.close()
    frugal = JudgePool(f"{SELF}:misbehave", workers=1, limit=0.5, memory_gib=2.0, patience=60.0)
    assert frugal.judge([Case("", "hang in c")])[0].detail == "judge timed out after 0.5 s of processor time"
    frugal.close()
    monkeypatch.setattr("core.child.EXIT_LIMIT", 0.1)
    (mute,) = pool.judge([Case("", "close")])
    assert (mute.detail, mute.judge_failed) == ("judge crashed: it closed its output but did not end", True)
    assert (hasty.replaced, frugal.replaced, pool.replaced) == (1, 1, 1)


def test_a_machine_that_is_busy_changes_no_verdict() -> None:
    """A stopped process is one that gets no core: 2 s on the wall clock, but only 0.3 s of its own."""
    judges = JudgePool(f"{SELF}:misbehave", workers=1, limit=1.0, memory_gib=2.0)
    judges.wait_until_ready()
    worker = judges._workers[0]._process.pid
    with ThreadPoolExecutor(1) as other:
        judging = other.submit(judges.judge, [Case("", "compute")])
        time.sleep(0.1)
        os.kill(worker, signal.SIGSTOP)
        time.sleep(2.0)
        os.kill(worker, signal.SIGCONT)
        assert [verdict.reward for verdict in judging.result()] == [1.0]
    assert judges.replaced == 0
    judges.close()


def test_closing_ends_what_is_being_judged(pool: JudgePool) -> None:
    """Ctrl-C in the middle of thousands of programs."""
    with ThreadPoolExecutor(1) as other:
        judging = other.submit(pool.judge, [Case("", "hang")] * 1000)
        while len(pool._threads._threads) < 2:  # both have begun
            time.sleep(0.01)
        pool.close()
        with pytest.raises(ActorError, match="judge"):
            judging.result()
    assert pool.replaced <= 2


def test_the_pool_goes_on_after_losing_a_worker(pool: JudgePool) -> None:
    assert not pool.judge([Case("", "die")])[0].correct
    assert pool.judge([Case("", "say 5")])[0].reward == 5.0


def test_what_a_verifier_started_ends_with_its_worker(tmp_path: Path) -> None:
    judges = JudgePool(f"{SELF}:child_that_stays", workers=1, limit=60.0, memory_gib=0.0)
    note = tmp_path / "child"
    assert judges.judge([Case("", str(note))])[0].detail == "judge crashed: exit status 7"
    deadline = time.monotonic() + 60
    with suppress(psutil.NoSuchProcess):
        child = psutil.Process(int(note.read_text()))
        while child.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline, "it lives on"
            time.sleep(0.05)
    judges.close()


def test_judges_work_where_many_files_are_open() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 4096), hard), hard))
    try:
        with ExitStack() as opened:
            while opened.enter_context(open(os.devnull)).fileno() < 1024:
                pass
            judges = JudgePool(f"{SELF}:misbehave", workers=1, limit=60.0, memory_gib=0.0)
            verdicts = judges.judge([Case("", "say 5")])
            judges.close()
            assert verdicts[0].reward == 5.0
            with Sandbox("unsafe-subprocess", Limits(60.0, 512)).session(Program("")) as session:
                assert session.evaluate(["1"])[0].values == {0: 1}
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("text", ["\ud800 lone surrogate", "\x00\n\r\u2028", "é" * 200_000, ""])
def test_any_text_reaches_the_verifier_unchanged(pool: JudgePool, text: str) -> None:
    assert pool.judge([Case(text, text)])[0].detail == f"equal {len(text)}"


@pytest.mark.parametrize("path", ["nowhere:verify", f"{SELF}:nothing", f"{SELF}:NUMBER", SELF])
def test_a_verifier_that_cannot_be_loaded_is_one_clear_error(path: str) -> None:
    judges = JudgePool(path, workers=1, limit=1.0, memory_gib=0.0)
    with pytest.raises(ConfigError, match=f"'{path}'"):
        judges.judge([Case("", "")])
    judges.close()


ONCE = """
import os
from pathlib import Path

mark = Path(__file__).with_suffix(".used")
if mark.exists():
    raise OSError("the licence is in use")
mark.touch()


def verify(reference, response):
    return os._exit(7) if response == "die" else 1.0
"""


def test_a_judge_that_cannot_be_started_anew_is_an_error_of_the_actors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such an error has the run saved before it stops: nothing is wrong with its configuration."""
    (tmp_path / "loads_once.py").write_text(ONCE)
    monkeypatch.syspath_prepend(tmp_path)
    judges = JudgePool("loads_once:verify", workers=1, limit=60.0, memory_gib=0.0)
    assert judges.judge([Case("", "say")])[0].reward == 1.0
    with pytest.raises(ActorError, match="the licence is in use"):
        judges.judge([Case("", "die"), Case("", "say")])
    judges.close()


CASES = [Case("3", "so it is 3\n#### 3"), Case("3", "#### 4"), Case("3", "nothing")]


def test_the_verdicts_are_those_of_a_judging_process() -> None:
    verifier = "tasks.mathematics.answers:verify_gsm8k"
    pool = JudgePool(verifier, workers=1, limit=60.0, memory_gib=0.0)
    local = start_judge(TaskConfig(name="gsm8k", judge_workers=0))
    assert isinstance(local, LocalJudge)
    found = local.judge(CASES)
    assert found == pool.judge(CASES)
    assert [one.correct for one in found] == [True, False, False]
    pool.close()


def test_a_reward_beside_the_run_is_found_and_may_raise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside.py").write_text("def reward(reference, response):\n    return 1 / len(response)\n")
    monkeypatch.chdir(tmp_path)
    verdicts = LocalJudge("beside:reward").judge([Case("", "ab"), Case("", "")])
    assert verdicts[0].reward == 0.5
    assert verdicts[1].reward == 0.0
    assert "ZeroDivisionError" in verdicts[1].detail
    with pytest.raises(ConfigError, match="nowhere:reward"):
        LocalJudge("nowhere:reward")
