"""The product as its user runs it: `launch.py` on the real engines, killed in the middle, resumed, evaluated."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pyarrow.parquet
import pytest
import torch
import yaml
from safetensors.torch import load_file

from core.run_directory import keep_lines
from tests.processes import assert_on_loopback
from tests.s3 import AWS_SECRET, s3  # noqa: F401 (a fixture)
from tests.whole_runs import (
    LONG,
    RECIPE,
    ROOT,
    SECRET,
    assert_ended,
    assert_engines_agreed,
    begin,
    descendants,
    environment,
    kill_after_a_checkpoint,
    metrics,
    names,
    run,
    title,
    wait_for_iterations,
)
from trainer.mirror import open_store


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory, starter: Callable[..., str]) -> tuple[Path, list[str]]:
    """Folder of the runs, and the options that all runs share (one model for all)."""
    root = tmp_path_factory.mktemp("runs")
    return root, [
        "--config",
        RECIPE,
        "--run.root",
        str(root),
        "--model.path",
        starter("tiny", steps=120),  # of few steps: it solves some problems, and there is a gradient
        "--cluster.address",
        "local",
        *("--run.iterations", "10", "--run.checkpoint-every", "5", "--evaluation.every", "5"),
        *("--task.min-operations", "1", "--task.max-operations", "2"),
    ]


@pytest.fixture(scope="module")
def straight(roots: tuple[Path, list[str]], s3: str) -> Path:  # noqa: F811
    """A run without interruption."""
    root, options = roots
    text = run("train", *options, "--run.name", "straight", "--run.mirror", s3)
    assert SECRET not in text
    assert "Run straight: 10 iterations" in text
    return root / "straight"


@pytest.fixture(scope="module")
def resumed(roots: tuple[Path, list[str]], straight: Path) -> tuple[Path, str]:
    """The same run, its driver killed -9 after its first checkpoint (5 of 10 iterations), what is left too, resumed,
    and its learner rank killed; and what the resumed run says."""
    root, options = roots
    folder = root / "resumed"
    kill_after_a_checkpoint(folder, *options, "--run.name", "resumed")
    assert 5 <= metrics(folder)[-1]["iteration"] < 10
    keep_lines(folder / "metrics.jsonl", "iteration", 5)
    process = begin("train", "--resume", str(folder))
    wait_for_iterations(folder, 6, process)
    assert_on_loopback([psutil.Process(process.pid), *descendants(process)])
    kill_rank(process)
    said, errors = process.communicate(timeout=900)
    assert process.returncode == 0, said + errors
    return folder, said


def kill_rank(process: "subprocess.Popen[str]") -> None:
    """End the run's learner rank without a word; the run stands still while it is looked for."""
    process.send_signal(signal.SIGSTOP)
    (rank,) = [pid for pid, name in names(descendants(process)).items() if "RankWorker" in name]
    os.kill(rank, signal.SIGKILL)
    process.send_signal(signal.SIGCONT)


def test_the_run_directory_is_complete(straight: Path) -> None:
    for name in ("config.yaml", "versions.json", "metrics.jsonl", "evaluations.jsonl", "curves.png", "log.txt"):
        assert (straight / name).stat().st_size >= (0 if name == "log.txt" else 1), name
    assert any((straight / "tensorboard").iterdir())
    assert sorted(path.name for path in (straight / "samples").iterdir()) == [f"{i:06d}.jsonl" for i in range(1, 11)]
    assert sorted(path.name for path in (straight / "checkpoints").iterdir()) == [
        "000005",
        "000010",
        "best",
        "latest",
    ]
    assert [json.loads(line)["iteration"] for line in (straight / "evaluations.jsonl").read_text().splitlines()] == [
        0,
        5,
        10,
    ]


def test_no_key_of_the_environment_reaches_a_file(straight: Path) -> None:
    files = [path for path in straight.rglob("*") if path.is_file()]
    assert [path for path in files for key in (SECRET, AWS_SECRET) if key.encode() in path.read_bytes()] == []


def test_replay_was_used_and_its_outcomes_are_in_the_metrics(straight: Path) -> None:
    last = metrics(straight)[-1]
    assert 0 < last["replay_share"] <= 0.5  # less where fresh problems are solved
    assert last["replay_success"] is not None
    assert last["weight_version"] == 10


def test_earlier_successes_are_repeated(straight: Path) -> None:
    repeated = [line["imitated"] for line in metrics(straight)]
    assert repeated[0] == 0  # there are no earlier ones
    assert 0 < max(repeated) <= 4


def test_the_kl_fades_with_the_fresh_problems_that_succeed(straight: Path) -> None:
    for line in metrics(straight):
        fresh = round(16 * (1 - line["replay_share"]))
        solved = fresh * (1 - line["kl_coefficient"] / 0.2)
        assert solved == pytest.approx(round(solved))
        successes = line["root_success"] * fresh * 2  # of two samples
        assert successes / 2 - 1e-6 <= solved <= successes + 1e-6


