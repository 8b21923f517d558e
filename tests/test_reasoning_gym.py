"""A run on a data set of Reasoning Gym, as its user starts it: graded rewards, held-out problems, an evaluation set."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.whole_runs import RECIPE, OneProcess, metrics

pytest.importorskip("reasoning_gym", reason="pip install --no-deps -r requirements/reasoning.txt")

CHAINS = {"label": "chains", "path": "chain_sum", "parameters": {"max_terms": 3}, "problems": 5}


def test_training_on_a_generated_data_set_with_graded_scores(
    tmp_path: Path, starter: Callable[..., str], one_process: OneProcess
) -> None:
    fields = ["--task.name", "reasoning_gym", "--task.path", "basic_arithmetic", "--task.columns.solution", "answer"]
    fields += ["--task.parameters", '{"min_terms": 2, "max_terms": 2, "max_digits": 1}', "--task.problems", "400"]
    fields += ["--model.path", starter("tiny", *fields, steps=150, vocabulary=400)]
    fields += ["--rollout.max_prompt_tokens", "160", "--rollout.max_response_tokens", "24", "--run.iterations", "2"]
    sets = ["--task.eval_sets", json.dumps([CHAINS])]
    options = ["--config", RECIPE, *fields, *sets, "--run.root", str(tmp_path), "--run.name", "gym"]
    said = one_process.run("train", *options)
    assert "held-out problems" in said
    lines = metrics(tmp_path / "gym")
    assert [line["judge_failures"] for line in lines] == [0, 0]
    rows = [json.loads(line) for line in (tmp_path / "gym" / "samples" / "000002.jsonl").read_text().splitlines()]
    assert all(0 <= row["reward"] <= 1 and row["correct"] == (row["reward"] == 1) for row in rows)
    assert any(0 < line["reward"] < 1 for line in lines)
    evaluations = [json.loads(line) for line in (tmp_path / "gym" / "evaluations.jsonl").read_text().splitlines()]
    assert [(line["problems"], line["sets"][0]["problems"]) for line in evaluations] == [(16, 5)] * 2
