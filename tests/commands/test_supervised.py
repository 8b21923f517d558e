"""`launch.py sft` and `reward-model` over TRL: what is learned, resumed exactly, served as rewards; bad input."""

import io
import json
import shutil
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

import launch
from commands.reward_model import pair_rows
from commands.sft import from_messages, sft_rows
from commands.supervised import Read
from core.config import Config, ResolvedRewardModel, TaskConfig
from core.errors import ActorError, ConfigError, DataError, ModelError
from core.load import load_config
from core.parts.judge import Case
from core.records import Verdict
from tasks.dialogue import chat
from tasks.dialogue.chat import Message
from tasks.dialogue.reward_model import (
    RewardJudge,
    RewardScorer,
    Scale,
    check_reward_model,
    local_scorer,
    read_scale,
    score_verdict,
)
from tasks.kinds import task_items
from tests.conftest import FEW_ROWS
from tests.test_launch import here
from tests.whole_runs import metrics, run

MOST = 512  # tokens of a row


@pytest.fixture(scope="module")
def model(starter: Callable[..., str]) -> str:
    """A new model of one layer over characters."""
    template = "".join(chr(code) for code in range(32, 127)) + "{prompt}\n"
    return starter("tiny", "--task.template", template, hidden_size=32, layers=1, heads=1, steps=0)