def test_engines_and_learner_agree(straight: Path) -> None:
    lines = metrics(straight)
    assert_engines_agreed(lines)
    assert all(line["behaviour_gap_max"] < 1e-3 for line in lines)


def test_a_run_that_was_killed_and_lost_its_learner_rank_ends_with_the_same_numbers_and_weights(
    straight: Path, resumed: tuple[Path, str]
) -> None:
    folder, said = resumed
    (line,) = [line for line in said.splitlines() if "restart 1 of the learner" in line]
    assert line.startswith("learner-rank-0 died during ")
    evaluated = [json.loads(line)["iteration"] for line in (folder / "evaluations.jsonl").read_text().splitlines()]
    assert evaluated == [0, 5, 10]
    assert metrics(folder) == metrics(straight)
    left, right = (load_file(each / "policy" / "model.safetensors") for each in (straight, folder))
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_a_resumed_run_ends_with_the_same_optimizers_and_replay_store(
    straight: Path, resumed: tuple[Path, str]
) -> None:
    """Bit for bit, with a learning-rate schedule and several optimizer steps per rollout (tests/recipes/tiny.yaml)."""
    left, right = (folder / "checkpoints" / "000010" for folder in (straight, resumed[0]))
    assert (left / "learner" / "learner.json").read_text() == (right / "learner" / "learner.json").read_text()
    for engine in ("policy", "value"):
        states = [
            torch.load(folder / "learner" / engine / "mp_rank_00_model_states.pt", weights_only=False)["optimizer"]
            for folder in (left, right)
        ]
        assert states[0]["state"], "no optimizer state to compare"
        assert_equal(*states)
    tables = [
        {path.name: pyarrow.parquet.read_table(path) for path in (folder / "sources" / "replay").glob("*.parquet")}
        for folder in (left, right)
    ]
    assert sum(table.num_rows for table in tables[0].values()) > 0
    assert tables[0].keys() == tables[1].keys()
    for name, table in tables[0].items():
        assert table.equals(tables[1][name]), name


def assert_equal(left: object, right: object) -> None:
    """The same tensors and numbers in the same places."""
    if isinstance(left, dict) and isinstance(right, dict):
        assert left.keys() == right.keys()
        for key in left:
            assert_equal(left[key], right[key])
    elif isinstance(left, list) and isinstance(right, list):
        assert len(left) == len(right)
        for a, b in zip(left, right, strict=True):
            assert_equal(a, b)
    elif isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        assert torch.equal(left, right)
    else:
        assert left == right


