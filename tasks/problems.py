"""From rows of text to problems of tokens: columns, prompt template, length filter, held-out split.

Called by `tasks/kinds.py` and `tasks/task.py` (and by `tasks/starter.py`, which needs only the texts). Invariants: a problem's
id depends only on its prompt text; no prompt text is both in training and in evaluation; what is left out is counted.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from core.config import Columns, TaskConfig
from core.errors import ConfigError, DataError
from core.records import IntArray, Problem
from tasks.dialogue.chat import Message, Messages, prompt_ids
from tasks.sources import Row, load_rows, require_columns

Tokenizer = Any
"""A `transformers` fast tokenizer (this module does not import transformers)."""


@dataclass(frozen=True, slots=True)
class Item:
    """A problem as text, before any tokenizer."""

    prompt: str
    reference: str  # what the verifier needs
    level: str = ""
    solution: str | None = None  # canonical solution, as a model should answer
    messages: Messages = ()  # a prompt of several turns; if given, used instead of template and `prompt`
    where: str = field(default="", compare=False)  # file and row, for errors


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Counts of prompts left out, and of canonical solutions that are too long for a response."""

    duplicates: int  # rows whose prompt text occurs in an earlier row
    long_prompts: int
    long_solutions: int

    def __str__(self) -> str:
        return (
            f"{self.duplicates} duplicate prompts and {self.long_prompts} prompts over rollout.max_prompt_tokens left out; "
            f"{self.long_solutions} canonical solutions over rollout.max_response_tokens not used"
        )


@dataclass(frozen=True, slots=True)
class Split:
    """The problems of a task."""

    train: list[Problem]
    evaluation: list[Problem]
    left_out: LeftOut


Read = Callable[[Row, Columns, str], Item]
"""From a row to an item; the last argument names the row in errors ('train.jsonl: row 3')."""


def prompt_digest(text: str) -> str:
    """16 hex digits that identify a prompt text. Case and white space are ignored: a held-out question must not be trained on
    in another layout either.

    >>> prompt_digest("How many?") == prompt_digest("how  many?\\n")
    True
    """
    return hashlib.blake2b(
        " ".join(text.casefold().split()).encode("utf-8", "surrogatepass"), digest_size=8
    ).hexdigest()


def text_of(row: Row, column: str, field: str, where: str) -> str:
    """The stripped text in a column. Raises DataError when it is empty or not text."""
    value = row[column]
    if isinstance(value, float) and not math.isfinite(value):  # a Parquet file's missing number
        raise DataError(f"{where}: column {column!r} (task.columns.{field}) is {value}; fix or delete the row")
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value.strip():
        found = "empty" if value is None or isinstance(value, str) else f"{type(value).__name__}, not text"
        raise DataError(f"{where}: column {column!r} (task.columns.{field}) is {found}; fix or delete the row")
    return value.strip()


def solution_of(row: Row, columns: Columns, where: str) -> str | None:
    """The canonical solution of a row; None if no column is configured for it. Raises DataError as `text_of`."""
    return None if columns.solution is None else text_of(row, columns.solution, "solution", where)


def level_of(row: Row, columns: Columns) -> str:
    """The difficulty of a row; empty if no column is configured for it."""
    return "" if columns.level is None else str(row[columns.level])


def load_items(config: TaskConfig, read: Read, path: str, split: str, *, answers: bool = True) -> list[Item]:
    """Items of the data set at `path`; `answers`: whether gold answers are required. Raises DataError, also for bad rows."""
    rows = load_rows(path, split)
    columns = config.columns
    wanted = columns.model_dump()
    if columns.tests is not None or not answers:
        del wanted["answer"]
    named = [(f"task.columns.{field}", name) for field, name in wanted.items() if name is not None]
    require_columns(rows, named, path)
    places = [f"{path}: row {number}" for number in range(1, len(rows) + 1)]
    return [replace(read(row, columns, place), where=place) for row, place in zip(rows, places, strict=True)]