@pytest.fixture(scope="module")
def recipe(model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both commands on 30 rows, of which 27 are learned in 7 steps; checkpoints after 3, 6 and 7. The polite reply is
    preferred."""
    folder = tmp_path_factory.mktemp("supervised")
    asked = [f"\n\nHuman: {i}?\n\nAssistant: " for i in range(30)]
    rows = [{"chosen": f"{turn}yes please", "rejected": f"{turn}no way"} for turn in asked]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    steps = {"per_device_train_batch_size": 4, "learning_rate": 3e-3, "save_steps": 3, "logging_steps": 1}
    arguments = {"num_train_epochs": 1, **steps}
    sections = {
        "run": {"root": str(folder), "keep_checkpoints": 3},
        "model": {"path": model},
        "sft": {"path": str(folder / "rows.jsonl"), "column": "chosen", "arguments": arguments},
        "reward_model": {"pairs": str(folder / "rows.jsonl"), "arguments": arguments},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(sections))
    return folder / "recipe.yaml"


@pytest.fixture(scope="module")
def rewards(recipe: Path) -> Path:
    """The run directory of a reward model."""
    told = here("reward-model", "--config", str(recipe), "--run.name", "rewards")
    assert told.returncode == 0, told.stderr
    assert "27 rows to learn, 3 held out" in told.stdout
    assert "held out: accuracy 100.0 %" in told.stdout  # every pair differs in the same way
    return recipe.parent / "rewards"


def numbers(folder: Path) -> list[dict[str, float]]:
    """What TRL logged of the training's steps."""
    return [
        {name: line[name] for name in ("step", "loss", "grad_norm", "learning_rate")}
        for line in metrics(folder)
        if "loss" in line
    ]


def test_a_reward_model_learns_the_preference_and_says_how_well(rewards: Path) -> None:
    told = metrics(rewards)
    before, after = (line for line in told if "eval_loss" in line)
    assert (before["step"], after["step"], after["eval_accuracy"]) == (0, 7, 1.0)
    assert after["eval_loss"] < before["eval_loss"]
    assert told[1]["loss"] == pytest.approx(np.log(2), abs=0.4)  # a new head cannot tell: -log sigmoid(about 0)
    saved = json.loads((rewards / "policy" / "reward.json").read_text())
    assert saved["accuracy"]["mean"] == 1.0
    # Wilson: n / (n + z^2)
    assert saved["accuracy"]["low"] == pytest.approx(3 / (3 + 3.8415), abs=1e-3)
    assert saved["deviation"] > 0
    assert not (rewards / "policy" / "training_args.bin").exists()


def test_a_resumed_run_ends_with_the_same_numbers_and_weights(rewards: Path, tmp_path: Path) -> None:
    again = shutil.copytree(rewards, tmp_path / "again")
    for folder in ("policy", "checkpoints/checkpoint-6", "checkpoints/checkpoint-7"):  # killed after step 3
        shutil.rmtree(again / folder)
    run("reward-model", "--resume", str(again))
    assert numbers(again) == numbers(rewards)
    left, right = ((folder / "policy" / "model.safetensors").read_bytes() for folder in (rewards, again))
    assert left == right


def test_the_loss_of_sft_is_that_of_the_replies_alone(recipe: Path, model: str) -> None:
    told = here("sft", "--config", str(recipe), "--run.name", "taught")
    assert told.returncode == 0, told.stderr
    net = AutoModelForCausalLM.from_pretrained(model)
    nats, learned = torch.zeros(()), 0
    for row in from_messages(load_config(recipe), model, MOST).held_out:
        ids, labels = torch.tensor(row["input_ids"]), torch.tensor(row["labels"])
        with torch.no_grad():
            logits = net(ids[None]).logits[0, :-1]
        nats += F.cross_entropy(logits, labels[1:], ignore_index=-100, reduction="sum")
        learned += sum(label >= 0 for label in row["labels"])
    before, after = (line["eval_loss"] for line in metrics(recipe.parent / "taught") if "eval_loss" in line)
    assert before == pytest.approx(float(nats) / learned, abs=1e-5)
    assert after < before


def cases(count: int) -> list[Case]:
    return [
        Case(chat.dump_messages((Message("user", f"{i}?"),)), said)
        for i in range(count)
        for said in ("yes please", "no way", "")
    ]


def test_rewards_are_the_normalised_scores_of_the_trained_model_whatever_the_batch(
    rewards: Path, recipe: Path, model: str
) -> None:
    policy = str(rewards / "policy")
    asked = [(*chat.load_messages(case.reference), Message("assistant", case.response)) for case in cases(5)]
    together = RewardScorer(policy, batch_tokens=10_000, device="cpu").score(asked)
    alone = RewardScorer(policy, batch_tokens=1, device="cpu").score(asked)
    assert together == pytest.approx(alone, abs=1e-5)
    scale = read_scale(policy)
    settings = ResolvedRewardModel(path=policy)
    verdicts = RewardJudge(settings, local_scorer).judge(cases(5))
    assert [one.reward for one in verdicts] == pytest.approx(
        [((score or 0.0) - scale.mean) / scale.deviation for score in together]
    )
    assert [one.correct for one in verdicts[:2]] == [True, False]
    held_out = pair_rows(load_config(recipe), model, MOST).held_out  # what the scale was measured on
    rows = [row[side] for row in held_out for side in ("chosen_ids", "rejected_ids")]
    scores = RewardScorer(policy, batch_tokens=500, device="cpu").score_tokens(rows)
    assert (scale.mean, scale.deviation) == pytest.approx((np.mean(scores), np.std(scores)), abs=1e-4)  # type: ignore[arg-type]


def test_what_cannot_be_scored_is_a_counted_verdict(rewards: Path) -> None:
    long = [Case(chat.dump_messages((Message("user", "x" * 3000),)), "yes")]
    judged = RewardJudge(ResolvedRewardModel(path=str(rewards / "policy")), local_scorer).judge([*long, *cases(1)])
    assert judged[0].detail == "the dialogue is longer than the reward model's context"
    assert (judged[0].correct, judged[0].judge_failed) == (False, True)
    assert judged[0].reward == min(one.reward for one in judged) < 0.0  # held-out replies are as low, or lower
    unscored = score_verdict(float("nan"), Scale(), lowest=-1.0)
    assert unscored == Verdict(-1.0, False, "the reward model returned nan", True)
    assert score_verdict(3.0, Scale(1.0, 4.0), lowest=-1.0) == Verdict(0.5, True, "score 3.000")
    assert score_verdict(1.0, Scale(1.0, 4.0), lowest=-1.0) == Verdict(0.0, False, "score 1.000")  # the average


@pytest.mark.usefixtures("ray_cluster")
def test_the_actor_scores_as_the_model_and_is_replaced(rewards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    from tasks.dialogue.reward_actor import RewardService

    settings = ResolvedRewardModel(path=str(rewards / "policy"))
    expected = [one.reward for one in RewardJudge(settings, local_scorer).judge(cases(3))]
    judge = RewardJudge(settings, RewardService)
    assert [one.reward for one in judge.judge(cases(3))] == pytest.approx(expected, abs=1e-5)
    ray.kill(judge._scorer._actor)  # type: ignore[union-attr]
    assert [one.reward for one in judge.judge(cases(3))] == pytest.approx(expected, abs=1e-5)
    judge.close()
    # the model alone takes longer to load
    monkeypatch.setattr("tasks.dialogue.reward_actor.DEADLINE", 1e-3)
    with pytest.raises(ActorError, match=r"0\.001 s.*, 2 times"):
        RewardJudge(settings, RewardService).judge(cases(1))


def test_a_model_that_is_no_reward_model_is_refused(model: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"reward_model\.path"):
        check_reward_model("")
    with pytest.raises(ModelError, match="Qwen2ForCausalLM"):
        check_reward_model(model)
    with pytest.raises(ModelError, match=r"neither a model here nor one on the hub .*; train one with"):
        check_reward_model(str(tmp_path))


def test_bad_pairs_and_messages_are_named(model: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"

    def message(read: Read, rows: list[dict[str, Any]]) -> str:
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        sections = {"sft": {"path": str(file)}, "reward_model": {"pairs": str(file)}}
        with pytest.raises((DataError, ConfigError)) as caught:
            read(Config.model_validate({"model": {"path": model}, **sections}), model, MOST)
        return str(caught.value)

    good = {"chosen": "\n\nHuman: a\n\nAssistant: b", "rejected": "\n\nHuman: a\n\nAssistant: c"}
    assert "row 1 has no column 'rejected' (reward_model.pairs)" in message(pair_rows, [{"chosen": "x"}])
    assert "row 2: column 'chosen' (reward_model.pairs)" in message(
        pair_rows, [good, {**good, "chosen": "\n\nHuman: a"}]
    )
    assert "1 rows can be trained on" in message(pair_rows, [good, {**good, "rejected": good["chosen"]}])
    assert "row 1 has no column 'messages' (sft.column)" in message(sft_rows, [good])
    assert "row 1: column 'messages' (sft.column)" in message(sft_rows, [{"messages": "hello"}])
    assert "1 rows can be trained on" in message(sft_rows, [{"messages": good["chosen"]}])


@pytest.mark.parametrize("command", ["sft", "reward-model"])
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ('--SECTION.arguments {"learning_rte":1}', "SECTION.arguments.learning_rte: "),
        ('--SECTION.arguments {"learning_rate":"fast"}', "SECTION.arguments.learning_rate = 'fast': "),
        ('--SECTION.arguments {"output_dir":"x"}', "SECTION.arguments.output_dir cannot be set; use run.root"),
        ('--SECTION.arguments {"max_length":9999}', "SECTION.arguments.max_length = 9999"),
        ('--SECTION.arguments {"eval_strategy":"never"}', "SECTION.arguments: "),
        ("--SECTION.arguments 3", "SECTION.arguments = "),
        ("--learner.lora_rank 4", "learner.lora_rank = 4"),
        ("--resume RUN --run.seed 3", "leave out --run.seed"),
        ("--resume RUN", "leave out --config"),
    ],
)
def test_bad_arguments_are_one_line_that_names_them(recipe: Path, command: str, options: str, told: str) -> None:
    section, errors = command.replace("-", "_"), io.StringIO()
    words = [command, "--config", str(recipe), *options.replace("SECTION", section).split()]
    with redirect_stderr(errors), redirect_stdout(io.StringIO()):
        assert launch.main(words) == 2
    (line,) = [text for text in errors.getvalue().splitlines() if text.startswith("error: ")]
    assert told.replace("SECTION", section) in line


@pytest.mark.parametrize("command", ["sft", "train"])
def test_another_command_does_not_resume_the_run(rewards: Path, command: str) -> None:
    errors = io.StringIO()
    with redirect_stderr(errors), redirect_stdout(io.StringIO()):
        assert launch.main([command, "--resume", str(rewards)]) == 2
    assert "reward-model`; resume it with" in errors.getvalue()


def test_pairs_of_one_prompt_stay_together_and_only_replies_are_learned(model: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    rows = [
        {"chosen": f"\n\nHuman: {i // 3}?\n\nAssistant: yes {i}", "rejected": f"\n\nHuman: {i // 3}?\n\nAssistant: no"}
        for i in range(33)
    ]
    file.write_text("".join(json.dumps({**row, "messages": row["chosen"]}) + "\n" for row in rows))
    whole = Config.model_validate({"reward_model": {"pairs": str(file)}, "sft": {"path": str(file)}})
    rows_of = pair_rows(whole, model, MOST)
    learned, held_out = rows_of.train, rows_of.held_out
    assert (len(learned), len(held_out)) == (27, 6)  # a tenth are four; their two prompts have three pairs each
    tokenizer = AutoTokenizer.from_pretrained(model)
    asked = [{tokenizer.decode(pair["chosen_ids"]).split("?")[0] for pair in part} for part in (learned, held_out)]
    assert not asked[0] & asked[1]
    texts = from_messages(whole, model, MOST)
    assert (len(texts.train), len(texts.held_out)) == (29, 4)
    learned_tokens = [[label for label in text["labels"] if label >= 0] for text in (*texts.train, *texts.held_out)]
    assert {tokenizer.decode(tokens) for tokens in learned_tokens} == {f"yes {i}<|endoftext|>" for i in range(33)}


@pytest.mark.parametrize("where", ["eval_path", "path"])
def test_evaluation_problems_of_the_task_are_not_learned(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    file, pairs_file = tmp_path / "rows.jsonl", tmp_path / "pairs.jsonl"
    turns = [f"\n\nHuman: {i}?\n\nAssistant: " for i in range(40)]
    rows = [{"chosen": f"{turn}yes {i}", "rejected": f"{turn}no"} for i, turn in enumerate(turns)]
    pairs_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    messages = [{"role": "system", "content": "Be kind."}]  # the question alone is compared, too
    dialogues = [[*messages, {"role": "user", "content": f" {i}? "}] for i in range(40)]
    for i, turns_of in enumerate(dialogues):
        turns_of.append({"role": "assistant", "content": f"yes {i}"})
    file.write_text("".join(json.dumps({"messages": turns_of}) + "\n" for turns_of in dialogues))
    task: dict[str, Any] = {"name": "dialogue", where: str(pairs_file), "columns": {"prompt": "chosen"}}
    if where == "eval_path":  # more rows than are evaluated: none of them is learned
        (tmp_path / "eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:20]))
        task |= {"eval_path": str(tmp_path / "eval.jsonl"), "eval_problems": 3}
    else:
        task |= {"eval_problems": 20}
    sections = {"sft": {"path": str(file)}, "reward_model": {"pairs": str(pairs_file)}}
    whole = Config.model_validate({"task": task, **sections})
    unseen = {f"{i}?" for i in range(20)}
    if where == "path":
        unseen = {item.messages[0].content for item in task_items(whole.task, 0)[1]}
    tokenizer = AutoTokenizer.from_pretrained(model)
    pairs = pair_rows(whole, model, MOST)
    assert (len(unseen), len(pairs.held_out)) == (20, 4)
    asked = [tokenizer.decode(pair["chosen_ids"]).split("Human: ")[1].split("\n")[0] for pair in pairs.train]
    assert len(asked) >= 16
    assert not unseen & set(asked)
    texts = from_messages(whole, model, MOST).train
    asked = [tokenizer.decode(text["input_ids"]).split("Human: ")[1].split("\n")[0].strip() for text in texts]
    assert len(asked) >= 16
    assert not unseen & set(asked)
    assert capsys.readouterr().out.count("rows not learned: they are evaluation problems of task dialogue") == 2
    all_of_it = whole.model_copy(update={"task": TaskConfig(**task | {"eval_path": str(pairs_file)})})
    for read in (pair_rows, from_messages):
        with pytest.raises(DataError, match="task dialogue"):
            read(all_of_it, model, MOST)


def test_solutions_are_learned_without_anything_that_judges(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no bubblewrap, and no reward model is named
    (tmp_path / "chats.jsonl").write_text(
        "".join(json.dumps({"chosen": f"\n\nHuman: {i}?\n\nAssistant: {'yes' * i}"}) + "\n" for i in range(1, 41))
        + json.dumps({"chosen": "\n\nHuman: 41?"})
    )
    dialogue_task = {"name": "dialogue", "path": str(tmp_path / "chats.jsonl"), "columns": {"prompt": "chosen"}}
    columns = {"prompt": "text", "tests": "test_list", "solution": "code"}
    programs = {"name": "mbpp", "path": str(FEW_ROWS / "mbpp" / "mbpp.jsonl"), "columns": columns}
    for task, rows in ((dialogue_task, 41), (programs, None)):
        whole = Config.model_validate(
            {
                "model": {"path": model},
                "task": {**task, "eval_problems": 1},
                "rollout": {"max_prompt_tokens": 600, "max_response_tokens": 100 if rows else 1200},
            }
        )
        found = sft_rows(whole, model, 100 if rows else 2000)
        assert len(found.train) > 0
        assert len(found.held_out) == 1
        told = capsys.readouterr().out
        assert f"task {task['name']}: 0 duplicate prompts and 0 prompts over rollout.max_prompt_tokens left out" in told
        if rows:  # every problem that is not learned is told
            left = f"task dialogue: {rows - 1 - len(found.train)} of {rows - 1} training problems left out: "
            assert left in told
            assert "left out: 0 over" not in told
