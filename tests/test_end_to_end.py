"""The product as its user runs it: `launch.py` on the real engines, killed in the middle, resumed, evaluated."""

import json
import os
import signal
import subprocess
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
    OneProcess,
    assert_ended,
    assert_engines_agreed,
    begin,
    descendants,
    kill_after_a_checkpoint,
    metrics,
    names,
    wait_for_iterations,
)


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
        *("--run.iterations", "12", "--run.checkpoint-every", "6", "--evaluation.every", "6"),
        *("--task.operations", "1,2"),
        *("--replay.bounded", "true", "--replay.discoveries", "4", "--replay.canonical", "true"),
    ]


@pytest.fixture(scope="module")
def interrupted(roots: tuple[Path, list[str]]) -> Path:
    """A run on Ray: its driver is killed -9 after its first checkpoint (6 of 12 iterations), and what is left too;
    resumed, its learner rank is killed; then it is terminated, stops its processes, saves and draws what it has, and
    says how to resume."""
    root, options = roots
    folder = root / "resumed"
    kill_after_a_checkpoint(folder, *options, "--run.name", "resumed")
    assert 6 <= metrics(folder)[-1]["iteration"] < 12
    keep_lines(folder / "metrics.jsonl", "iteration", 6)
    process = begin("train", "--resume", str(folder))
    wait_for_iterations(folder, 7, process)
    assert_on_loopback([psutil.Process(process.pid), *descendants(process)])
    kill_rank(process)
    wait_for_iterations(folder, 8, process)
    # Ray's two agents per node end when they next look for their raylet, within two minutes: not waited for
    children = descendants(process)
    known = names(children)
    parts = [one for one in children if "Agent" not in known.get(one.pid, "Agent")]
    process.send_signal(signal.SIGTERM)
    said, errors = process.communicate(timeout=LONG)
    assert process.returncode == 0, said + errors
    assert f"interrupted; continue with: python launch.py train --resume {folder}" in errors
    assert_ended(parts)
    assert SECRET not in said + errors
    (line,) = [line for line in said.splitlines() if "restart 1 of the learner" in line]
    assert line.startswith("learner-rank-0 died during ")
    saved = int((folder / "checkpoints" / "latest").read_text())
    assert [line["iteration"] for line in metrics(folder)] == [*range(1, saved + 1)]
    assert 8 <= saved < 12
    assert (folder / "curves.png").stat().st_mtime > (folder / "metrics.jsonl").stat().st_mtime
    return folder


def kill_rank(process: "subprocess.Popen[str]") -> None:
    """End the run's learner rank without a word; the run stands still while it is looked for."""
    process.send_signal(signal.SIGSTOP)
    (rank,) = [pid for pid, name in names(descendants(process)).items() if "RankWorker" in name]
    os.kill(rank, signal.SIGKILL)
    process.send_signal(signal.SIGCONT)


@pytest.fixture(scope="module")
def told(roots: tuple[Path, list[str]], interrupted: Path, one_process: OneProcess, s3: str) -> str:  # noqa: F811
    """What one process without Ray says: it trains, evaluates the run, resumes it from its mirror, ends the interrupted
    run, trains with a reward and rows as objects, and runs the cells of the example notebook but the first, which
    chooses the recipe."""
    root, options = roots
    fields = [*options[2:], "--run.name", "straight", "--run.mirror", s3, "--rollout.max-staleness", "1"]
    cells = json.loads((ROOT / "docs" / "example.ipynb").read_text())["cells"]
    _, *notebook = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    chosen = [*options[2:], "--run.name", "plain", "--evaluation.every", "2"]
    sections = yaml.safe_load((ROOT / RECIPE).read_text())
    del sections["task"]
    (root / "objects.yaml").write_text(yaml.safe_dump(sections))
    objects = [*options[2:6], "--run.name", "objects", "--run.iterations", "1", "--task.success_reward", "0.5"]
    script = f"""
import gc, os, retrospect
os.environ["MPLBACKEND"] = "Agg"
from trainer.mirror import open_store
config = retrospect.override(retrospect.load_config({RECIPE!r}), {fields!r})
retrospect.train(config, local=True)
gc.collect()
retrospect.evaluate(config, {str(root / "straight")!r}, local=True)
gc.collect()
store, folder = open_store({f"{s3}/straight"!r})
with store.open_output_stream(folder + "/checkpoints/latest") as pointer:
    pointer.write(b"000006")  # as if the machine had been lost then
retrospect.resume({f"{s3}/straight"!r}, options=["--run.root", {str(root / "mirrored")!r}], local=True)
gc.collect()
retrospect.resume({str(interrupted)!r}, local=True)
gc.collect()
def brevity(reference, response):
    return len(reference) / max(len(reference), len(response))
rows = [{{"prompt": f"{{a}}+{{b}}=", "answer": f"{{a + b:02}}"}} for a in range(6) for b in range(6)]
config = retrospect.override(retrospect.load_config({str(root / "objects.yaml")!r}), {objects!r})
retrospect.train(config, reward=brevity, data=rows, local=True)
gc.collect()
recipe, options, enough, local = {RECIPE!r}, {chosen!r}, 0.0, True
"""
    return one_process.execute("\n".join([script, *notebook]))


@pytest.fixture(scope="module")
def straight(roots: tuple[Path, list[str]], told: str) -> Path:
    """A run without interruption."""
    assert "Run straight: 12 iterations" in told
    return roots[0] / "straight"


@pytest.fixture(scope="module")
def resumed(interrupted: Path, told: str) -> Path:
    """The interrupted run, continued to its end."""
    return interrupted


