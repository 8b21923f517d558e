"""The run directory: names, refusals, atomic text, versions, samples, log."""

import json
import logging
import platform
import subprocess
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from core.config import Columns, TaskConfig
from core.errors import CheckpointError, ConfigError
from core.parts.judge import Case
from core.records import Finish, IntArray, Problem, Rollout, Start, Verdict
from core.run_directory import (
    LOGGER,
    RunDirectory,
    collect_versions,
    open_log,
    quarantine,
    write_atomically,
    write_samples,
    write_versions,
)
from tasks.judging import start_judge

NOON = datetime(2026, 2, 1, 12, 0, 5)


def test_an_unnamed_run_is_called_after_recipe_and_time(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "", "demo", now=NOON)
    assert run.name == "demo-20260201-120005"
    assert all(folder.is_dir() for folder in (run.tensorboard, run.checkpoints, run.samples))
    assert RunDirectory.create(tmp_path, "", "demo", now=NOON).name == "demo-20260201-120005-2"  # in the same second


def test_a_run_is_not_written_over(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "mine", "demo")
    write_atomically(run.config, "run: {}\n")
    write_atomically(run.metrics, "{}\n")
    with pytest.raises(ConfigError, match=r"run\.name.*mine.*--resume"):
        RunDirectory.create(tmp_path, "mine", "demo")
    assert RunDirectory.open(run.path).path == run.path


def test_an_emptied_configuration_of_a_run_is_refused(tmp_path: Path) -> None:
    """It would read as a run of all defaults."""
    run = RunDirectory.create(tmp_path, "mine", "demo")
    run.config.write_text("\n")
    with pytest.raises(CheckpointError, match=r"mine/config\.yaml"):
        RunDirectory.open(run.path)


@pytest.mark.parametrize("result", ["checkpoints/latest", "metrics.jsonl"])
def test_a_failed_start_does_not_burn_the_name(tmp_path: Path, result: str) -> None:
    run = RunDirectory.create(tmp_path, "mine", "demo")
    write_atomically(run.config, "run: {}\n")
    write_atomically(run.evaluations, "{}\n")
    run.replay.mkdir()
    write_atomically(run.replay / "store.json", "{}")
    run.metrics.touch()
    assert RunDirectory.create(tmp_path, "mine", "demo").path == run.path
    run.clear()  # nothing of the failed start gets into the new run
    assert not run.evaluations.exists()
    assert not run.replay.exists()
    write_atomically(run.path / result, "000001")
    with pytest.raises(ConfigError, match=r"run\.name"):
        RunDirectory.create(tmp_path, "mine", "demo")


def test_paths_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    run = RunDirectory.create(Path("runs"), "mine", "demo")
    assert run.path == tmp_path / "runs" / "mine"
    assert RunDirectory.create(Path("~/runs"), "mine", "demo").path == run.path
    write_atomically(run.config, "run: {}\n")
    assert RunDirectory.open(Path("runs/mine")).path == run.path


def test_one_driver_at_a_time(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "mine", "demo")
    with run.lock(), pytest.raises(ConfigError, match="mine"), run.lock():
        pass
    with run.lock():  # free again
        pass


def test_a_root_that_is_a_file_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(ConfigError, match=r"run\.root"):
        RunDirectory.create(tmp_path / "runs", "mine", "demo")


def test_a_directory_without_a_run_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.yaml"):
        RunDirectory.open(tmp_path)


def test_text_is_replaced_whole_and_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "text"
    write_atomically(path, "old\n")
    with pytest.raises(TypeError):  # what is no text cannot be written: the write fails in the middle
        write_atomically(path, b"new\n")  # type: ignore[arg-type]
    assert path.read_text() == "old\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["text"]
    write_atomically(path, "new\n")
    assert path.read_text() == "new\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["text"]


def test_versions_come_from_metadata_alone() -> None:
    code = (
        "import sys; from core.run_directory import collect_versions; found = collect_versions();"
        "assert found['torch'] and found['ray'] and found['deepspeed'] and found['python'];"
        "print([name for name in ('torch', 'ray', 'vllm', 'deepspeed', 'transformers') if name in sys.modules])"
    )
    root = Path(__file__).parents[2]
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert result.stdout.strip() == "[]"


