"""What `sft` and `reward-model` share. Invariant: held-out rows and evaluation prompts are never trained on."""

from collections.abc import Mapping, Sequence, Set
from typing import Literal, TypeVar

from core.config import Config, SupervisedConfig, task_title
from core.errors import ConfigError, DataError
from core.machine import this_machine
from tasks.dialogue import chat
from tasks.dialogue.chat import Messages
from tasks.sources import load_rows, missing_column
from tasks.starter import resolve_model
from trainer.model.automatic import expected_device, resolved_learner
from trainer.model.files import check_vocabulary, inspect_model, load_tokenizer
from trainer.model.gguf import model_folder

RowType = TypeVar("RowType")
SectionName = Literal["sft", "reward_model"]


def supervised_model(config: Config, section: SectionName, dialogues: int = 1) -> tuple[str, Config]:
    """Check model.path: its directory or hub name, and the configuration without `auto`. Each row has `dialogues`
    dialogues of at most `max_tokens` tokens. Raises ModelError, ConfigError."""
    learner, tokens = config.learner, getattr(config, section).max_tokens
    if learner.lora_rank:
        raise ConfigError(
            f"learner.lora_rank = {learner.lora_rank}: supervised training trains all weights; set it to 0 for this "
            "command"
        )
    if learner.micro_batch_tokens is not None and learner.micro_batch_tokens < dialogues * tokens:
        raise ConfigError(
            f"learner.micro_batch_tokens = {learner.micro_batch_tokens} cannot fit a row of "
            f"{'two times ' * (dialogues - 1)}{section}.max_tokens "
            f"= {tokens}; raise it to at least {dialogues * tokens}"
        )
    path = model_folder(config.model.path, "model.path")
    model = resolve_model(path, config.starter, config.task, config.run.seed)
    info = inspect_model(model)
    check_vocabulary(model, info, load_tokenizer(model))
    if tokens > info.context:
        raise ConfigError(
            f"{section}.max_tokens = {tokens}, but the model's context is {info.context} tokens; lower it"
        )
    machine = this_machine()
    config, notes = resolved_learner(config, info, dialogues * tokens, machine, expected_device(config.cluster))
    print(*(note.text for note in notes if note.audience != "reinforcement"), sep="\n")
    return model, config


def read_dialogues(path: str, split: str, columns: Mapping[str, str]) -> list[list[tuple[str, Messages]]]:
    """The dialogues of each row, one per column, with its place in the file. `columns`: by field. Raises DataError."""
    found = []
    for number, row in enumerate(load_rows(path, split), 1):
        if missing := missing_column(row, columns.items(), f"{path}: row {number}"):
            raise DataError(missing)
        places = [(column, f"{path}: row {number}: column {column!r} ({field})") for field, column in columns.items()]
        found.append([(where, chat.read_messages(row[column], where)) for column, where in places])
    return found


def hold_out(
    config: Config,
    section: SectionName,
    path: str,
    rows: Mapping[str, Sequence[RowType]],
    evaluated: Set[str],
    left_out: str,
) -> tuple[list[RowType], list[RowType]]:
    """Training rows and held-out ones, those with the smallest keys, for any seed and order. `rows` of one key (a hash)
    stay together; keys in `evaluated` are not trained on. Raises DataError when no training row is left."""
    settings: SupervisedConfig = getattr(config, section)
    ordered = [(key, row) for key in sorted(rows) for row in rows[key]]
    print(f"{path}: {left_out}")
    if len(ordered) <= settings.eval_rows:
        raise DataError(
            f"{path}: {len(ordered)} rows within {section}.max_tokens = {settings.max_tokens}, of which "
            f"{section}.eval_rows = "
            f"{settings.eval_rows} are held out: none is left; lower {section}.eval_rows or raise {section}.max_tokens"
        )
    last = ordered[settings.eval_rows - 1][0]  # the other rows of the last held-out key are held out too
    held_out = [row for key, row in ordered if key <= last]
    learned = [row for key, row in ordered if key > last and key not in evaluated]
    skipped = len(ordered) - len(held_out) - len(learned)
    if not learned:
        raise DataError(
            f"{path}: every row that is not held out is an evaluation problem of task {task_title(config.task)}; lower "
            f"task.eval_problems or give other rows"
        )
    if skipped:
        print(f"{path}: {skipped} rows not learned: they are evaluation problems of task {task_title(config.task)}")
    return learned, held_out
