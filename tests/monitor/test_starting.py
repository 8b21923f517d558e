"""The start of a run on the console, other libraries' lines, and the warnings about a run that has stopped learning."""

import io
import json
import logging
import math
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from core.run_directory import RunDirectory
from monitor import starting
from monitor.alarms import SPELL, alarms
from monitor.console import RunConsole
from monitor.starting import Starting, last_start, libraries_in_log
from tests.trainer.examples import iteration


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_gets_a_line_per_part_and_the_time_that_the_last_start_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starting, "HEARTBEAT", 0.05)
    earlier = RunDirectory.create(tmp_path, "earlier", "demo")
    earlier.startup.write_text('{"seconds": 90.4}\n')
    run, stream = RunDirectory.create(tmp_path, "mine", "demo"), io.StringIO()
    with closing(Starting(run, ["cluster", "engines", "learner"], stream)) as start:
        start.ready("cluster")
        time.sleep(0.2)
        start.ready("learner")
        start.ready("engines")
    lines = stream.getvalue().splitlines()
    assert lines[0] == "starting: cluster and engines and learner (about 1:30 left)"
    assert lines[1] == "cluster ready after 0:00, waiting for engines and learner (about 1:30 left)"
    assert lines[2] == "starting for 0:00: waiting for engines and learner (about 1:30 left)"
    assert "learner ready after 0:00, waiting for engines (about 1:30 left)" in lines
    assert lines[-1] == "engines ready after 0:00"
    assert 0.2 <= json.loads(run.startup.read_text())["seconds"] < 60
    assert last_start(run) < 60  # the newest


def test_a_terminal_gets_a_bar(tmp_path: Path) -> None:
    run, stream = RunDirectory.create(tmp_path, "mine", "demo"), Terminal()
    with closing(Starting(run, ["engines", "learner"], stream)) as start:
        start.ready("engines")
        time.sleep(1.0)
    assert "starting" in stream.getvalue()
    assert "learner" in stream.getvalue()
    assert not run.startup.exists()  # it was not completed
    assert "about 0:2" in stream.getvalue()  # of 25 s, which a first start is taken to last
    assert last_start(run) == starting.TYPICAL


def test_lines_of_libraries_go_to_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, deepspeed = tmp_path / "log.txt", logging.getLogger("DeepSpeed")
    handler = logging.StreamHandler(sys.stdout)  # as DeepSpeed makes it
    deepspeed.addHandler(handler)
    with libraries_in_log(log):
        print("Writing model shards: 100%", file=sys.stderr)
        deepspeed.warning("no ninja")
        print("ours")
    deepspeed.warning("after it")
    deepspeed.removeHandler(handler)
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("ours\nafter it\n", "")
    assert log.read_text() == "Writing model shards: 100%\nno ninja\n"


def test_lines_of_libraries_stay_off_the_bar_and_the_table(tmp_path: Path) -> None:
    run, screen = RunDirectory.create(tmp_path, "mine", "demo"), Terminal()
    with libraries_in_log(run.log):
        with closing(Starting(run, ["engines"], screen)):
            print("Writing model shards", file=sys.stderr)
        with closing(RunConsole("mine", 3, stream=screen)):
            print("Started a local Ray instance", file=sys.stderr)
    assert run.log.read_text() == "Writing model shards\nStarted a local Ray instance\n"
    assert "shards" not in screen.getvalue()
    assert "Ray instance" not in screen.getvalue()


def test_a_person_is_told_once_when_nothing_is_rewarded_or_explored() -> None:
    none = [replace(iteration(number), reward=0.0) for number in range(1, SPELL + 2)]
    assert [len(alarms(none[:count])) for count in range(1, SPELL + 2)] == [0] * (SPELL - 1) + [1, 0]
    assert alarms(none[:SPELL])[0].name == "no_reward"
    # 0.5 nats in the beginning: 0.02 of it is 0.01
    falls = [
        replace(iteration(n), entropy=entropy) for n, entropy in enumerate((math.nan, 0.5, 0.015, 0.009, 0.008), 1)
    ]
    assert [len(alarms(falls[:count])) for count in range(1, 6)] == [0, 0, 0, 1, 0]
    assert alarms(falls[:4])[0].name == "entropy_gone"
    solved = [replace(one, root_success=0.99) for one in falls[:4]]  # nothing is left to find
    assert alarms(solved) == []


def test_the_console_shows_and_logs_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    stream = io.StringIO()
    with closing(RunConsole("mine", 20, stream=stream)) as console:
        assert console.live is None
        for number in range(1, SPELL + 1):
            console.write(replace(iteration(number), reward=0.0))
    assert stream.getvalue().splitlines()[-1].startswith("warning: no reward in 10 iterations")
    assert [record.levelname for record in caplog.records if "no reward" in record.message] == ["WARNING"]