def test_the_commit_says_when_files_differ(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        subprocess.run(["git", "-C", str(tmp_path), *who, *arguments], check=True, capture_output=True)

    git("init")
    (tmp_path / "file").write_text("a")
    git("add", "file")
    git("commit", "-m", "first")
    clean = collect_versions(tmp_path)["commit"]
    assert len(clean) == 40
    (tmp_path / "file").write_text("b")
    assert collect_versions(tmp_path)["commit"] == clean + "+changes"
    (tmp_path / "site-packages").mkdir()
    assert "commit" not in collect_versions(tmp_path / "site-packages")  # an installed copy: not its commit


def test_without_git_there_is_no_commit(tmp_path: Path) -> None:
    assert "commit" not in collect_versions(tmp_path / "nowhere")


def test_each_start_of_a_run_is_recorded(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "mine", "demo")
    write_versions(run)
    write_versions(run)  # resumed
    entries = json.loads(run.versions.read_text())
    assert len(entries) == 2
    assert entries[1]["python"] == platform.python_version()


def scored(number: int, *, replayed: bool, correct: bool) -> Rollout:
    def ids(*values: int) -> IntArray:
        return np.array(values, dtype=np.int32)

    prefix = ids(66, 67) if replayed else ids()
    start = Start(f"s{number}", "p", ids(65), prefix, 1, 0, state_key=number if replayed else None)
    tokens = ids(68, 69)
    verdict, values = Verdict(float(correct), correct, "why"), np.array([0.25, 0.75], np.float32)
    zeros, versions = np.zeros(2, np.float32), np.zeros(2, np.int32)
    return Rollout(start, 0, tokens, zeros, versions, Finish.STOP, verdict=verdict, values=values)


ASKED = {"p": Problem("p", np.array([65], np.int32), "2", question="1+1?")}
SAMPLE = ("prompt", "prefix", "continuation", "reward", "detail", "finish", "tokens", "values")


def test_samples_show_each_kind_first(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "mine", "demo")
    many = [scored(number, replayed=False, correct=False) for number in range(20)]
    rare = [scored(20, replayed=True, correct=True), scored(21, replayed=False, correct=True)]
    path = write_samples(run, 7, [*many, *rare], lambda ids: "".join(map(chr, ids)), ASKED)
    assert path.name == "000007.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["start"] for line in lines] == ["s20", "s21", *(f"s{number}" for number in range(6))]
    assert {name: lines[0][name] for name in SAMPLE} == {
        "prompt": "1+1?",  # the question alone
        "prefix": "BC",
        "continuation": "DE",
        "reward": 1.0,
        "detail": "why",
        "finish": "STOP",
        "tokens": ["D", "E"],
        "values": [0.25, 0.75],
    }


def test_a_sample_marks_what_the_environment_wrote(tmp_path: Path) -> None:
    item = scored(0, replayed=False, correct=True)
    mask, tokens = np.array([1, 0, 0, 1], np.bool_), np.arange(68, 72, dtype=np.int32)
    episode = replace(item, tokens=tokens, mask=mask, values=np.zeros(4, np.float32))
    path = write_samples(RunDirectory.create(tmp_path, "mine", "demo"), 1, [episode], to_text, ASKED)
    sample = json.loads(path.read_text())
    assert sample["continuation"] == "D<environment>EF</environment>G"
    assert sample["tokens"] == ["D", "E", "F", "G"]


def to_text(tokens: IntArray) -> str:
    return "".join(map(chr, tokens))


def test_what_programs_say_can_be_written_down(bubblewrap: None, tmp_path: Path) -> None:
    """Half a character in a reason, as a program raises it, and in a response."""
    task = TaskConfig(name="mbpp", path="unused", columns=Columns(tests="t"), judge_workers=0, judge_timeout=60.0)
    judges = start_judge(task)
    program = "def f(x):\n    raise Exception('\\ud800\\x1b[2J\\n' + 'x' * 10**6)"
    tests = json.dumps({"format": "asserts", "setup": "", "tests": ["assert f(1) == 1"]})
    (verdict,) = judges.judge([Case(tests, program)])
    judges.close()
    assert verdict.detail.startswith("run-time error: Exception: \\ud800\\x1b[2J\\nxxx")
    assert len(verdict.detail) <= 300
    item = scored(0, replayed=False, correct=False)
    run = RunDirectory.create(tmp_path, "mine", "demo")
    path = write_samples(run, 1, [replace(item, verdict=verdict)], lambda _: "\ud800é", ASKED)
    sample = json.loads(path.read_text())
    assert (sample["continuation"], sample["detail"]) == ("\ud800é", verdict.detail)


def test_quarantined_starts_of_one_id_have_a_file_each(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = RunDirectory.create(tmp_path, "mine", "demo")
    greedy = scored(3, replayed=True, correct=False).start
    sampled = replace(greedy, samples=4, seed=5)
    for start in (greedy, sampled, greedy, sampled):  # evaluated twice
        quarantine(run, start, "IndexError: no such row")
    files = {path.name: json.loads(path.read_text()) for path in run.quarantine.iterdir()}
    assert {name: record["samples"] for name, record in files.items()} == {"s3-0.json": 1, "s3-5.json": 4}
    assert (files["s3-0.json"]["prefix_ids"], files["s3-0.json"]["error"]) == ([66, 67], "IndexError: no such row")
    why = "start s3 cannot be generated (IndexError: no such row); left out"
    assert f"{why}, saved to {run.quarantine / 's3-5.json'}" in caplog.text


def test_a_quarantine_that_cannot_be_written_does_not_end_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = RunDirectory.create(tmp_path, "mine", "demo")
    run.quarantine.write_text("in the way")
    quarantine(run, scored(3, replayed=False, correct=False).start, "IndexError")
    assert f"{run.quarantine} cannot be written: " in caplog.text


def test_the_log_goes_to_the_run_while_it_lasts(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "mine", "demo")
    with open_log(run):
        logging.getLogger(f"{LOGGER}.pool").info("restarted actor 1")
    logging.getLogger(LOGGER).info("of another run")
    assert "INFO retrospect.pool: restarted actor 1" in run.log.read_text()
    assert "of another run" not in run.log.read_text()
