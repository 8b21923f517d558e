"""`launch.py sft`: fine-tuning on canonical solutions, or on dialogues (loss on the assistant's tokens). Invariant:
held-out rows (evaluation problems; dialogues with the smallest hashes) are never trained on."""

from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from commands.options import configuration
from commands.supervised import Batches, Numbers, Outputs, SupervisedJob, begin_supervised, resume_supervised
from commands.supervised_rows import hold_out, read_dialogues, supervised_model
from core.config import Config, SftConfig, task_title
from core.errors import DataError
from core.records import Problem
from core.seeds import derive
from learner.packing.examples import Text, text_batches
from tasks.dialogue import chat
from tasks.dialogue.chat import Messages
from tasks.kinds import asked_prompts, evaluation_prompts, task_items
from tasks.problems import encode_problems, prompt_digest
from trainer.model.files import inspect_model, load_tokenizer


def fine_tune(options: Namespace) -> int:
    """`launch.py sft`: start a new run, or with --resume continue an earlier one from its last checkpoint."""
    if options.resume is not None:
        return resume_supervised(Path(options.resume), options.fields, sft_job)
    return begin_supervised(configuration(options), sft_job, "sft")


def sft_job(config: Config) -> SupervisedJob:
    """The model and the rows. Raises ModelError, DataError, ConfigError."""
    model, config = supervised_model(config, "sft")
    train, held_out = from_messages(config, model) if config.sft.path else from_task(config, model)
    print(f"{len(train)} rows to learn, {len(held_out)} held out")
    batches = partial(text_batches, budget=config.learner.micro_batch_tokens or 0, ranks=config.learner.ranks)
    return SupervisedJob(model, config, config.sft, train, held_out, batches, held_out_loss, describe_loss)


def held_out_loss(batches: Batches, outputs: Outputs) -> Numbers:
    """Loss per learned token, in nats."""
    loss = 0.0
    for own, logprobs in zip(batches, outputs, strict=True):
        loss -= sum(float(np.dot(found, batch.weights)) for batch, found in zip(own, logprobs, strict=True))
    return {"held_out_loss": loss}


def describe_loss(numbers: Numbers) -> str:
    """The held-out loss as text; empty if it was not measured."""
    return f"loss {numbers['held_out_loss']:.4f} nats per token" if "held_out_loss" in numbers else ""


def from_task(config: Config, model: str) -> tuple[list[Text], list[Text]]:
    """Training and held-out solutions of the task; no judge is started. Raises DataError, ConfigError."""
    split, _ = encode_problems(
        config.task,
        load_tokenizer(model),
        task_items(config.task, derive(config.run.seed, "task")),
        (config.rollout.max_prompt_tokens, config.rollout.max_response_tokens),
        inspect_model(model).context,
    )
    print(f"task {task_title(config.task)}: {split.left_out}")
    return from_problems(split.train, config, "training"), from_problems(split.evaluation, config, "evaluation")


def from_problems(problems: Sequence[Problem], config: Config, kind: str) -> list[Text]:
    """Prompts with canonical solutions, which alone have loss; tells what is left out. Raises DataError if all are."""
    solved = [(problem.prompt_ids, problem.solution_ids) for problem in problems if problem.solution_ids is not None]
    found = [
        Text(np.concatenate(parts), np.arange(len(parts[0]), len(parts[0]) + len(parts[1]), dtype=np.int32))
        for parts in solved
        if len(parts[0]) + len(parts[1]) <= config.sft.max_tokens
    ]
    if not found:
        raise DataError(
            f"task {task_title(config.task)}: no canonical solution within sft.max_tokens = {config.sft.max_tokens} to "
            "learn from; set task.columns.solution, raise it, or give dialogues in sft.path"
        )
    if len(found) < len(problems):
        print(
            f"task {task_title(config.task)}: {len(problems) - len(found)} of {len(problems)} {kind} problems left "
            f"out: {len(solved) - len(found)} over sft.max_tokens, the others without a canonical solution within "
            "rollout.max_response_tokens"
        )
    return found


def dialogues(settings: SftConfig) -> list[tuple[str, Messages]]:
    """Each row of `sft.path`: its place in the file (for errors) and its dialogue. Raises DataError."""
    rows = [row[0] for row in read_dialogues(settings.path, settings.split, {"sft.column": settings.column})]
    for where, messages in rows:
        if not any(message.role == "assistant" and message.content.strip() for message in messages):
            raise DataError(f"{where}: the assistant says nothing; correct or delete the row")
    return rows


def from_messages(config: Config, model: str) -> tuple[list[Text], list[Text]]:
    """Training and held-out dialogues of `sft.path`. Raises DataError."""
    settings, tokenizer = config.sft, load_tokenizer(model)
    rows, unseen = dialogues(settings), evaluation_prompts(config.task, derive(config.run.seed, "task"))
    evaluated = set()
    texts: dict[str, list[Text]] = {}
    for where, messages in rows:
        tokens = chat.encode_dialogue(tokenizer, messages, where)
        if len(tokens.ids) <= settings.max_tokens:
            key = prompt_digest(chat.dump_messages(messages))
            texts[key] = [Text(np.array(tokens.ids, np.int32), np.array(tokens.learned, np.int32))]
            if not unseen.isdisjoint(asked_prompts(messages)):
                evaluated.add(key)
    left_out = f"{len(rows) - len(texts)} of {len(rows)} rows left out: over sft.max_tokens, or duplicates"
    return hold_out(config, "sft", settings.path, texts, evaluated, left_out)
