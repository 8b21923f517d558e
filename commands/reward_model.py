"""`launch.py reward-model`: trains a reward model on preference pairs (Bradley and Terry, 1952).

It starts from `model.path` with a new head and writes RUN/policy: a classifier, its tokenizer and `reward.json` (mean
and deviation of held-out scores). Invariant: pairs of one prompt are held out together, and evaluation prompts of the
task are never trained on.
"""

from argparse import Namespace
from collections import defaultdict
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from commands.options import configuration
from commands.supervised import Batches, Numbers, Outputs, SupervisedJob, begin_supervised, resume_supervised
from commands.supervised_rows import hold_out, read_dialogues, supervised_model
from core.config import Config, RewardModelConfig
from core.errors import DataError
from core.records import FloatArray
from core.seeds import derive
from learner.packing.examples import Pair, pair_batches
from tasks.dialogue import chat
from tasks.dialogue.chat import Messages
from tasks.dialogue.reward_model import Scale
from tasks.kinds import asked_prompts, evaluation_prompts
from tasks.pass_at_k import Estimate, share
from tasks.problems import prompt_digest
from trainer.model.files import load_tokenizer

Reals = npt.NDArray[np.float64]


def pair_scores(batches: Batches, outputs: Outputs) -> Reals:
    """[N, 2] scores of the chosen and the rejected dialogues, in no particular order."""
    found: list[FloatArray] = []
    for own, measured in zip(batches, outputs, strict=True):
        for batch, scores in zip(own, measured, strict=True):
            found.append(scores.reshape(2, -1).T[batch.weights > 0])  # filler rows have weight 0
    return np.concatenate(found, dtype=np.float64)


def measure_pairs(batches: Batches, outputs: Outputs) -> Numbers:
    """Accuracy with its interval, loss and mean margin on the held-out pairs."""
    margins = np.diff(pair_scores(batches, outputs)[:, ::-1], axis=1)[:, 0]
    right = accuracy(margins)
    return {
        "held_out_accuracy": right.mean,
        "held_out_accuracy_low": right.low,
        "held_out_accuracy_high": right.high,
        "held_out_loss": float(np.mean(np.logaddexp(0.0, -margins))),
        "held_out_margin": float(margins.mean()),
        "held_out_pairs": len(margins),
    }


def describe_accuracy(numbers: Numbers) -> str:
    """The accuracy on held-out pairs as text; empty if it was not measured."""
    if "held_out_accuracy" not in numbers:
        return ""
    mean, low, high = (100 * numbers[f"held_out_accuracy{end}"] for end in ("", "_low", "_high"))
    pairs, loss = numbers["held_out_pairs"], numbers["held_out_loss"]
    return f"accuracy {mean:.1f} % (95 % interval {low:.1f} to {high:.1f}) on {pairs} pairs, loss {loss:.4f}"


def save_scale(batches: Batches, outputs: Outputs, directory: Path) -> None:
    """Write the mean and deviation of the held-out scores, which normalise rewards."""
    scores = pair_scores(batches, outputs)
    right = accuracy(scores[:, 0] - scores[:, 1])
    known = {"mean": right.mean, "low": right.low, "high": right.high, "pairs": right.problems}
    scale = Scale(float(scores.mean()), max(float(scores.std()), 1e-6), lowest=float(scores.min()))
    scale.save(directory, known)


def accuracy(margins: Reals) -> Estimate:
    """Share of pairs whose chosen dialogue has the higher score; equal scores count half."""
    right = (margins > 0) + 0.5 * (margins == 0)
    return share(right.tolist())


def train_reward_model(options: Namespace) -> int:
    """`launch.py reward-model`: start a new run, or with --resume continue an earlier one from its last checkpoint."""
    if options.resume is not None:
        return resume_supervised(Path(options.resume), options.fields, reward_job)
    return begin_supervised(configuration(options), reward_job, "reward-model")


def reward_job(config: Config) -> SupervisedJob:
    """The model and the pairs. Raises ModelError, DataError, ConfigError."""
    settings = config.reward_model
    if not settings.pairs:
        raise DataError("reward_model.pairs is empty: name a file or data set of preference pairs")
    model, config = supervised_model(config, "reward_model", dialogues=2)
    train, held_out = load_pairs(config, model)
    print(f"{len(train)} pairs to learn, {len(held_out)} held out")
    batches = partial(pair_batches, budget=config.learner.micro_batch_tokens or 0, ranks=config.learner.ranks)
    return SupervisedJob(
        model, config, settings, train, held_out, batches, measure_pairs, describe_accuracy, save_scale
    )


def preferences(settings: RewardModelConfig) -> tuple[list[list[tuple[str, Messages]]], list[str]]:
    """Usable rows' chosen and rejected dialogues with their places; lines about the others. Raises DataError."""
    columns = {"reward_model.chosen": settings.chosen, "reward_model.rejected": settings.rejected}
    rows = read_dialogues(settings.pairs, settings.split, columns)
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
    if chosen[:-1] != rejected[:-1]:
        return "the two sides differ before the last turn, so they answer different prompts"
    return ""


def load_pairs(config: Config, model: str) -> tuple[list[Pair], list[Pair]]:
    """Training and held-out pairs. Raises DataError."""
    settings, tokenizer = config.reward_model, load_tokenizer(model)
    rows, wrong = preferences(settings)
    print(*(f"{settings.pairs}: {line}" for line in wrong), sep="\n", end="\n" * bool(wrong))
    unseen = evaluation_prompts(config.task, derive(config.run.seed, "task"))
    evaluated = set()
    by_prompt: dict[str, list[Pair]] = {}
    for row in rows:
        pair = Pair(
            *(np.array(chat.encode_dialogue(tokenizer, messages, where).ids, np.int32) for where, messages in row)
        )
        asked = [prompt_digest(chat.dialogue_text(messages[:-1])) for _, messages in row]
        if any(not unseen.isdisjoint(asked_prompts(messages)) for _, messages in row):
            evaluated.update(asked)
        if pair.width <= settings.max_tokens and not np.array_equal(pair.chosen, pair.rejected):
            by_prompt.setdefault(asked[-1], []).append(pair)
    kept = sum(map(len, by_prompt.values()))
    left_out = f"{len(rows) - kept} of {len(rows)} pairs left out: over reward_model.max_tokens, or equal sides"
    return hold_out(config, "reward_model", settings.pairs, by_prompt, evaluated, left_out)
