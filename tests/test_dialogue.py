"""Dialogue as its user runs it: a reward model from pairs, PPO with replay against it, one checkpoint against
another."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.test_launch import here
from tests.whole_runs import OneProcess, metrics, run

WORDS = ("thanks", "please", "gladly", "surely")


@pytest.fixture(scope="module")
def options(
    ray_address: str, tmp_path_factory: pytest.TempPathFactory, starter: Callable[..., str]
) -> tuple[Path, list[str]]:
    """The folder of the runs and what all commands share. Polite replies are preferred."""
    root = tmp_path_factory.mktemp("dialogue")
    rows = [
        {
            "chosen": f"\n\nHuman: {i} {word}?\n\nAssistant: {word} yes",
            "rejected": f"\n\nHuman: {i} {word}?\n\nAssistant: no",
        }
        for i in range(16)
        for word in WORDS
    ]
    (root / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = ("--task.path", str(root / "pairs.jsonl"))
    return root, [
        *("--config", "tests/recipes/dialogue.yaml", "--run.root", str(root)),
        *data,
        *("--reward_model.pairs", str(root / "pairs.jsonl"), "--model.path", starter("dialogue", *data)),
        *("--cluster.address", ray_address),
    ]


def test_reward_model_training_and_win_rate_follow_one_another(
    options: tuple[Path, list[str]], one_process: OneProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE")  # a user has not set it: the driver must, before the judge imports Ray
    root, shared = options
    told = here("reward-model", *shared, "--run.name", "rewards").stdout
    assert re.search(r"[0-9]+ rows to learn, 7 held out", told)
    found = re.search(r"held out: accuracy ([0-9.]+) % \(95 % interval .*\) on 7 pairs", told.splitlines()[-3])
    assert found is not None, told
    assert float(found[1]) > 50  # chance

    shared += ["--reward_model.path", str(root / "rewards")]
    run("train", *shared, "--run.name", "talk")
    lines = metrics(root / "talk")
    assert [line["replay_share"] for line in lines] == [0.0, 0.5]
    assert abs(lines[0]["reference_kl"]) < 1e-6  # the policy is still the reference
    assert all(abs(line["reference_kl"]) < 0.1 and line["kl_coefficient"] == 0.05 for line in lines)
    sample = json.loads((root / "talk" / "samples" / "000002.jsonl").read_text().splitlines()[0])
    assert sample["detail"].startswith("score ")
    assert sample["correct"] == (sample["reward"] > 0)

    file = root / "both.parquet"
    earlier = str(root / "talk" / "checkpoints" / "000001")
    more = ("--against", earlier, "--evaluation.samples", "2", "--responses", str(file))
    text = one_process.run("evaluate", str(root / "talk"), *more)
    assert "win rate of the first" in text
    numbers = json.loads(file.with_suffix(".json").read_text())
    rate = numbers["comparison"]["win_rate"]
    assert 0 <= rate["low"] <= rate["mean"] <= rate["high"] <= 1
    assert rate["problems"] == numbers["problems"] == 8
    assert list(numbers["pass"]) == ["1", "2"]
    last = json.loads((root / "talk" / "evaluations.jsonl").read_text().splitlines()[-1])
    assert (numbers["success"], numbers["reward"]["mean"]) == pytest.approx((last["success"], last["reward"]["mean"]))
