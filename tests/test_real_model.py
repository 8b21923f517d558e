"""A pretrained model as its user trains it: the README's own recipe with 20 rows, in float32 and in bfloat16."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.test_docs import readme_blocks
from tests.whole_runs import metrics, run
from trainer.model.gguf import model_folder

MODEL = "models/SmolLM2-135M-Instruct.Q4_1.gguf"
SMALL = [
    *("--run.iterations", "1", "--task.eval_problems", "1"),
    *("--task.judge_timeout", "60", "--task.reward", "tests.tasks.verifiers:share_of_e"),
    *("--rollout.starts", "2", "--rollout.samples", "2", "--rollout.max_response_tokens", "12"),
    *("--rollout.kv_cache_gib", "0.2", "--rollout.threads", "1"),
    *("--replay.boundary", "stride", "--replay.stride", "4"),
    *("--learner.minibatches", "1", "--learner.policy_lr", "1e-4", "--learner.threads", "1"),
    *("--learner.value_model", "shared"),
]
"""As little work as shows that all parts work: many CPUs take ten times as long in bfloat16."""


@pytest.fixture(scope="module")
def shared(ray_address: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The folder of the runs, and the options of each: the README's recipe with 20 rows of its form."""
    root = tmp_path_factory.mktemp("real")
    (recipe,), (row,) = readme_blocks("yaml"), readme_blocks("json")
    (root / "my.yaml").write_text(recipe, encoding="utf-8")
    rows = root / "train.jsonl"
    rows.write_text("".join(row.replace("3 apples", f"{count} apples") for count in range(20)), encoding="utf-8")
    data = ["--config", str(root / "my.yaml"), "--task.path", str(rows)]
    return root, [*data, *SMALL, "--run.root", str(root), "--cluster.address", ray_address]


def changed(run_folder: Path) -> float:
    """The share of the weights that training has changed."""
    before = load_file(Path(model_folder(MODEL)) / "model.safetensors")
    after = load_file(run_folder / "policy" / "model.safetensors")
    assert before.keys() == after.keys()
    different = sum(int((before[name] != after[name].to(before[name])).sum()) for name in before)
    total: int = sum(weights.numel() for weights in before.values())
    return different / total


def evaluated(run_folder: Path) -> list[tuple[int, int]]:
    """The iterations after which the held-out problems were tried, and how many problems."""
    lines = [json.loads(text) for text in (run_folder / "evaluations.jsonl").read_text().splitlines()]
    return [(line["iteration"], line["problems"]) for line in lines]


def test_the_recipe_of_the_readme_trains_in_float32(shared: tuple[Path, list[str]]) -> None:
    root, options = shared
    said = run("train", *options, "--run.name", "fp32", "--model.dtype", "float32", "--local")
    assert "0 prompts over rollout.max_prompt_tokens left out" in said
    assert "learner.micro_batch_tokens: " in said
    (line,) = metrics(root / "fp32")
    assert line["logprob_gap"] < 1e-3
    assert line["weight_version"] == 1
    assert evaluated(root / "fp32") == [(0, 1), (1, 1)]
    assert changed(root / "fp32") > 0.01  # those that a step of 1e-4 moves to another number of bfloat16


def test_bfloat16_with_replay_and_an_evaluation(shared: tuple[Path, list[str]]) -> None:
    root, options = shared
    folder = root / "bf16"
    draw = ("--replay.ratio", "0.5", "--replay.start_states", "1", "--replay.ranking", "value")
    replay = (*draw, "--replay.schedule", "constant", "--replay.bounded", "false")
    run("train", *options, *replay, "--run.name", "bf16", "--model.dtype", "bfloat16", "--run.iterations", "2")
    lines = metrics(folder)
    assert [line["replay_share"] for line in lines] == [0.0, 0.5]
    assert 1e-4 < lines[0]["logprob_gap"] < 0.25  # rounding, and no reason to stop
    assert changed(folder) > 0.01
    assert (evaluated(folder)[0], evaluated(folder)[-1]) == ((0, 1), (2, 1))
    assert (folder / "policy" / "chat_template.jinja").read_text() == (
        Path(model_folder(MODEL)) / "chat_template.jinja"
    ).read_text()
