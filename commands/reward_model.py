"""`launch.py reward-model`: a reward model from preference pairs (Bradley and Terry, 1952), with its accuracy on held-out pairs.

Called by `launch.py`. It starts from `model.path` with a new head of one label and writes RUN/policy: a sequence classifier, its
tokenizer and `reward.json` (mean and deviation of its scores on the held-out dialogues, by which rewards are normalised).
Invariant: pairs of one prompt are all learned or all held out; held out are the prompts with the smallest hashes. Evaluation prompts
of the task are not learned either, so that no policy is judged on prompts whose preferences were learned.
"""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from commands.options import configuration
from commands.supervised_rows import hold_out, read_dialogues, supervised_model
from core.config import Config, RewardModelConfig
from core.errors import DataError
from core.seeds import derive, generator
from learner.packing.examples import Pair, PairBatch, pair_batches
from tasks.dialogue import chat
from tasks.dialogue.chat import Messages
from tasks.dialogue.reward_model import Scale
from tasks.estimators import Estimate, bootstrap
from tasks.held_out import evaluation_prompts, prompts
from tasks.problems import digest
from trainer.preflight import load_tokenizer
from trainer.supervised import Numbers, SupervisedJob, begin_supervised, resume_supervised

if TYPE_CHECKING:
    from learner.supervised import Preference, SupervisedGroup


Reals = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RewardJob(SupervisedJob):
    """Pairs to learn and to measure on."""

    train: Sequence[Pair]
    held_out: Sequence[Pair]

    def objective(self) -> "type[Preference]":
        """Bradley-Terry."""
        from learner.supervised import Preference

        return Preference

    def batches(self, rows: Sequence[Pair]) -> list[list[PairBatch]]:
        """[rank][micro-batch]."""
        return pair_batches(rows, self.budget, self.ranks)

    def scores(self, group: "SupervisedGroup") -> Reals:
        """[N, 2] scores of the chosen and the rejected held-out dialogues, in no particular order."""
        batches = self.batches(self.held_out)
        found = []
        for own, measured in zip(batches, group.measure(batches), strict=True):
            for batch, scores in zip(own, measured, strict=True):
                found.append(scores.reshape(2, -1).T[batch.weights > 0])  # a filler has no weight
        return np.concatenate(found).astype(np.float64)

    def measure(self, group: "SupervisedGroup") -> Numbers:
        """Accuracy with its interval, loss and mean margin on the held-out pairs."""
        margins = np.diff(self.scores(group)[:, ::-1], axis=1)[:, 0]
        right = accuracy(margins)
        loss = float(np.mean(np.logaddexp(0.0, -margins)))
        return {
            "held_out_accuracy": right.mean,
            "held_out_accuracy_low": right.low,
            "held_out_accuracy_high": right.high,
            "held_out_loss": loss,
            "held_out_margin": float(margins.mean()),
        }

    def describe(self, numbers: Numbers) -> str:
        """The accuracy, where it was measured."""
        if "held_out_accuracy" not in numbers:
            return ""
        low, high = numbers["held_out_accuracy_low"], numbers["held_out_accuracy_high"]
        return (
            f"accuracy {100 * numbers['held_out_accuracy']:.1f} % (95 % interval {100 * low:.1f} to {100 * high:.1f}) on "
            f"{len(self.held_out)} pairs, loss {numbers['held_out_loss']:.4f}"
        )

    def export(self, group: "SupervisedGroup", directory: Path) -> None:
        """Write the model and how its scores are normalised."""
        group.export(directory)
        scores = self.scores(group)
        right = accuracy(scores[:, 0] - scores[:, 1])
        known = {"mean": right.mean, "low": right.low, "high": right.high, "pairs": right.problems}
        scale = Scale(float(scores.mean()), max(float(scores.std()), 1e-6), lowest=float(scores.min()))
        scale.save(directory, known)


def accuracy(margins: Reals) -> Estimate:
    """Share of pairs whose chosen dialogue has the higher score; equal scores count half."""
    right = (margins > 0) + 0.5 * (margins == 0)
    return bootstrap(right.tolist(), rng=generator(0, "accuracy"))


def train_reward_model(options: Namespace) -> int:
    """`launch.py reward-model`: a new run, or with --resume an earlier one from its last checkpoint."""
    if options.resume is not None:
        return resume_supervised(options.resume, options.fields, reward_job)
    return begin_supervised(configuration(options), reward_job, "reward-model")


def reward_job(config: Config) -> RewardJob:
    """The model and the pairs. Raises ModelError, DataError, ConfigError."""
    settings, learner = config.reward_model, config.learner
    if not settings.pairs:
        raise DataError("reward_model.pairs is empty: name a file or data set of preference pairs")
    model = supervised_model(config, "reward_model", dialogues=2)
    train, held_out = load_pairs(config, model)
    print(f"{len(train)} pairs to learn, {len(held_out)} held out")
    return RewardJob(model, settings, train, held_out, learner.micro_batch_tokens, learner.ranks)


def preferences(settings: RewardModelConfig) -> list[list[tuple[str, Messages]]]:
    """The chosen and the rejected dialogue of each row of `reward_model.pairs`, with where they stand. Raises DataError."""
    columns = {"reward_model.chosen": settings.chosen, "reward_model.rejected": settings.rejected}
    rows = read_dialogues(settings.pairs, settings.split, columns)
    for row in rows:
        for where, messages in row:
            if messages[-1].role != "assistant":
                raise DataError(f"{where} does not end with the assistant's turn; correct or delete the row")
    return rows


def load_pairs(config: Config, model: str) -> tuple[list[Pair], list[Pair]]:
    """Training and held-out pairs. Raises DataError."""
    settings, tokenizer = config.reward_model, load_tokenizer(model)
    rows, unseen = preferences(settings), evaluation_prompts(config.task, derive(config.run.seed, "task"))
    evaluated = set()
    by_prompt: dict[str, list[Pair]] = {}
    for row in rows:
        pair = Pair(*(np.array(chat.encode(tokenizer, messages, where).ids, np.int32) for where, messages in row))
        asked = [digest(chat.plain(messages[:-1])) for _, messages in row]
        if any(not unseen.isdisjoint(prompts(messages)) for _, messages in row):
            evaluated.update(asked)
        if pair.width <= settings.max_tokens and not np.array_equal(pair.chosen, pair.rejected):
            by_prompt.setdefault(asked[-1], []).append(pair)
    kept = sum(map(len, by_prompt.values()))
    left_out = f"{len(rows) - kept} of {len(rows)} pairs left out: over reward_model.max_tokens, or equal sides"
    return hold_out(config, "reward_model", settings.pairs, by_prompt, evaluated, left_out)
