"""`launch.py sft`: supervised fine-tuning on a task's canonical solutions, or on dialogues (loss on the assistant's tokens).

Called by `launch.py`. The model that it writes (RUN/policy) is what `model.path` takes. Invariant: held-out rows are never learned:
the task's evaluation problems, and of the user's dialogues those with the smallest hashes, whatever the seed and the order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from core.config import Config, SftConfig
from core.errors import ConfigError, DataError
from core.records import Problem
from core.seeds import derive
from trainer import supervised
from trainer.model_files import ModelInfo, check_vocabulary, inspect_model, load_tokenizer
from trainer.supervised import Numbers, Prepared

if TYPE_CHECKING:
    from learner.packing.examples import Text, TokenBatch
    from learner.supervised import NextToken, SupervisedGroup
    from tasks.dialogue.chat import Messages


@dataclass(frozen=True, slots=True)
class SftJob:
    """Texts with the tokens to learn."""

    train: Sequence["Text"]
    held_out: Sequence["Text"]
    budget: int  # tokens of a pass
    ranks: int

    @property
    def rows(self) -> int:
        """Number of training texts."""
        return len(self.train)

    def objective(self) -> "type[NextToken]":
        """The next token."""
        from learner.supervised import NextToken

        return NextToken

    def batches(self, rows: Sequence[int]) -> list[list["TokenBatch"]]:
        """Micro-batches of a step."""
        from learner.packing.examples import text_batches

        return text_batches([self.train[row] for row in rows], self.budget, self.ranks)

    def measure(self, group: "SupervisedGroup") -> Numbers:
        """Loss per learned token of the held-out texts, in nats."""
        from learner.packing.examples import text_batches

        batches = text_batches(self.held_out, self.budget, self.ranks)
        loss = 0.0
        for own, found in zip(batches, group.measure(batches), strict=True):
            loss -= sum(float(np.dot(logprobs, batch.weights)) for batch, logprobs in zip(own, found, strict=True))
        return {"held_out_loss": loss}

    def describe(self, numbers: Numbers) -> str:
        """The loss, where it was measured."""
        return f"loss {numbers['held_out_loss']:.4f} nats per token" if "held_out_loss" in numbers else ""

    def finish(self, group: "SupervisedGroup", directory: Path) -> None:
        """Nothing more."""


def run(config: Config, recipe: str) -> int:
    """A new run."""
    return supervised.new_run(config, config.sft, prepare, recipe)


def resume(path: Path, options: Sequence[str]) -> int:
    """Go on with a run."""
    return supervised.resume(path, options, lambda config: config.sft, prepare)


def prepare(config: Config) -> Prepared:
    """The model and the rows. Raises ModelError, DataError, ConfigError."""
    check_budget(config, config.sft.max_tokens, "sft.max_tokens")
    model, info = checked_model(config)
    check_context(info, config.sft.max_tokens, "sft.max_tokens")
    train, held_out = from_messages(config, model) if config.sft.path else from_task(config, model)
    print(f"{len(train)} rows to learn, {len(held_out)} held out")
    return Prepared(model, SftJob(train, held_out, config.learner.micro_batch_tokens, config.learner.ranks))


def checked_model(config: Config) -> tuple[str, ModelInfo]:
    """model.path, found good without a task. Raises ModelError."""
    from tasks.starter import resolve_model

    model = resolve_model(config.model.path, config.starter, config.task, config.run.seed)
    info = inspect_model(model)
    check_vocabulary(model, info, load_tokenizer(model))
    return model, info


def check_budget(config: Config, tokens: int, field: str) -> None:
    """Raises ConfigError when one row does not fit a pass, or adapters are asked for."""
    if config.learner.lora_rank:
        raise ConfigError(
            f"learner.lora_rank = {config.learner.lora_rank}: supervised training trains all weights; set it to 0 for this command"
        )
    if config.learner.micro_batch_tokens < tokens:
        raise ConfigError(
            f"learner.micro_batch_tokens = {config.learner.micro_batch_tokens} holds no row of {field} = {tokens} tokens; raise "
            f"it to at least {tokens}"
        )


def check_context(info: ModelInfo, tokens: int, field: str) -> None:
    """Raises ConfigError when a row does not fit the model."""
    if tokens > info.context:
        raise ConfigError(f"{field} = {tokens}, but the model's context is {info.context} tokens; lower it")


def from_task(config: Config, model: str) -> tuple[list["Text"], list["Text"]]:
    """Training and held-out solutions of the task; nothing that judges is needed. Raises DataError, ConfigError."""
    from tasks.problems import encode
    from tasks.task import task_items

    train, evaluation, duplicates = task_items(config.task, derive(config.run.seed, "task"))
    split = encode(
        config.task,
        load_tokenizer(model),
        train,
        evaluation,
        duplicates=duplicates,
        max_prompt_tokens=config.rollout.max_prompt_tokens,
        max_response_tokens=config.rollout.max_response_tokens,
    )
    print(f"task {config.task.name}: {split.left_out}")
    return from_problems(split.train, config, "training"), from_problems(split.evaluation, config, "evaluation")


def from_problems(problems: Sequence[Problem], config: Config, kind: str) -> list["Text"]:
    """Prompt and canonical solution; the solution is learned. Says how many of the `kind` problems are left out.

    Raises DataError when no problem has a solution that fits.
    """
    from learner.packing.examples import Text

    found, long = [], 0
    for problem in problems:
        if problem.solution_ids is not None:
            tokens = np.concatenate([problem.prompt_ids, problem.solution_ids])
            if len(tokens) <= config.sft.max_tokens:
                found.append(Text(tokens, np.arange(len(problem.prompt_ids), len(tokens), dtype=np.int32)))
            else:
                long += 1
    if not found:
        raise DataError(
            f"task {config.task.name}: no canonical solution within sft.max_tokens = {config.sft.max_tokens} to learn from; set "
            f"task.columns.solution, raise it, or give dialogues in sft.path"
        )
    if len(found) < len(problems):
        print(
            f"task {config.task.name}: {len(problems) - len(found)} of {len(problems)} {kind} problems left out: {long} over "
            f"sft.max_tokens, the others without a canonical solution within rollout.max_response_tokens"
        )
    return found


def dialogues(settings: SftConfig) -> "list[tuple[str, Messages]]":
    """Where each row of `sft.path` is, for errors, and its dialogue. Raises DataError."""
    from tasks.dialogue import chat
    from tasks.sources import load_rows, require_columns

    rows = load_rows(settings.path, settings.split)
    require_columns(rows, [("sft.column", settings.column)], settings.path)
    found = []
    for number, row in enumerate(rows, 1):
        where = f"{settings.path}: row {number}: column {settings.column!r}"
        messages = chat.parse(row[settings.column], where)
        if not any(message.role == "assistant" and message.content.strip() for message in messages):
            raise DataError(f"{where}: the assistant says nothing; mend or delete the row")
        found.append((where, messages))
    return found


def from_messages(config: Config, model: str) -> tuple[list["Text"], list["Text"]]:
    """Training and held-out dialogues of `sft.path`. Raises DataError."""
    from learner.packing.examples import Text
    from tasks.dialogue import chat
    from tasks.held_out import evaluation_prompts, prompts
    from tasks.problems import digest

    settings, tokenizer = config.sft, load_tokenizer(model)
    rows = dialogues(settings)
    unseen, asked = evaluation_prompts(config.task, derive(config.run.seed, "task")), set()
    texts: dict[str, Text] = {}
    for where, messages in rows:
        tokens = chat.encode(tokenizer, messages, where)
        if len(tokens.ids) <= settings.max_tokens:
            arrays = np.array(tokens.ids, np.int32), np.array(tokens.learned, np.int32)
            key = digest(chat.dump(messages))
            texts[key] = Text(*arrays)
            if not unseen.isdisjoint(prompts(messages)):
                asked.add(key)
    print(f"{settings.path}: {len(rows) - len(texts)} of {len(rows)} rows left out: over sft.max_tokens, or duplicates")
    if len(texts) <= settings.eval_rows:
        raise DataError(
            f"{settings.path}: {len(texts)} rows within sft.max_tokens = {settings.max_tokens}, of which sft.eval_rows = "
            f"{settings.eval_rows} are held out: none is left; lower sft.eval_rows or raise sft.max_tokens"
        )
    keys = sorted(texts)
    learned = [key for key in keys[settings.eval_rows :] if key not in asked]
    check_learned(config, settings.path, len(keys) - settings.eval_rows, len(learned))
    return [texts[key] for key in learned], [texts[key] for key in keys[: settings.eval_rows]]


def check_learned(config: Config, path: str, rows: int, learned: int) -> None:
    """Say how many rows are not learned because the task is evaluated on them. Raises DataError when no other is left."""
    if not learned:
        raise DataError(
            f"{path}: every row that is not held out is an evaluation problem of task {config.task.name}; lower "
            f"task.eval_problems or give other rows"
        )
    if learned < rows:
        print(f"{path}: {rows - learned} rows not learned: they are evaluation problems of task {config.task.name}")
