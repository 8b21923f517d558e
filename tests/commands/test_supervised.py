"""Supervised training on real DeepSpeed ranks: the loss and the weights of plain torch, resumed exactly, served as
rewards."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer

from commands import reward_model, sft
from commands.reward_model import reward_job
from commands.sft import sft_job
from commands.supervised import (
    MakeJob,
    SupervisedJob,
    export_model,
    held_out_numbers,
    resume_supervised,
    rows_of_step,
    take_steps,
)
from core.config import Config, RewardModelConfig, SftConfig, StarterConfig, TaskConfig
from core.errors import ActorError, ConfigError, DataError, ModelError
from core.protocols import Case
from core.records import Verdict
from core.run_directory import RunDirectory
from learner.packing.examples import Pair, Text, pair_batches, text_batches
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
from tasks.starter import resolve_model
from tests.conftest import FEW_ROWS

WIDTH = 48  # tokens of a pass: several passes per step


def config(**sections: Any) -> Config:
    learner = {"threads": 1, "micro_batch_tokens": WIDTH, "deadline": 600.0, "max_grad_norm": 0.5}
    return Config.model_validate({"learner": learner, **sections})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A new model of one layer over characters."""
    starter = StarterConfig(hidden_size=32, layers=1, heads=1, steps=0, cache=tmp_path_factory.mktemp("starter"))
    template = "".join(chr(code) for code in range(32, 127)) + "{prompt}\n"
    return resolve_model("starter", starter, TaskConfig(template=template), 0)


@contextmanager
def group(objective: type[Any], model: str, ranks: int) -> Iterator[Any]:
    from learner.supervised_group import SupervisedGroup

    settings = config().learner.model_copy(update={"ranks": ranks})
    made = SupervisedGroup(objective, model, settings, dtype="float32", device="cpu", cpus=0.5, gpus=0.0)
    try:
        yield made
    finally:
        made.close()


def texts(count: int) -> list[Text]:
    """Texts of 4 to 20 tokens; some tokens in the middle and at the end are learned."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(4, 21, count)
    return [Text(rng.integers(2, 90, n).astype(np.int32), np.array([1, *range(n // 2, n)], np.int32)) for n in lengths]


def reference(model: str, steps: Sequence[Sequence[Text]], rate: float) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and final weights of plain torch: one text at a time, AdamW, clipping at 0.5."""
    torch.manual_seed(0)
    net = AutoModelForCausalLM.from_pretrained(model)
    optimizer = torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=0.0)
    losses = []
    for rows in steps:
        learned = sum(len(text.learned) for text in rows)
        total = 0.0
        for text in rows:
            ids = torch.from_numpy(text.tokens.astype(np.int64))[None]
            at = torch.from_numpy(text.learned.astype(np.int64))
            loss = F.cross_entropy(net(ids).logits[0, at - 1], ids[0, at], reduction="sum") / learned
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses, dict(net.named_parameters())


@pytest.mark.usefixtures("kept_ranks")
def test_two_ranks_and_many_passes_learn_what_plain_torch_learns(model: str, tmp_path: Path) -> None:
    from learner.supervised_group import NextToken

    rows, batches = texts(13), partial(text_batches, budget=WIDTH, ranks=2)
    job = SupervisedJob(model, Config(), SftConfig(), rows, rows[:3], batches, sft.held_out_loss, sft.describe_loss)
    steps = [rows_of_step(0, step, len(rows), 7) for step in range(3)]
    assert sorted(steps[0] + steps[1]) == list(range(13))  # 7 and 6 rows: an epoch
    losses, weights = reference(model, [[rows[i] for i in step] for step in steps], 1e-3)
    with group(NextToken, model, ranks=2) as ranks:
        before = held_out_numbers(ranks, job)["held_out_loss"]
        assert [ranks.step(job.batches([rows[i] for i in step]), 1e-3).loss for step in steps] == pytest.approx(
            losses, abs=1e-5
        )
        assert held_out_numbers(ranks, job)["held_out_loss"] < before
        ranks.export(tmp_path)
    found = dict(AutoModelForCausalLM.from_pretrained(tmp_path).named_parameters())
    assert found.keys() == weights.keys()
    for name, tensor in weights.items():
        torch.testing.assert_close(found[name], tensor, atol=2e-5, rtol=0)
    assert before == pytest.approx(reference(model, [rows[:3]], 0.0)[0][0], abs=1e-5)


