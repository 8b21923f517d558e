"""A reward model as it comes from the hub: without a padding token, with a context of its own. No engine, a tiny
classifier."""

import json
import shutil
from pathlib import Path

import pytest
from transformers import AutoTokenizer, Qwen2ForSequenceClassification

from core.config import Config, ResolvedRewardModel
from core.errors import ModelError
from core.load import override
from core.parts.judge import Case
from core.records import Verdict
from tasks.dialogue import chat
from tasks.dialogue.chat import Message
from tasks.dialogue.reward_model import RewardJudge, RewardScorer, Scale, local_scorer, read_scale
from tasks.judging import check_judge
from tasks.kinds import task_items
from tasks.synthetic.corpus import character_tokenizer
from tests.tiny import save_qwen2
from trainer.model.files import check_judging_model, located

PRINTABLE = "".join(chr(code) for code in range(32, 127)) + "\n"
CONTEXT = 64


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier of random weights that names no padding token."""
    folder = tmp_path_factory.mktemp("classifier")
    tokenizer = character_tokenizer(PRINTABLE)
    tokenizer.pad_token = None
    tokenizer.save_pretrained(folder)
    sizes = {"max_position_embeddings": CONTEXT, "num_labels": 1}
    save_qwen2(folder, len(tokenizer), Qwen2ForSequenceClassification, **sizes)
    assert json.loads((folder / "config.json").read_text()).get("pad_token_id") is None
    return folder


def asked(*replies: str) -> list[Case]:
    return [Case(chat.dump_messages((Message("user", "Hi"),)), reply) for reply in replies]


def test_a_model_without_padding_token_scores_as_it_does_alone(classifier: Path) -> None:
    dialogues = [(Message("user", "Hi"), Message("assistant", "yes" * count)) for count in range(1, 6)]
    together = RewardScorer(str(classifier), batch_tokens=10_000, device="cpu").score(dialogues)
    alone = RewardScorer(str(classifier), batch_tokens=1, device="cpu").score(dialogues)
    assert together == pytest.approx(alone, abs=1e-5)
    assert len(set(together)) == 5


def test_a_reply_too_long_to_be_scored_earns_the_least(classifier: Path, tmp_path: Path) -> None:
    judge = RewardJudge(ResolvedRewardModel(path=str(classifier)), local_scorer)
    replies = asked("a", "x" * 100, "bcd", "efghi")
    long, *scored = (judged := judge.judge(replies))[1], judged[0], judged[2], judged[3]
    assert long.judge_failed
    assert long.reward == min(one.reward for one in scored)
    Scale(0.5, 2.0, lowest=-9.5).save(tmp_path, {})
    assert read_scale(str(tmp_path)) == Scale(0.5, 2.0, lowest=-9.5)
    for file in classifier.iterdir():
        (tmp_path / file.name).symlink_to(file)
    measured = RewardJudge(ResolvedRewardModel(path=str(tmp_path)), local_scorer).judge(replies)
    assert measured[1].reward == (-9.5 - 0.5) / 2.0


def recipe(classifier: Path, folder: Path, tokens: int) -> Config:
    """Task dialogue on one long dialogue and some short ones."""
    rows = [f"\n\nHuman: {said}\n\nAssistant: yes" for said in ("x" * 100, *"abcdef")]
    (folder / "rows.jsonl").write_text("".join(json.dumps({"prompt": row}) + "\n" for row in rows))
    return Config.model_validate(
        {
            "task": {"name": "dialogue", "path": str(folder / "rows.jsonl"), "eval_problems": 1},
            "reward_model": {"path": str(classifier)},
            "rollout": {"max_prompt_tokens": tokens - 10, "max_response_tokens": 10},
        }
    )


def test_a_context_that_holds_no_longest_dialogue_is_refused(classifier: Path, tmp_path: Path) -> None:
    check_judging_model(recipe(classifier, tmp_path, CONTEXT))
    with pytest.raises(ModelError, match=r"context is 64 .* = 65"):
        check_judging_model(recipe(classifier, tmp_path, CONTEXT + 1))
    check_judging_model(Config())  # a task with a verifier needs none


def test_a_long_dialogue_among_the_first_does_not_fail_the_check(classifier: Path, tmp_path: Path) -> None:
    config = recipe(classifier, tmp_path, CONTEXT)
    train, evaluation, *_ = task_items(config.task, 0)
    items = sorted([*train, *evaluation], key=lambda item: -len(item.prompt))
    assert check_judge(config.task, items, located(config)) == "canonical solutions: 7"


def test_a_chat_template_with_a_date_scores_the_same_on_every_day_of_a_run(classifier: Path, tmp_path: Path) -> None:
    """As Llama 3.2's and Granite's."""
    shutil.copytree(classifier, tmp_path / "dated")
    tokenizer = AutoTokenizer.from_pretrained(classifier)
    tokenizer.chat_template = "{{ strftime_now('%d%m%Y') }}{% for m in messages %} {{ m.content }}{% endfor %}"
    tokenizer.save_pretrained(tmp_path / "dated")
    config = recipe(tmp_path / "dated", tmp_path, CONTEXT)

    def _scores(day: str) -> list[Verdict]:
        dated = override(config, ["--model.template_date", day])
        return RewardJudge(located(dated), local_scorer).judge(asked("yes", "no"))

    assert _scores("2024-07-26") == _scores("2024-07-26") != _scores("2024-07-27")
