"""From rows of text to problems of tokens: columns, prompt template, length filter, held-out split.

Called by `tasks/kinds.py` and `tasks/task.py` (and by `tasks/starter.py` for the texts alone). Invariants: a problem's id
depends on its prompt text alone; no prompt text is both in training and in evaluation; what is left out is counted.
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
    messages: Messages = ()  # a prompt of several turns, in place of a template around `prompt`
    where: str = field(default="", compare=False)  # file and row, for errors


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What did not become a training or evaluation problem, and canonical solutions that do not fit a response."""

    duplicates: int  # rows whose prompt text was there before
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
"""Makes an item of a row; the last argument names the row in errors ('train.jsonl: row 3')."""


def prompt_digest(text: str) -> str:
    """16 hex digits that identify a prompt text, whatever its case and white space: the same question in another layout is the
    same problem, and must not be trained on when it is held out.

    >>> prompt_digest("How many?") == prompt_digest("how  many?\\n")
    True
    """
    return hashlib.blake2b(
        " ".join(text.casefold().split()).encode("utf-8", "surrogatepass"), digest_size=8
    ).hexdigest()


def text_of(row: Row, column: str, field: str, where: str) -> str:
    """The text in a column, stripped. Raises DataError when it is empty or no text."""
    value = row[column]
    if isinstance(value, float) and not math.isfinite(value):  # a Parquet file's missing number
        raise DataError(f"{where}: column {column!r} (task.columns.{field}) is {value}; mend or delete the row")
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value.strip():
        found = "empty" if value is None or isinstance(value, str) else f"{type(value).__name__}, not text"
        raise DataError(f"{where}: column {column!r} (task.columns.{field}) is {found}; mend or delete the row")
    return value.strip()


def solution_of(row: Row, columns: Columns, where: str) -> str | None:
    """The canonical solution of a row, None where there is no column of them. Raises DataError as `text_of`."""
    return None if columns.solution is None else text_of(row, columns.solution, "solution", where)


def level_of(row: Row, columns: Columns) -> str:
    """The difficulty of a row, empty where there is no column of levels."""
    return "" if columns.level is None else str(row[columns.level])


def load_items(config: TaskConfig, read: Read, path: str, split: str, *, answers: bool = True) -> list[Item]:
    """Items of the data set at `path`; `answers`: whether it must have gold answers. Raises DataError as `load_rows`, and for missing columns and bad rows."""
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

    Without evaluation data the `eval_problems` prompts with the smallest hashes are held out, whatever the seed and the
    order of the rows: the same problems in every run. With them, all of it is kept out of training, and the first `eval_problems` are
    evaluated. `problems` bounds the training items. Raises DataError.
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
    """Token ids of a prompt: template, then the tokenizer's chat template when it has one. Raises DataError as `prompt_ids`."""
    text = template.replace("{prompt}", item.prompt)
    if item.messages or getattr(tokenizer, "chat_template", None):
        return prompt_ids(tokenizer, item.messages or (Message("user", text),), item.where or "a prompt")
    return list(tokenizer(text)["input_ids"])


def respond(tokenizer: Tokenizer, solution: str) -> list[int]:
    """Token ids of a canonical solution as a response: the text and the end-of-sequence token."""
    return [*tokenizer(solution, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]


def check_template(template: str) -> None:
    """Raises ConfigError when the question would not appear in the prompt."""
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
    """Tokenize, leaving out prompts (and only the solutions of problems) that do not fit. Raises DataError if none fits.

    `items`: for training, for evaluation, and the number of duplicates dropped, as from `split_items`.
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
