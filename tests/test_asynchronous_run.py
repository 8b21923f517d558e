"""An asynchronous run as its user runs it, with an environment: killed with starts in flight, resumed, stopped by a
lost engine, resumed again."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from tests.whole_runs import (
    CALCULATOR,
    RECIPE,
    assert_engines_agreed,
    begin,
    kill_after_a_checkpoint,
    metrics,
    run,
    title,
    wait_for_iterations,
)

STARTS, SAMPLES = 16, 2  # of tests/recipes/tiny.yaml
ITERATIONS, EVERY, STALENESS = 10, 2, 2


def options(root: Path, address: str, model: str) -> list[str]:
    return [
        *("--config", RECIPE, "--run.root", str(root), "--run.name", "killed", "--cluster.address", address),
        *CALCULATOR,
        *("--model.path", model, "--evaluation.every", "0"),
        *("--run.iterations", str(ITERATIONS), "--run.checkpoint-every", str(EVERY), "--run.keep-checkpoints", "10"),
        *("--rollout.max-staleness", str(STALENESS), "--rollout.max-running", "8"),  # so that there is a queue
    ]


def progress(folder: Path, iteration: int) -> dict[str, list[dict[str, str]]]:
    """What a checkpoint says of the engines."""
    found: dict[str, list[dict[str, str]]] = json.loads(
        (folder / "checkpoints" / f"{iteration:06d}" / "progress.json").read_text()
    )["engines"]
    return found


def samples(folder: Path, iteration: int) -> list[dict[str, Any]]:
    """Some of the responses that an iteration was trained on."""
    lines = (folder / "samples" / f"{iteration:06d}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def sampled(folder: Path, iteration: int) -> set[str]:
    """The ids of their starts."""
    return {sample["start"] for sample in samples(folder, iteration)}


def stop_by_a_lost_engine(folder: Path, after: int) -> int:
    """Resume, kill the only engine once `after` iterations are done, and return the iteration that was saved."""
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    saved = int((folder / "checkpoints" / "latest").read_text())
    (folder / "metrics.jsonl").write_text("".join(lines[:saved]))  # those beyond are not to be counted
    before = engines()
    process = begin("train", "--resume", str(folder), "--rollout.max-restarts", "0")
    wait_for_iterations(folder, after, process)
    (engine,) = engines() - before
    engine.kill()
    said, errors = process.communicate(timeout=900)
    assert process.returncode == 2, said + errors
    assert "error: rollout-0: its process died" in errors
    assert "rollout.max_restarts = 0" in errors
    stopped = int((folder / "checkpoints" / "latest").read_text())
    assert f"checkpoint {folder / 'checkpoints' / f'{stopped:06d}'}" in said.replace("\n", "")
    return stopped


def engines() -> set[psutil.Process]:
    """Those of the tests' Ray."""
    return {one for one in psutil.Process().children(recursive=True) if "rollout" in title(one).lower()}


def test_a_killed_asynchronous_run_trains_on_what_was_in_flight_and_goes_on_to_its_end(
    ray_address: str, tmp_path: Path, starter: Callable[..., str]
) -> None:
    folder = tmp_path / "killed"
    kill_after_a_checkpoint(folder, *options(tmp_path, ray_address, starter("tiny", *CALCULATOR, steps=60)))
    saved = int((folder / "checkpoints" / "latest").read_text())
    assert saved < ITERATIONS
    in_flight = {start["id"] for start in progress(folder, saved)["in_flight"]}
    assert len(in_flight) == STALENESS * STARTS
    stopped = stop_by_a_lost_engine(folder, saved + STALENESS)
    assert saved + STALENESS <= stopped < ITERATIONS
    assert len(metrics(folder)) == stopped  # the last that was complete, due or not
    assert len(progress(folder, stopped)["in_flight"]) == STALENESS * STARTS
    run("train", "--resume", str(folder), "--rollout.max-restarts", "3")

    lines = metrics(folder)
    assert [(line["iteration"], line["weight_version"]) for line in lines] == [(n, n) for n in range(1, ITERATIONS + 1)]
    assert all(line["max_staleness"] <= STALENESS for line in lines)
    assert sum(line["stale_tokens"] for line in lines) > 0
    assert_engines_agreed(lines)
    assert progress(folder, ITERATIONS) == {"in_flight": []}
    trained = [start for n in range(1, ITERATIONS + 1) for start in sorted(sampled(folder, n))]
    assert len(trained) == len(set(trained))  # none twice
    resumed = set().union(*(sampled(folder, n) for n in range(saved + 1, saved + STALENESS + 1)))
    assert resumed <= in_flight | {start for start in resumed if int(start.split(".")[0]) > saved + STALENESS}
    assert resumed & in_flight
    # values are missing where the tool wrote, and the policy went on after it
    assert any(None in sample["values"][:-1] for sample in samples(folder, ITERATIONS))