def test_the_run_directory_is_complete(straight: Path) -> None:
    for name in ("config.yaml", "versions.json", "metrics.jsonl", "evaluations.jsonl", "curves.png", "log.txt"):
        assert (straight / name).stat().st_size >= (0 if name == "log.txt" else 1), name
    assert any((straight / "tensorboard").iterdir())
    assert sorted(path.name for path in (straight / "samples").iterdir()) == [f"{i:06d}.jsonl" for i in range(1, 13)]
    assert sorted(path.name for path in (straight / "checkpoints").iterdir()) == [
        "000006",
        "000012",
        "best",
        "latest",
    ]
    assert [json.loads(line)["iteration"] for line in (straight / "evaluations.jsonl").read_text().splitlines()] == [
        0,
        6,
        12,
    ]


def test_no_key_of_the_environment_reaches_a_file(straight: Path, resumed: Path) -> None:
    files = [path for folder in (straight, resumed) for path in folder.rglob("*") if path.is_file()]
    assert [path for path in files for key in (SECRET, AWS_SECRET) if key.encode() in path.read_bytes()] == []


def test_replay_was_used_and_its_outcomes_are_in_the_metrics(straight: Path) -> None:
    last = metrics(straight)[-1]
    assert 0 < last["replay_share"] <= 0.5  # less where fresh problems are solved
    assert last["replay_success"] is not None
    assert last["weight_version"] == 12


def test_earlier_successes_are_repeated(straight: Path) -> None:
    repeated = [line["imitated"] for line in metrics(straight)]
    assert repeated[0] == 0  # there are no earlier ones
    assert 0 < max(repeated) <= 4 + 4  # replay.imitated, replay.discoveries


def test_what_succeeds_behind_a_state_is_kept_while_its_root_fails(straight: Path) -> None:
    assert max(line["discoveries"] for line in metrics(straight)) > 0


def test_the_guard_of_the_root_knows_the_first_and_the_last_evaluation(straight: Path, resumed: Path) -> None:
    files = [
        folder / "checkpoints" / "000012" / "sources" / "coverage" / "coverage.json" for folder in (straight, resumed)
    ]
    first, last = json.loads(files[0].read_text())["held_out"]
    assert first.keys() == last.keys() != set()
    assert json.loads(files[1].read_text())["held_out"] == [first, last]


def test_the_kl_fades_with_the_fresh_problems_that_succeed(straight: Path) -> None:
    for line in metrics(straight):
        fresh = round(16 * (1 - line["replay_share"]))
        solved = fresh * (1 - line["kl_coefficient"] / 0.2)
        assert solved == pytest.approx(round(solved))
        successes = line["root_success"] * fresh * 2  # of two samples
        assert successes / 2 - 1e-6 <= solved <= successes + 1e-6


def test_engines_and_learner_agree(straight: Path, resumed: Path) -> None:
    for folder in (straight, resumed):
        lines = metrics(folder)
        assert_engines_agreed(lines)
        assert all(line["behaviour_gap_max"] < 1e-3 for line in lines)


@pytest.mark.parametrize("name", ["mirrored/straight", "resumed"])
def test_a_run_ends_with_the_same_numbers_and_weights_however_often_it_was_interrupted(
    roots: tuple[Path, list[str]], straight: Path, name: str
) -> None:
    """On Ray and in one process, continued on an empty folder and in its own."""
    found = roots[0] / name
    evaluated = [json.loads(line)["iteration"] for line in (found / "evaluations.jsonl").read_text().splitlines()]
    assert evaluated == [0, 6, 12]
    assert metrics(found) == metrics(straight)
    left, right = (load_file(each / "policy" / "model.safetensors") for each in (found, straight))
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_a_resumed_run_ends_with_the_same_optimizers_and_replay_store(straight: Path, resumed: Path) -> None:
    """Bit for bit, with a learning-rate schedule and several optimizer steps per rollout (tests/recipes/tiny.yaml)."""
    left, right = (folder / "checkpoints" / "000012" for folder in (straight, resumed))
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


def test_one_process_says_what_it_leaves_out(told: str) -> None:
    assert "dashboard" not in told
    assert "--local: synchronous; rollout.max_staleness = 1 has no effect" in told


def test_evaluate_repeats_the_last_evaluation_of_the_run(straight: Path, told: str) -> None:
    """The final policy loaded into a fresh vLLM gives the success that the run measured in its own engine."""
    last = json.loads((straight / "evaluations.jsonl").read_text().splitlines()[-1])
    assert f"{straight / 'checkpoints' / '000012' / 'policy'}: success {100 * last['success']:.1f} %" in told


def test_the_example_notebook_trains_until_its_callback_ends_the_run(roots: tuple[Path, list[str]], told: str) -> None:
    root, _ = roots
    lines = metrics(root / "plain")
    assert [line["weight_version"] for line in lines] == [1, 2]  # of 12 iterations: the second is evaluated
    for line in lines:
        assert line["behaviour_gap_max"] < 1e-3
    assert lines[0]["logprob_gap"] < 1e-3
    assert (root / "plain" / "checkpoints" / "latest").read_text() == "000002"
    assert f"success {lines[-1]['evaluation_success']:.3f} on 16 problems" in told


def test_a_reward_and_rows_are_objects(roots: tuple[Path, list[str]], told: str) -> None:
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
        AutoModelForCausalLM.from_pretrained(straight / "checkpoints" / "000006" / "policy"),
        AutoModelForCausalLM.from_pretrained(straight / "policy"),
    )
    AutoTokenizer.from_pretrained(straight / "policy")
    assert not torch.equal(before.get_input_embeddings().weight, after.get_input_embeddings().weight)