def split_items(
    config: TaskConfig, items: list[Item], evaluation: list[Item] | None
) -> tuple[list[Item], list[Item], int]:
    """Training items, evaluation items (disjoint by prompt text) and the number of duplicates dropped.

    Without evaluation data the `eval_problems` prompts with the smallest hashes are held out: the same ones in every run, for any
    seed and order of rows. With evaluation data, none of it is trained on, and its first `eval_problems` items are evaluated.
    `problems` bounds the training items. Raises DataError when no training item is left.
    """
    unique = {prompt_digest(item.prompt): item for item in reversed(items)}
    kept_out: dict[str, Item]
    if evaluation is None:
        if config.eval_problems >= len(unique):
            raise DataError(
                f"{config.path}: task.eval_problems = {config.eval_problems} of {len(unique)} distinct prompts leave none to train "
                f"on; lower it or set task.eval_path"
            )
        kept_out = {key: unique[key] for key in sorted(unique)[: config.eval_problems]}
    else:
        kept_out = {prompt_digest(item.prompt): item for item in evaluation}
    train = [item for key, item in reversed(unique.items()) if key not in kept_out]
    if not train:
        raise DataError(f"{config.path}: every prompt is also an evaluation prompt; give task.eval_path other data")
    return train[: config.problems], list(kept_out.values())[: config.eval_problems], len(items) - len(unique)


def render_item(template: str, tokenizer: Tokenizer, item: Item) -> list[int]:
    """Token ids of a prompt: apply the template, then the tokenizer's chat template if any. Raises DataError as `prompt_ids`."""
    text = template.replace("{prompt}", item.prompt)
    if item.messages or getattr(tokenizer, "chat_template", None):
        return prompt_ids(tokenizer, item.messages or (Message("user", text),), item.where or "a prompt")
    return list(tokenizer(text)["input_ids"])


def respond(tokenizer: Tokenizer, solution: str) -> list[int]:
    """Token ids of a canonical solution as a response: the text and the end-of-sequence token."""
    return [*tokenizer(solution, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]


def check_template(template: str) -> None:
    """Raises ConfigError when the template has no place for the question."""
    if "{prompt}" not in template:
        raise ConfigError(f"task.template = {template!r} has no {{prompt}}; write where the question goes")


def encode_problems(
    config: TaskConfig,
    tokenizer: Tokenizer,
    items: tuple[list[Item], list[Item], int],
    *,
    max_prompt_tokens: int,
    max_response_tokens: int,
) -> Split:
    """Tokenize. Leave out prompts that are too long; drop only the solution where that is too long. DataError if none fits.

    `items`: training items, evaluation items, and the number of duplicates, as `split_items` returns them.
    """
    train, evaluation, duplicates = items
    check_template(config.template)
    counts = {"prompt": 0, "solution": 0}

    def _problems(items: Iterable[Item]) -> list[Problem]:
        found = []
        for item in items:
            prompt = render_item(config.template, tokenizer, item)
            if not 0 < len(prompt) <= max_prompt_tokens:
                counts["prompt"] += 1
                continue
            ids = respond(tokenizer, item.solution) if item.solution is not None else None
            if ids is not None and len(ids) > max_response_tokens:
                counts["solution"] += 1
                ids = None
            solution = None if ids is None else _tokens(ids)
            name = f"{config.name}-{prompt_digest(item.prompt)}"
            found.append(Problem(name, _tokens(prompt), item.reference, item.level, solution))
        return found

    split = _problems(train), _problems(evaluation)
    for kind, kept, given in zip(("training", "evaluation"), split, (train, evaluation), strict=True):
        if not kept:
            raise DataError(
                f"task {config.name}: all {len(given)} {kind} prompts are longer than rollout.max_prompt_tokens = "
                f"{max_prompt_tokens}; raise it"
            )
    return Split(split[0], split[1], LeftOut(duplicates, counts["prompt"], counts["solution"]))


def _tokens(ids: Sequence[int]) -> IntArray:
    return np.asarray(ids, dtype=np.int32)