@pytest.fixture(scope="module")
def one_process(roots: tuple[Path, list[str]], straight: Path, s3: str) -> str:  # noqa: F811
    """What one process without Ray says: it evaluates the run, resumes it from its mirror, trains another, and one with
    a reward and rows as objects, and runs the cells of the example notebook but the first, which chooses the recipe."""
    root, options = roots
    store, folder = open_store(f"{s3}/straight")
    with store.open_output_stream(f"{folder}/checkpoints/latest") as pointer:
        pointer.write(b"000005")  # as if the machine had been lost then
    fields = [*options[2:], "--run.name", "here", "--rollout.max-staleness", "1"]
    cells = json.loads((ROOT / "docs" / "example.ipynb").read_text())["cells"]
    _, *notebook = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    chosen = [*options[2:], "--run.name", "plain", "--evaluation.every", "2"]
    sections = yaml.safe_load((ROOT / RECIPE).read_text())
    del sections["task"]
    (root / "objects.yaml").write_text(yaml.safe_dump(sections))
    objects = [*options[2:6], "--run.name", "objects", "--run.iterations", "1", "--task.success_reward", "0.5"]
    script = f"""
import gc, retrospect
config = retrospect.override(retrospect.load_config({RECIPE!r}), {fields!r})
retrospect.evaluate(config, {str(straight)!r}, local=True)
gc.collect()
retrospect.resume({f"{s3}/straight"!r}, options=["--run.root", {str(root / "mirrored")!r}], local=True)
gc.collect()
retrospect.train(config, local=True)
gc.collect()
def brevity(reference, response):
    return len(reference) / max(len(reference), len(response))
rows = [{{"prompt": f"{{a}}+{{b}}=", "answer": f"{{a + b:02}}"}} for a in range(6) for b in range(6)]
config = retrospect.override(retrospect.load_config({str(root / "objects.yaml")!r}), {objects!r})
retrospect.train(config, reward=brevity, data=rows, local=True)
gc.collect()
recipe, options, enough, local = {RECIPE!r}, {chosen!r}, 0.0, True
"""
    done = subprocess.run(
        [sys.executable, "-c", "\n".join([script, *notebook])],
        cwd=ROOT,
        env=environment() | {"MPLBACKEND": "Agg"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["mirrored/straight", "here"])  # continued on an empty folder; from the beginning
def test_one_process_without_ray_gives_the_same_numbers_and_weights_however_often(
    roots: tuple[Path, list[str]], straight: Path, one_process: str, name: str
) -> None:
    """An evaluation and runs after each other: vLLM and DeepSpeed keep torch's process group."""
    assert "dashboard" not in one_process
    assert "--local: synchronous; rollout.max_staleness = 1 has no effect" in one_process
    found = roots[0] / name
    assert metrics(found) == metrics(straight)
    left, right = (load_file(each / "policy" / "model.safetensors") for each in (found, straight))
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_evaluate_repeats_the_last_evaluation_of_the_run(straight: Path, one_process: str) -> None:
    """The final policy loaded into a fresh vLLM gives the success that the run measured in its own engine."""
    last = json.loads((straight / "evaluations.jsonl").read_text().splitlines()[-1])
    assert f"{straight / 'checkpoints' / '000010' / 'policy'}: success {100 * last['success']:.1f} %" in one_process


def test_the_example_notebook_trains_until_its_callback_ends_the_run(
    roots: tuple[Path, list[str]], one_process: str
) -> None:
    root, _ = roots
    lines = metrics(root / "plain")
    assert [line["weight_version"] for line in lines] == [1, 2]  # of 10 iterations: the second is evaluated
    for line in lines:
        assert line["behaviour_gap_max"] < 1e-3
    assert lines[0]["logprob_gap"] < 1e-3
    assert (root / "plain" / "checkpoints" / "latest").read_text() == "000002"
    assert f"success {lines[-1]['evaluation_success']:.3f} on 16 problems" in one_process


def test_a_reward_and_rows_are_objects(roots: tuple[Path, list[str]], one_process: str) -> None:
    """What counts as a success is said by `task.success_reward`."""
    run = roots[0] / "objects"
    (line,) = metrics(run)
    assert line["judge_failures"] == 0
    rows = [json.loads(text) for text in (run / "samples" / "000001.jsonl").read_text().splitlines()]
    assert {row["prompt"] for row in rows} <= {f"{a}+{b}=" for a in range(6) for b in range(6)}
    assert [row["correct"] for row in rows] == [row["reward"] >= 0.5 for row in rows]
    assert any(0 < row["reward"] < 0.5 for row in rows)  # without the field they would count
    last = json.loads((run / "evaluations.jsonl").read_text().splitlines()[-1])
    assert (last["iteration"], last["problems"]) == (1, 3)  # a tenth of the rows


def test_training_changed_the_policy_and_it_loads_as_any_model(straight: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    before, after = (
        AutoModelForCausalLM.from_pretrained(straight / "checkpoints" / "000005" / "policy"),
        AutoModelForCausalLM.from_pretrained(straight / "policy"),
    )
    AutoTokenizer.from_pretrained(straight / "policy")
    assert not torch.equal(before.get_input_embeddings().weight, after.get_input_embeddings().weight)


def test_a_run_whose_engine_is_lost_saves_what_it_has_and_can_be_resumed(
    roots: tuple[Path, list[str]], straight: Path
) -> None:
    """When it is terminated then, it stops its processes and says how to resume."""
    root, options = roots
    folder = root / "stopped"
    more = ("--run.iterations", "500", "--run.checkpoint-every", "500", "--rollout.max-restarts", "0")
    process = begin("train", *options, "--run.name", "stopped", *more)
    wait_for_iterations(folder, 1, process)
    (engine,) = [one for one in descendants(process) if "rollout" in title(one).lower()]
    engine.kill()
    said, errors = process.communicate(timeout=900)
    assert process.returncode == 2, said + errors
    assert "error: rollout-0: its process died" in errors
    assert "rollout.max_restarts = 0" in errors
    saved = int((folder / "checkpoints" / "latest").read_text())  # not due before iteration 500
    assert [line["iteration"] for line in metrics(folder)] == [*range(1, saved + 1)]
    assert f"checkpoint {folder / 'checkpoints' / f'{saved:06d}'}" in said.replace("\n", "")

    process = begin("train", "--resume", str(folder))
    wait_for_iterations(folder, saved + 1, process)
    # Ray's two agents per node end when they next look for their raylet, within two minutes: not waited for
    children = descendants(process)
    known = names(children)
    parts = [one for one in children if "Agent" not in known.get(one.pid, "Agent")]
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=LONG)
    assert process.returncode == 0, errors
    assert f"interrupted; continue with: python launch.py train --resume {folder}" in errors
    assert_ended(parts)
    lines = metrics(folder)
    assert int((folder / "checkpoints" / "latest").read_text()) == len(lines)
    assert (folder / "curves.png").stat().st_mtime > (folder / "metrics.jsonl").stat().st_mtime
    assert [line["iteration"] for line in lines] == [*range(1, len(lines) + 1)]
    assert_engines_agreed(lines)
    assert all(line["behaviour_gap_max"] < 1e-3 for line in lines)
