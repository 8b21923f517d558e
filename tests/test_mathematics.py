"""Mathematics as its user runs it: a warm start on GSM8K's solutions; PPO with replay on GSM8K and MATH, two
rewards, evaluation sets; pass@k, maj@k, avg@k."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.test_launch import here
from tests.whole_runs import OneProcess, metrics

SHORT = ("--rollout.max_response_tokens", "16")  # what is generated; the solutions that are learned are longer
MATH = {
    "name": "math",
    "path": "tests/data/math/train.jsonl",
    "eval_path": "",
    "eval_problems": 3,
    "columns": {"prompt": "problem", "answer": "solution", "solution": "solution"},
}
MIXTURE = ("--task.sources", json.dumps([{"label": "words", "weight": 3}, MATH]))
"""Two data sets: that of the recipe, three times as often, and MATH."""
REWARDS = ("--task.rewards", '[{"name": "task"}, {"name": "tests.tasks.verifiers:share_of_e", "weight": 0.25}]')
EXAM = {"label": "exam", "path": "tests/data/gsm8k/test.jsonl", "problems": 2}
SETS = ("--task.eval_sets", json.dumps([EXAM, {"name": "sums", "problems": 3, "samples": 2}]))


def test_warm_start_training_and_evaluation_follow_one_another(
    tmp_path: Path, starter: Callable[..., str], one_process: OneProcess
) -> None:
    shared = ["--config", "tests/recipes/gsm8k.yaml", "--run.root", str(tmp_path)]
    shared += ["--model.path", starter("gsm8k")]
    told = here("sft", *shared, "--run.name", "warm")
    assert "10 rows to learn, 4 held out" in told.stdout, told.stderr
    warm = tmp_path / "warm"
    steps = metrics(warm)
    losses = [step["loss"] for step in steps if "loss" in step]
    assert len(losses) == 4  # 10 rows by 3
    assert steps[-1]["eval_loss"] < steps[0]["eval_loss"]

    options = (*shared, *SHORT, *MIXTURE, *REWARDS, *SETS, "--model.path", str(warm / "policy"))
    said = one_process.run("train", *options, "--run.name", "taught")
    assert re.search(r"on 7 held-out problems, math [0-9.]+ %, words [0-9.]+ %", said)
    # the table before the training, after it, and in the summary
    assert len(re.findall(r"^ *exam +2  [0-9.]+ % \([0-9.]+ to [0-9.]+\)$", said, re.MULTILINE)) == 3
    assert len(re.findall(r"^ *sums +3 .*avg@2 [0-9.]+ % .*, pass@2 [0-9.]+ %$", said, re.MULTILINE)) == 3
    lines = metrics(tmp_path / "taught")
    # 8 starts of the first iteration by 3 : 1, then 4 fresh ones and what is replayed
    assert [lines[0][f"sources/{label}/starts"] for label in ("words", "math")] == [6, 2]
    assert all(0 <= line[f"sources/{label}/root_success"] <= 1 for line in lines for label in ("words", "math"))
    assert [(line["replay_share"], line["judge_failures"]) for line in lines] == [(0.0, 0), (0.5, 0)]
    for line in lines:
        assert line["reward"] == pytest.approx(line["rewards/task"] + 0.25 * line["rewards/share_of_e"])
    assert any(0 < line["rewards/share_of_e"] < 1 for line in lines)
    sample = json.loads((tmp_path / "taught" / "samples" / "000002.jsonl").read_text().splitlines()[0])
    assert sample["correct"] == (sample["reward"] >= 1.0)

    file = tmp_path / "answers.jsonl"
    more = ["--task.eval_sets", json.dumps([EXAM]), "--evaluation.samples", "2", "--responses", str(file)]
    said = one_process.run("evaluate", str(tmp_path / "taught"), *more)
    assert re.search(r"^ *exam +2 .*avg@2 .*pass@2", said, re.MULTILINE)
    numbers = json.loads(file.with_suffix(".json").read_text())
    assert (numbers["problems"], numbers["left_out"], numbers["judge_failures"]) == (7, 0, 0)
    assert [(source["source"], source["problems"]) for source in numbers["sources"]] == [("math", 3), ("words", 4)]
    assert list(numbers["pass"]) == ["1", "2"]
    assert numbers["majority"]["problems"] == 7
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["kind"] for row in rows] == ["greedy"] * 7 + ["sampled"] * 14 + ["greedy"] * 2 + ["sampled"] * 4
    assert [row["source"] for row in rows[:7]] == ["words"] * 4 + ["math"] * 3
    assert {row["source"] for row in rows[21:]} == {"exam"}
    assert not any(row["prompt"].startswith("Question: ") for row in rows)  # the question, without the template
    last = json.loads((tmp_path / "taught" / "evaluations.jsonl").read_text().splitlines()[-1])
    assert (last["iteration"], last["success"]) == (2, numbers["success"])
    assert [(one["set"], one["problems"], one["samples"]) for one in last["sets"]] == [("exam", 2, 0), ("sums", 3, 2)]
    assert [one["success"] for one in numbers["sets"]] == [last["sets"][0]["success"]]
    assert "avg@2" in (tmp_path / "taught" / "report.html").read_text()
