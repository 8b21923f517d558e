"""`launch.py runs`: the runs of a folder with what they are doing."""

import json
from contextlib import closing
from pathlib import Path

import pytest

import launch
from core.config import Config
from core.load import dump_config, override
from core.run_directory import RunDirectory
from tests.trainer.examples import iteration
from trainer.metrics import JsonlSink


def a_run(root: Path, name: str, done: int, planned: int) -> RunDirectory:
    run = RunDirectory.create(root, name, "demo")
    run.config.write_text(dump_config(override(Config(), ["--run.iterations", str(planned)])), encoding="utf-8")
    with closing(JsonlSink(run.metrics)) as sink:
        for number in range(1, done + 1):
            sink.write(iteration(number))
    return run


def test_runs_are_listed_with_state_step_success_and_last_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, saved in (("done", "000003"), ("unsaved", "000002")):  # the disk was full when the second one ended
        run = a_run(tmp_path, name, 3, 3)
        run.evaluations.write_text(json.dumps({"iteration": 3, "success": 0.5}) + "\n")
        (run.checkpoints / "latest").write_text(saved)
    (a_run(tmp_path, "unevaluated", 3, 3).checkpoints / "latest").write_text("000003")
    half = a_run(tmp_path, "half", 2, 9)
    half.evaluations.write_text("".join(json.dumps({"success": value}) + "\n" for value in (0.25, 0.5, 0.125)))
    half.log.write_text("2026-11-22 12:00:00,000 INFO retrospect.console: checkpoint written\n")
    (half.samples / "000001.jsonl").write_bytes(b"x" * 3 * 2**20)
    taught = RunDirectory.create(tmp_path, "taught", "sft")
    taught.config.write_text(dump_config(Config()), encoding="utf-8")
    taught.metrics.write_text('{"step": 7, "loss": 0.5}\n')
    (tmp_path / "no run").mkdir()
    with half.lock():
        assert launch.main(["runs", str(tmp_path)]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert set(lines) == {"run", "done", "unsaved", "unevaluated", "half", "taught"}
    assert lines["done"].split()[1:4] == ["finished", "3/3", "50.0%"]
    assert lines["unsaved"].split()[1:4] == ["stopped", "3/3", "50.0%"]
    assert lines["unevaluated"].split()[1:4] == ["stopped", "3/3", "-"]
    assert lines["half"].split()[1:4] == ["running", "2/9", "50.0%"]
    assert "3.0 MiB" in lines["half"]
    assert lines["half"].rstrip().endswith("checkpoint written")
    assert lines["taught"].split()[1:4] == ["stopped", "7", "-"]
    assert launch.main(["runs", str(tmp_path)]) == 0
    assert "half         stopped" in capsys.readouterr().out  # nobody holds its lock any more


def test_a_torn_line_and_damaged_runs_do_not_hide_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torn = a_run(tmp_path, "torn", 2, 9)
    torn.metrics.write_text(torn.metrics.read_text() + '{"iteration": 3, "rew')  # killed while it wrote
    a_run(tmp_path, "odd", 0, 9).metrics.write_text('{"iteration": 1e999}\n')
    assert launch.main(["runs", str(tmp_path)]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert lines["torn"].split()[2] == "2/9"
    assert lines["odd"].split()[1] == "damaged"


def test_a_folder_without_runs_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert launch.main(["runs", str(tmp_path / "none")]) == 2
    assert "none: no runs here (folders with a config.yaml); name the folder of the runs" in capsys.readouterr().err