def pairs(tokenizer: Any, count: int) -> list[Pair]:
    """The polite reply is preferred."""
    found = []
    for i in range(count):
        asked = Message("user", f"{i}?")
        sides = [
            chat.encode_dialogue(tokenizer, (asked, Message("assistant", said)), "x").ids
            for said in ("yes please", "no way")
        ]
        found.append(Pair(*(np.array(side, np.int32) for side in sides)))
    return found


@pytest.fixture(scope="module")
def rewards(kept_ranks: None, model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reward model trained without interruption; its run directory."""
    return learn(model, tmp_path_factory.mktemp("rewards"), resumed=None).path


def settings_of(model: str) -> Config:
    return config(
        model={"path": model}, reward_model={"lr": 3e-3, "batch_size": 4, "evaluate_every": 3, "checkpoint_every": 3}
    )


def learn(model: str, folder: Path, resumed: Path | None) -> RunDirectory:
    """Six steps over 24 pairs, checkpoints after 3 and 6; `resumed`: from there."""
    from learner.supervised_group import Preference

    whole = settings_of(model)
    run = RunDirectory.create(folder, "run", "x")
    known = pairs(AutoTokenizer.from_pretrained(model), 30)
    batches = partial(pair_batches, budget=4 * WIDTH, ranks=1)
    measured = reward_model.measure_pairs, reward_model.describe_accuracy, reward_model.save_scale
    job = SupervisedJob(model, whole, whole.reward_model, known[6:], known[:6], batches, *measured)
    with group(Preference, model, ranks=1) as ranks:
        take_steps(ranks, job, whole, run, resumed)
        run.policy.mkdir()
        export_model(ranks, job, run.policy)
    return run


def lines(run: Path) -> list[dict[str, float]]:
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in found]


def test_a_reward_model_learns_the_preference_and_says_how_well(rewards: Path) -> None:
    told = lines(rewards)
    assert [line["step"] for line in told] == [0, 1, 2, 3, 4, 5, 6]
    assert ["held_out_accuracy" in line for line in told] == [True, False, False, True, False, False, True]
    assert told[-1]["held_out_accuracy"] == 1.0  # every pair differs in the same way
    pairs = told[-1]["held_out_pairs"]
    assert told[-1]["held_out_accuracy_low"] == pytest.approx(
        pairs / (pairs + 3.8415), abs=1e-3
    )  # Wilson: n / (n + z^2)
    assert told[-1]["held_out_loss"] < told[0]["held_out_loss"]
    assert told[1]["loss"] == pytest.approx(np.log(2), abs=0.4)  # a new head cannot tell: -log sigmoid(about 0)
    saved = json.loads((rewards / "policy" / "reward.json").read_text())
    assert saved["accuracy"]["mean"] == 1.0
    assert saved["deviation"] > 0


def test_a_resumed_run_ends_with_the_same_numbers_and_weights(rewards: Path, model: str, tmp_path: Path) -> None:
    again = learn(model, tmp_path, resumed=rewards / "checkpoints" / "000003")
    assert lines(again.path) == lines(rewards)[4:]
    left, right = ((run / "policy" / "model.safetensors").read_bytes() for run in (rewards, again.path))
    assert left == right


def cases(count: int) -> list[Case]:
    return [
        Case(chat.dump_messages((Message("user", f"{i}?"),)), said)
        for i in range(count)
        for said in ("yes please", "no way", "")
    ]


def test_rewards_are_the_normalised_scores_of_the_trained_model_whatever_the_batch(rewards: Path, model: str) -> None:
    policy = str(rewards / "policy")
    asked = [(*chat.load_messages(case.reference), Message("assistant", case.response)) for case in cases(5)]
    together = RewardScorer(policy, batch_tokens=10_000, device="cpu").score(asked)
    alone = RewardScorer(policy, batch_tokens=1, device="cpu").score(asked)
    assert together == pytest.approx(alone, abs=1e-5)
    scale = read_scale(policy)
    settings = RewardModelConfig(path=policy, threshold=0.25)
    verdicts = RewardJudge(settings, local_scorer).judge(cases(5))
    assert [one.reward for one in verdicts] == pytest.approx(
        [((score or 0.0) - scale.mean) / scale.deviation for score in together]
    )
    assert [one.correct for one in verdicts[:2]] == [True, False]
    known = pairs(AutoTokenizer.from_pretrained(model), 6)  # the held-out pairs: what the scale was measured on
    scores = RewardScorer(policy, batch_tokens=500, device="cpu").score(
        [(Message("user", f"{i}?"), Message("assistant", said)) for i in range(6) for said in ("yes please", "no way")]
    )
    assert len(known) == 6
    assert (scale.mean, scale.deviation) == pytest.approx((np.mean(scores), np.std(scores)), abs=1e-4)  # type: ignore[arg-type]


def test_what_cannot_be_scored_is_a_counted_verdict(rewards: Path) -> None:
    long = [Case(chat.dump_messages((Message("user", "x" * 3000),)), "yes")]
    judged = RewardJudge(RewardModelConfig(path=str(rewards / "policy")), local_scorer).judge([*long, *cases(1)])
    assert judged[0].detail == "the dialogue is longer than the reward model's context"
    assert (judged[0].correct, judged[0].judge_failed) == (False, True)
    assert judged[0].reward == min(one.reward for one in judged) < 0.0  # held-out replies are as low, or lower
    unscored = score_verdict(float("nan"), Scale(), 0.0, lowest=-1.0)
    assert unscored == Verdict(-1.0, False, "the reward model returned nan", True)
    assert score_verdict(3.0, Scale(1.0, 4.0), 0.5, lowest=-1.0) == Verdict(
        0.5, False, "score 3.000"
    )  # not above the threshold


@pytest.mark.usefixtures("ray_cluster")
def test_the_actor_scores_as_the_model_and_is_replaced(rewards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    from tasks.dialogue.reward_actor import RewardService

    settings = RewardModelConfig(path=str(rewards / "policy"))
    expected = [one.reward for one in RewardJudge(settings, local_scorer).judge(cases(3))]
    judge = RewardJudge(settings, RewardService)
    assert [one.reward for one in judge.judge(cases(3))] == pytest.approx(expected, abs=1e-5)
    ray.kill(judge._scorer._actor)  # type: ignore[union-attr]
    assert [one.reward for one in judge.judge(cases(3))] == pytest.approx(expected, abs=1e-5)
    judge.close()
    # the model alone takes longer to load
    monkeypatch.setattr("tasks.dialogue.reward_actor.DEADLINE", 1e-3)
    with pytest.raises(ActorError, match=r"reward-model: no answer within 0\.001 s.*, 2 times"):
        RewardJudge(settings, RewardService).judge(cases(1))


def test_a_model_that_is_no_reward_model_is_refused(model: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"reward_model\.path is empty"):
        check_reward_model("")
    with pytest.raises(ModelError, match="Qwen2ForCausalLM with 2 labels is no reward model"):
        check_reward_model(model)
    with pytest.raises(ModelError, match=r"neither a model here nor one on the hub .*; train one with"):
        check_reward_model(str(tmp_path))


def test_bad_pairs_and_messages_are_named(model: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"

    def message(make_job: MakeJob, rows: list[dict[str, Any]], **options: Any) -> str:
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        learner = {"micro_batch_tokens": 100_000}
        sections = {"sft": {"path": str(file)}, "reward_model": {"pairs": str(file), **options}, "learner": learner}
        with pytest.raises((DataError, ConfigError)) as caught:
            make_job(Config.model_validate({"model": {"path": model}, **sections}))
        return str(caught.value)

    good = {"chosen": "\n\nHuman: a\n\nAssistant: b", "rejected": "\n\nHuman: a\n\nAssistant: c"}
    assert "row 1 has no column 'rejected' (reward_model.rejected)" in message(reward_job, [{"chosen": "x"}])
    assert "row 2: column 'chosen' (reward_model.chosen) does not end with the assistant's turn" in message(
        reward_job, [good, {**good, "chosen": "\n\nHuman: a"}]
    )
    assert "1 rows within reward_model.max_tokens = 512" in message(
        reward_job, [good, {**good, "rejected": good["chosen"]}]
    )
    assert "reward_model.max_tokens = 9999, but the model's context is 2048" in message(
        reward_job, [good], max_tokens=9999
    )
    assert "row 1 has no column 'messages' (sft.column)" in message(sft_job, [good])
    assert "row 1: column 'messages' (sft.column): the assistant says nothing" in message(
        sft_job, [{"messages": "hello"}]
    )
    assert "1 rows within sft.max_tokens = 512, of which sft.eval_rows = 128" in message(
        sft_job, [{"messages": good["chosen"]}]
    )
    with pytest.raises(
        ConfigError, match=r"learner\.micro_batch_tokens = 48 cannot fit a row of sft\.max_tokens = 512"
    ):
        sft_job(config())
    with pytest.raises(ConfigError, match=r"learner\.lora_rank = 4: supervised training trains all weights"):
        reward_job(Config.model_validate({"learner": {"lora_rank": 4}, "reward_model": {"pairs": "some"}}))
    with pytest.raises(ConfigError, match=r"leave out --run\.seed"):
        resume_supervised(tmp_path, ["--run.seed", "3"], sft_job)


def test_pairs_of_one_prompt_stay_together_and_only_replies_are_learned(model: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    rows = [
        {"chosen": f"\n\nHuman: {i // 3}?\n\nAssistant: yes {i}", "rejected": f"\n\nHuman: {i // 3}?\n\nAssistant: no"}
        for i in range(30)
    ]
    file.write_text("".join(json.dumps({**row, "messages": row["chosen"]}) + "\n" for row in rows))
    whole = Config.model_validate(
        {"reward_model": {"pairs": str(file), "eval_rows": 4}, "sft": SftConfig(path=str(file), eval_rows=4)}
    )
    learned, held_out = reward_model.load_pairs(whole, model)
    assert (len(learned), len(held_out)) == (24, 6)  # the two prompts of the first four pairs have three pairs each
    tokenizer = AutoTokenizer.from_pretrained(model)
    asked = [{tokenizer.decode(pair.chosen).split("?")[0] for pair in part} for part in (learned, held_out)]
    assert not asked[0] & asked[1]
    first, second = sft.from_messages(whole, model)
    assert (len(first), len(second)) == (26, 4)
    said = {tokenizer.decode(text.tokens[text.learned]) for text in (*first, *second)}
    assert said == {f"yes {i}<|endoftext|>" for i in range(30)}


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
    sections = {"sft": {"path": str(file), "eval_rows": 4}, "reward_model": {"pairs": str(pairs_file), "eval_rows": 4}}
    whole = Config.model_validate({"task": task, **sections})
    unseen = {f"{i}?" for i in range(20)}
    if where == "path":
        unseen = {item.messages[0].content for item in task_items(whole.task, 0)[1]}
    tokenizer = AutoTokenizer.from_pretrained(model)
    learned, held_out = reward_model.load_pairs(whole, model)
    assert (len(unseen), len(held_out)) == (20, 4)
    asked = [tokenizer.decode(pair.chosen).split("Human: ")[1].split("\n")[0] for pair in learned]
    assert len(asked) >= 16
    assert not unseen & set(asked)
    texts, _ = sft.from_messages(whole, model)
    asked = [tokenizer.decode(text.tokens).split("Human: ")[1].split("\n")[0].strip() for text in texts]
    assert len(asked) >= 16
    assert not unseen & set(asked)
    assert capsys.readouterr().out.count("rows not learned: they are evaluation problems of task dialogue") == 2
    all_of_it = whole.model_copy(update={"task": TaskConfig(**task | {"eval_path": str(pairs_file)})})
    for command in (reward_model.load_pairs, sft.from_messages):
        with pytest.raises(DataError, match="every row that is not held out is an evaluation problem of task dialogue"):
            command(all_of_it, model)


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
                "sft": {"max_tokens": 100 if rows else 2000},
                "learner": {"micro_batch_tokens": 4096},
            }
        )
        job = sft_job(whole)
        assert len(job.train) > 0
        assert len(job.held_out) == 1
        told = capsys.readouterr().out
        assert f"task {task['name']}: 0 duplicate prompts and 0 prompts over rollout.max_prompt_tokens left out" in told
        if rows:  # every problem that is not learned is told
            left = f"task dialogue: {rows - 1 - len(job.train)} of {rows - 1} training problems left out: "
            assert left in told
            assert "0 over sft.max_tokens" not in told
