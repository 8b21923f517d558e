"""`launch.py reward-model`: trains a reward model on preference pairs (Bradley and Terry, 1952).

It starts from `model.path` with a new head and writes RUN/policy: a classifier, its tokenizer and `reward.json` (mean
and deviation of held-out scores). Invariant: pairs of one prompt are held out together, and evaluation prompts of the
task are never trained on.
"""

from argparse import Namespace
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from commands.supervised import Row, Rows, hold_out, read_dialogues, supervise
from core.config import Config, Device, RewardModelConfig
from core.errors import DataError
from core.seeds import derive
from tasks.dialogue import chat
from tasks.dialogue.chat import Messages
from tasks.dialogue.reward_model import RewardScorer, Scale
from tasks.kinds import asked_prompts, evaluation_prompts
from tasks.pass_at_k import share
from tasks.problems import prompt_digest
from trainer.model.files import load_tokenizer


def train_reward_model(options: Namespace) -> int:
    """`launch.py reward-model`: start a new run, or with --resume continue an earlier one from its last checkpoint."""
    return supervise(options, "reward_model", pair_rows, measure_scale)


def measure_scale(folder: Path, held_out: Sequence[Row], device: Device) -> None:
    """Score the held-out pairs with the saved model. Write the mean and deviation, which normalise rewards, and print
    the share of pairs whose chosen dialogue has the higher score (equal scores count half)."""
    scorer = RewardScorer(str(folder), device=device)
    scores = np.array(
        [scorer.score_tokens([row[side] for row in held_out]) for side in ("chosen_ids", "rejected_ids")], np.float64
    )
    margins = scores[0] - scores[1]
    right = share(((margins > 0) + 0.5 * (margins == 0)).tolist())
    known = {"mean": right.mean, "low": right.low, "high": right.high, "pairs": right.problems}
    scale = Scale(float(scores.mean()), max(float(scores.std()), 1e-6), lowest=float(scores.min()))
    scale.save(folder, known)
    mean, low, high = (100 * value for value in (right.mean, right.low, right.high))
    print(f"held out: accuracy {mean:.1f} % (95 % interval {low:.1f} to {high:.1f}) on {right.problems} pairs")


def preferences(settings: RewardModelConfig) -> tuple[list[list[tuple[str, Messages]]], list[str]]:
    """Usable rows' chosen and rejected dialogues with their places; lines about the others. Raises DataError."""
    rows = read_dialogues(settings.pairs, settings.split, "reward_model.pairs", "chosen", "rejected")
    usable, wrong = [], defaultdict(list)
    for row in rows:
        for where, messages in row:
            if messages[-1].role != "assistant":
                raise DataError(f"{where} does not end with the assistant's turn; correct or delete the row")
        why = pair_problem(*(messages for _, messages in row))
        if why:
            wrong[why].append(row[0][0])
        else:
            usable.append(row)
    told = [f"{len(places)} pairs left out: {why}; the first is {places[0]}" for why, places in wrong.items()]
    if not usable:
        raise DataError(f"{settings.pairs}: no pair can be trained on: {'; '.join(told)}")
    return usable, told


def pair_problem(chosen: Messages, rejected: Messages) -> str:
    """Why a pair says nothing about preferences; empty for a pair that does."""
    if any(first.role == second.role for side in (chosen, rejected) for first, second in pairwise(side)):
        return "two turns in a row have one role"  # one was lost, or a text was cut at the wrong place
    if all(message.role != "user" for message in chosen):
        return "no message of the user before the answer; put the prompt before both sides"  # TRL's explicit prompts
    if chosen[:-1] != rejected[:-1]:
        return "the two sides differ before the last turn, so they answer different prompts"
    return ""


def pair_rows(config: Config, model: str, most: int) -> Rows:
    """Training and held-out pairs with sides of at most `most` tokens. Raises DataError."""
    settings = config.reward_model
    if not settings.pairs:
        raise DataError("reward_model.pairs is empty: name a file or data set of preference pairs")
    tokenizer = load_tokenizer(model, config.model.template_date)
    rows, wrong = preferences(settings)
    print(*(f"{settings.pairs}: {line}" for line in wrong), sep="\n", end="\n" * bool(wrong))
    unseen = evaluation_prompts(config.task, derive(config.run.seed, "task"))
    evaluated = set()
    by_prompt: dict[str, list[Row]] = {}
    for row in rows:
        chosen, rejected = (chat.encode_dialogue(tokenizer, messages, where).ids for where, messages in row)
        asked = prompt_digest(chat.dialogue_text(row[0][1][:-1]))
        if any(not unseen.isdisjoint(asked_prompts(messages)) for _, messages in row):
            evaluated.add(asked)
        if max(len(chosen), len(rejected)) <= most and chosen != rejected:
            by_prompt.setdefault(asked, []).append({"chosen_ids": chosen, "rejected_ids": rejected})
    kept = sum(map(len, by_prompt.values()))
    print(f"{settings.pairs}: {len(rows) - kept} of {len(rows)} pairs left out: over {most} tokens, or equal sides")
    return hold_out(config, settings.pairs, by_prompt, evaluated)
