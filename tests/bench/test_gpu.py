"""What `bench.gpu` does with its checks; the checks themselves need a GPU."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.gpu import __main__ as command
from bench.gpu.checks import CHECKS, Check, options
from bench.gpu.steps import FailedError, Place, perform, planned, rows, summary
from bench.models import ROOT
from core.config import Config
from core.load import OptionParser, override


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path, "models/nothing", "cuda", time.monotonic() + 60.0)


def test_without_a_gpu_it_says_so_in_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.gpu"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "sees no GPU" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_command_that_fails_or_takes_too_long_is_named_with_the_end_of_its_log(place: Place) -> None:
    with pytest.raises(FailedError, match=r"exit status 3; one.log ends: before"):
        perform(place, "one", ["-c", "print('before'); raise SystemExit(3)"])
    late = Place(place.folder, "", "cuda", time.monotonic() + 1.0)
    with pytest.raises(FailedError, match=r"two\.log"):
        perform(late, "two", ["-u", "-c", "import time; print('waits'); time.sleep(60)"])
    perform(place, "three", ["-c", "import time; time.sleep(60)"], until=lambda: True)  # killed


def test_a_run_is_told_from_its_files(place: Place) -> None:
    run = place.run("one")
    run.mkdir(parents=True)
    lines = [
        {"iteration": i, "total_seconds": 9.0 / i, "tokens_per_second": 100.0 * i, "learner_gpu_memory": 2.5}
        for i in (1, 2, 3)
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines) + '{"iteration": 4, "tot')
    said = summary(run, 3)  # medians of the second and third: 3.75 s, 250 tokens/s
    assert "3.75 s per iteration" in said
    assert "250 tokens/s" in said
    assert "learner 2.5 GiB" in said
    with pytest.raises(FailedError, match=r"\[1, 2, 3\] of 4"):
        summary(run, 4)
    place.log("one").parent.mkdir()
    place.log("one").write_text("  update      51.9 GiB: CUDA 0.7 + trained models 3.0 + reference 1.5 + engine 2.0\n")
    assert "4.5 GiB" in planned(place.log("one"))


def test_every_check_has_a_limit_and_fields_that_exist(place: Place) -> None:
    parsed = OptionParser("train")
    parsed.add_argument("--config")
    for fields in ({}, {"learner.zero_stage": 3}):
        given = parsed.read(options(place, "one", fields))
        override(Config(), given.fields)
    assert all(0 < check.seconds <= 240 for check in CHECKS.values())


def test_the_table_has_the_last_result_of_each_check_and_what_has_not_run(place: Place) -> None:
    def measure(result: str) -> dict[str, object]:
        def one(_: Place) -> str:
            if result == "bad":
                raise FailedError("a | b")
            return result

        return command.measured(Check("lora", "LoRA", 1.0, one), place, "H200")

    lines = [measure("bad"), measure("1.2 s")]
    assert [line["ok"] for line in lines] == [False, True]
    page = command.page(lines)
    run, missing = page.split("## Not run yet")
    assert "| lora |" in run
    assert "1.2 s | H200" in run
    assert "a / b" not in run
    assert "| train |" in missing
    assert "| lora |" not in missing


def test_the_committed_table_is_that_of_the_committed_results() -> None:
    found = rows(command.LINES)
    assert command.LINES.with_suffix(".md").read_text(encoding="utf-8") == command.page(found)
