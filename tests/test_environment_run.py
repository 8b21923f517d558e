"""Synchronous runs with an environment as their user runs them: repeated bit for bit when resumed; and states whose
world answers differently."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.whole_runs import CALCULATOR, RECIPE, OneProcess, metrics, run


@pytest.fixture
def options(ray_address: str, tmp_path_factory: pytest.TempPathFactory, starter: Callable[..., str]) -> list[str]:
    """Of a run whose starter calls its calculator."""
    root = tmp_path_factory.getbasetemp() / "environment"
    return [
        *("--config", RECIPE, "--run.root", str(root), "--cluster.address", ray_address),
        *CALCULATOR,
        *("--model.path", starter("tiny", *CALCULATOR, steps=60)),
        *("--run.iterations", "6", "--run.checkpoint-every", "3", "--evaluation.every", "0"),
    ]


def test_a_resumed_run_with_an_environment_ends_with_the_same_numbers_and_weights(
    options: list[str], one_process: OneProcess
) -> None:
    """The first run has no Ray, and what is resumed from its first checkpoint has. States are rebuilt in both."""
    root = Path(options[options.index("--run.root") + 1])
    one_process.run("train", *options, "--run.name", "mine")
    expected = metrics(root / "mine")
    left = load_file(root / "mine" / "policy" / "model.safetensors")
    shutil.rmtree(root / "mine" / "checkpoints" / "000006")
    shutil.rmtree(root / "mine" / "policy")
    (root / "mine" / "checkpoints" / "latest").write_text("000003")
    run("train", "--resume", str(root / "mine"))
    assert sum(line["repeated_steps"] for line in expected) > 50
    assert metrics(root / "mine") == expected
    right = load_file(root / "mine" / "policy" / "model.safetensors")
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_states_whose_world_answers_differently_are_dropped_counted_and_said_once(options: list[str]) -> None:
    root = Path(options[options.index("--run.root") + 1])
    said = run("train", *options, "--run.name", "moody", "--rollout.environment", "tests.environments:Moody")
    assert said.count("is dropped: repeated, the environment answers") == 1
    assert said.count("is dropped") == 1
    lines = metrics(root / "moody")
    assert len(lines) == 6
    assert lines[0]["quarantined"] == 0 < lines[1]["quarantined"] <= lines[1]["dropped_episodes"]
    kept = [json.loads(file.read_text()) for file in (root / "moody" / "quarantine").iterdir()]
    assert len(kept) == lines[-1]["quarantined"]
    assert all("repeated, the environment answers" in one["error"] for one in kept)
