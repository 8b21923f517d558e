"""`launch.py reward-model`: a reward model from preference pairs (Bradley and Terry, 1952), with its accuracy on held-out pairs.

Called by `launch.py`. It starts from `model.path` with a new head of one label and writes RUN/policy: a sequence classifier, its
tokenizer and `reward.json` (mean and deviation of its scores on the held-out dialogues, by which rewards are normalised).
Invariant: pairs of one prompt are all learned or all held out; held out are the prompts with the smallest hashes. Evaluation prompts
of the task are not learned either, so that no policy is judged on prompts whose preferences were learned.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from commands.sft import check_budget, check_context, check_learned, checked_model
from core.config import Config, RewardModelConfig
from core.errors import DataError
from core.seeds import derive, generator
from tasks.dialogue.reward_model import Scale
from tasks.estimators import Estimate, bootstrap
from trainer import supervised
from trainer.model_files import load_tokenizer
from trainer.supervised import Numbers, Prepared

if TYPE_CHECKING:
    from learner.packing.examples import Pair, PairBatch
    from learner.supervised import Preference, SupervisedGroup
    from tasks.dialogue.chat import Messages


Reals = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RewardJob:
    """Pairs to learn and to measure on."""

    train: Sequence["Pair"]
    held_out: Sequence["Pair"]
    budget: int  # tokens of a pass
    ranks: int

    @property
    def rows(self) -> int:
        """Number of training pairs."""
        return len(self.train)

    def objective(self) -> "type[Preference]":
        """Bradley-Terry."""
        from learner.supervised import Preference

        return Preference

    def batches(self, rows: Sequence[int]) -> list[list["PairBatch"]]:
        """Micro-batches of a step."""
        from learner.packing.examples import pair_batches

        return pair_batches([self.train[row] for row in rows], self.budget, self.ranks)

    def scores(self, group: "SupervisedGroup") -> Reals:
        """[N, 2] scores of the chosen and the rejected held-out dialogues, in no particular order."""
        from learner.packing.examples import pair_batches

        batches = pair_batches(self.held_out, self.budget, self.ranks)
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

    def finish(self, group: "SupervisedGroup", directory: Path) -> None:
        """Write how scores are normalised."""
        scores = self.scores(group)
        right = accuracy(scores[:, 0] - scores[:, 1])
        known = {"mean": right.mean, "low": right.low, "high": right.high, "pairs": right.problems}
        scale = Scale(float(scores.mean()), max(float(scores.std()), 1e-6), lowest=float(scores.min()))
        scale.save(directory, known)


def accuracy(margins: Reals) -> Estimate:
    """Share of pairs whose chosen dialogue has the higher score; equal scores count half."""
    right = (margins > 0) + 0.5 * (margins == 0)
    return bootstrap(right.tolist(), rng=generator(0, "accuracy"))


def run(config: Config, recipe: str) -> int:
    """A new run."""
    return supervised.new_run(config, config.reward_model, prepare, recipe)


def resume(path: Path, options: Sequence[str]) -> int:
    """Go on with a run."""
    return supervised.resume(path, options, lambda config: config.reward_model, prepare)


def prepare(config: Config) -> Prepared:
    """The model and the pairs. Raises ModelError, DataError, ConfigError."""
    settings = config.reward_model
    check_budget(config, 2 * settings.max_tokens, "2 x reward_model.max_tokens")
    if not settings.pairs:
        raise DataError("reward_model.pairs is empty: name a file or data set of preference pairs")
    model, info = checked_model(config)
    check_context(info, settings.max_tokens, "reward_model.max_tokens")
    train, held_out = load_pairs(config, model)
    print(f"{len(train)} pairs to learn, {len(held_out)} held out")
    return Prepared(model, RewardJob(train, held_out, config.learner.micro_batch_tokens, config.learner.ranks))


def preferences(settings: RewardModelConfig) -> "list[list[tuple[str, Messages]]]":
    """The chosen and the rejected dialogue of each row of `reward_model.pairs`, with where they are, for errors. Raises DataError."""
    from tasks.dialogue import chat
    from tasks.sources import load_rows, require_columns

    rows = load_rows(settings.pairs, settings.split)
    columns = [("reward_model.chosen", settings.chosen), ("reward_model.rejected", settings.rejected)]
    require_columns(rows, columns, settings.pairs)
    found = []
    for number, row in enumerate(rows, 1):
        sides = []
        for field, column in columns:
            where = f"{settings.pairs}: row {number}: column {column!r} ({field})"
            messages = chat.parse(row[column], where)
            if messages[-1].role != "assistant":
                raise DataError(f"{where} does not end with the assistant's turn; mend or delete the row")
            sides.append((where, messages))
        found.append(sides)
    return found


def load_pairs(config: Config, model: str) -> tuple[list["Pair"], list["Pair"]]:
    """Training and held-out pairs. Raises DataError."""
    from learner.packing.examples import Pair
    from tasks.dialogue import chat
    from tasks.held_out import evaluation_prompts, prompts
    from tasks.problems import digest

    settings, tokenizer = config.reward_model, load_tokenizer(model)
    rows = preferences(settings)
    unseen, asked = evaluation_prompts(config.task, derive(config.run.seed, "task")), set()
    by_prompt: dict[str, list[Pair]] = {}
    for row in rows:
        sides = []
        for where, messages in row:
            sides.append(np.array(chat.encode(tokenizer, messages, where).ids, np.int32))
            prompt = digest(chat.plain(messages[:-1]))
            if not unseen.isdisjoint(prompts(messages)):
                asked.add(prompt)
        pair = Pair(*sides)
        if pair.width <= settings.max_tokens and not np.array_equal(pair.chosen, pair.rejected):
            by_prompt.setdefault(prompt, []).append(pair)
    kept = sum(map(len, by_prompt.values()))
    print(
        f"{settings.pairs}: {len(rows) - kept} of {len(rows)} pairs left out: over reward_model.max_tokens, or equal sides"
    )
    if kept <= settings.eval_rows:
        raise DataError(
            f"{settings.pairs}: {kept} pairs within reward_model.max_tokens = {settings.max_tokens}, of which reward_model.eval_rows "
            f"= {settings.eval_rows} are held out: none is left; lower one or raise the other"
        )
    ordered = [(key, pair) for key in sorted(by_prompt) for pair in by_prompt[key]]
    last = ordered[settings.eval_rows - 1][0]  # the other pairs of the last held-out prompt are held out, too
    held_out = [pair for key, pair in ordered if key <= last]
    learned = [pair for key, pair in ordered if key > last and key not in asked]
    check_learned(config, settings.pairs, kept - len(held_out), len(learned))
    return learned, held_out
