"""From rows of text to problems of tokens: columns, prompt, length filter, held-out split. Invariants: a problem's id
depends only on its data set and its prompt text; no prompt text is both in training and in evaluation; what is left out
is counted."""

import difflib
import hashlib
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from core.config import Columns, FewShot, TaskConfig, every_source, task_sources
from core.errors import ConfigError, DataError
from core.parts.judge import Asks
from core.records import Flags, Problem, World
from tasks.dialogue.chat import Message, Messages, dialogue_text, prompt_ids, read_messages, text_ids
from tasks.limits import AskedLimits, TokenLimits, chosen_limits, prompt_room
from tasks.sources import BadRow, BadRowsError, Row, missing_column, read_rows, recognised, with_fields

Tokenizer = Any  # a `transformers` fast tokenizer (this module does not import transformers)


@dataclass(frozen=True, slots=True)
class PromptForm:
    """What is around every question of a data set."""

    template: str = "{prompt}"
    system: str = ""
    examples: tuple[FewShot, ...] = ()

    def text(self, question: str) -> str:
        """The prompt for a tokenizer without a chat template.

        >>> PromptForm("Q: {prompt}\\nA: ", "Add.", (FewShot(prompt="1+1", response="2"),)).text("2+2")
        'Add.\\n\\nQ: 1+1\\nA: 2\\n\\nQ: 2+2\\nA: '
        """
        shown = "".join(f"{self._ask(example.prompt)}{example.response}\n\n" for example in self.examples)
        return f"{self.system}\n\n{shown}{self._ask(question)}" if self.system else shown + self._ask(question)

    def messages(self, question: Messages | str) -> Messages:
        """The prompt for a chat template. A dialogue with a system message of its own keeps it; its last message of the
        user is the question."""
        turns = list((Message("user", question),) if isinstance(question, str) else question)
        last = max((place for place, turn in enumerate(turns) if turn.role == "user"), default=None)
        if last is not None:
            turns[last] = replace(turns[last], content=self._ask(turns[last].content))
        shown = [
            message
            for example in self.examples
            for message in (Message("user", self._ask(example.prompt)), Message("assistant", example.response))
        ]
        of_dialogue, turns = (turns[:1], turns[1:]) if turns[0].role == "system" else ([], turns)
        system = of_dialogue or ((Message("system", self.system),) if self.system else ())
        return (*system, *shown, *turns)

    def _ask(self, question: str) -> str:
        return self.template.replace("{prompt}", question)


@dataclass(frozen=True, slots=True)
class Item:
    """A problem as text, before any tokenizer."""

    prompt: str
    reference: str  # what the verifier needs
    level: str = ""
    solution: str | None = None  # canonical solution, as a model should answer
    messages: Messages = ()  # a prompt of several turns; if given, used instead of template and `prompt`
    where: str = field(default="", compare=False)  # file and row, for errors
    source: str = ""  # label of its data set in a mixture
    form: PromptForm = field(default=PromptForm(), compare=False)
    row: Row | None = field(default=None, compare=False, repr=False)  # with `prompt`, if the user's own rewards judge
    world: World | None = field(default=None, compare=False)  # if it has an environment
    solution_mask: Flags | None = field(default=None, compare=False)  # [R] as of the problem

    def kept(self, asks: Asks) -> dict[str, Any]:
        """The columns that a reward asks for. Raises DataError when one is missing."""
        row = {"prompt": self.prompt} if self.row is None else self.row
        if missing := missing_column(row, [("a parameter of task.reward", name) for name in asks.needed], self.where):
            raise DataError(missing)
        return {
            name: row[name] for name in (row if asks.every_column else (*asks.needed, *asks.optional)) if name in row
        }


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What is left out: prompts, rows, and canonical solutions that are too long for a response."""

    duplicates: int = 0  # rows whose prompt text occurs in an earlier row
    long_prompts: int = 0
    long_solutions: int = 0
    bad_rows: tuple[BadRow, ...] = ()
    solutions: int = 0  # canonical ones, those that are too long included

    def __str__(self) -> str:
        bad = f"; {len(self.bad_rows)} bad rows skipped" if self.bad_rows else ""
        return (
            f"{self.duplicates} duplicate prompts and {self.long_prompts} prompts over rollout.max_prompt_tokens left "
            f"out; {self.long_solutions} canonical solutions over rollout.max_response_tokens not used{bad}"
        )


Kind = TypeVar("Kind")


class Split(NamedTuple, Generic[Kind]):
    """The problems of a task. No prompt to train on is also evaluated."""

    train: list[Kind]
    evaluation: list[Kind]
    left_out: LeftOut
    sets: Sequence[Kind] = ()  # of all evaluation sets


Items = Split[Item]
Read = Callable[[Row, Columns, str], Item]  # row -> item; the text names the row in errors ('train.jsonl: row 3')


def prompt_digest(text: str) -> str:
    """16 hex digits of a prompt text, without case and white space: no layout of a held-out question is trained on."""
    return hashlib.blake2b(
        " ".join(text.casefold().split()).encode("utf-8", "surrogatepass"), digest_size=8
    ).hexdigest()


def text_of(row: Row, column: str, field: str, where: str) -> str:
    """The stripped text in a column; a prompt may be messages. Raises DataError when it is empty or not text."""
    place = f"{where}: column {column!r} (task.columns.{field})"
    if field == "prompt" and isinstance(row[column], list):
        messages = read_messages(row[column], place)
        text = messages[0].content.strip() if len(messages) == 1 else dialogue_text(messages)
    else:
        text = _cell(row[column], place)
    if not text:
        raise DataError(f"{place} is empty; fix or delete the row")
    return text


def _cell(value: object, place: str) -> str:
    """A text or a number as stripped text, nothing as an empty text. Raises DataError for anything else."""
    if isinstance(value, float) and not math.isfinite(value):  # a Parquet file's missing number
        raise DataError(f"{place} is {value}; fix or delete the row")
    if isinstance(value, bool) or not isinstance(value, str | int | float | None):
        raise DataError(f"{place} is {type(value).__name__}, not text; fix or delete the row")
    return "" if value is None else str(value).strip()


def solution_of(row: Row, columns: Columns, where: str) -> str | None:
    """The canonical solution of a row, if it has one. Raises DataError as `text_of`."""
    if columns.solution is None or row[columns.solution] in (None, ""):
        return None
    return text_of(row, columns.solution, "solution", where)


def level_of(row: Row, columns: Columns) -> str:
    """The difficulty of a row; empty if it has none, or no column is configured for it."""
    level = None if columns.level is None else row[columns.level]
    return "" if level is None else str(level)


_SLOT = re.compile(r"(?:\\[a-zA-Z]+|[\^_])(?:\{(?!prompt\})[^{}]*\})+|\{\{(?!prompt\})(\w+)\}\}|\{([^{}]+)\}")
"""A group of LaTeX, which is text; a name in two pairs of braces, which is text in one pair; or a name in braces."""


def prompt_form(config: TaskConfig, columns: Collection[str] = ()) -> tuple[PromptForm, str]:
    """The form of a data set's prompts, and the template of the question if it names columns (else empty). Text before
    the first and after the last name belongs to the form, all between to the question, which tells problems apart.
    Raises ConfigError for a template that names no column or an unknown one."""
    template = config.template
    slots = _slots(template, columns)
    if not slots:
        raise ConfigError(
            f"task.template = {template!r} has no {{prompt}} and names no column; write where the question goes"
        )
    for slot in slots:
        _check_slot(config, slot[2], columns)
    if all(slot[2] == "prompt" for slot in slots):
        return PromptForm(_fill(template, {}), config.system, config.examples), ""
    begin, end = slots[0].start(), slots[-1].end()
    around = f"{_fill(template[:begin], {})}{{prompt}}{_fill(template[end:], {})}"
    return PromptForm(around, config.system, config.examples), template[begin:end]


def _slots(template: str, columns: Collection[str]) -> list[re.Match[str]]:
    """What names a column, rightly or wrongly, or a field in one."""
    found = [(slot, slot[2] or "") for slot in _SLOT.finditer(template)]
    return [slot for slot, name in found if name.isidentifier() or {name, name.partition(".")[0]} & {*columns}]


def _fill(template: str, texts: Mapping[str, str]) -> str:
    """The template with a text in place of each name that has one, and one pair of braces where it has two."""
    return _SLOT.sub(lambda slot: f"{{{slot[1]}}}" if slot[1] else texts.get(slot[2], slot[0]), template)


def _check_slot(config: TaskConfig, name: str, columns: Collection[str]) -> None:
    if name == "prompt":
        return
    if name not in columns:
        near = difflib.get_close_matches(name, columns, n=1, cutoff=0.0)
        raise ConfigError(
            f"task.template names {{{name}}}, which is no column; the nearest is {near[0] if near else 'prompt'!r} "
            f"(write {{{{{name}}}}} for the text itself)"
        )
    named = {"answer": config.columns.answer, "solution": config.columns.solution, "tests": config.columns.tests}
    shown = next((field for field, column in named.items() if column == name), None)
    if shown:
        raise ConfigError(f"task.template names {{{name}}}, the column of task.columns.{shown}: prompts would show it")


def read_items(
    config: TaskConfig, read: Read, path: str, raw_rows: Sequence[Any], *, answers: bool = True
) -> tuple[list[Item], list[BadRow]]:
    """Items of the rows `raw_rows` of the data set at `path`, and its bad rows. `answers`: whether gold answers are
    required. Raises DataError if all rows are bad, ConfigError for a wrong template."""
    columns = recognised(config.columns, raw_rows)
    config = config.model_copy(update={"columns": columns})
    rows = [row if isinstance(row, BadRow) else with_fields(row, columns) for row in raw_rows]
    present = dict.fromkeys(name for row in rows if not isinstance(row, BadRow) for name in row)
    form, question = prompt_form(config, present)
    slots = {slot[2]: columns.prompt if slot[2] == "prompt" else slot[2] for slot in _slots(question, present)}
    wanted = columns.model_dump()
    if columns.tests is not None or not answers:
        del wanted["answer"]
    if slots and "prompt" not in slots:
        del wanted["prompt"]
    named = [(f"task.columns.{field}", name) for field, name in wanted.items() if name is not None]
    named += [("task.template", name) for name in slots if name != "prompt"]
    items: list[Item] = []
    bad: list[BadRow] = []
    for row_number, row in enumerate(rows, 1):
        where = f"{path}: row {row_number}"
        if isinstance(row, BadRow):
            bad.append(row)
        elif missing := missing_column(row, named, where):
            bad.append(BadRow(where, missing))
        else:
            try:
                texts = {
                    name: _cell(row[column], f"{where}: column {column!r} (task.template)")
                    for name, column in slots.items()
                }
                filled = {**row, columns.prompt: _fill(question, texts)} if slots else row
                item = replace(read(filled, columns, where), where=where, form=form)
                items.append(_with_row(config, item, row, raw_rows[row_number - 1]))
            except DataError as error:
                bad.append(BadRow(where, str(error)))
    if not items:
        raise BadRowsError(bad, all_rows=True)
    return items, bad


def _with_row(config: TaskConfig, item: Item, row: Row, raw: Row) -> Item:
    """The item with the messages of its prompt, if they are several, and with the row as given, if own rewards
    judge."""
    prompt = row.get(config.columns.prompt)
    if not isinstance(prompt, list):
        prompt = item.prompt
    elif len(prompt) > 1 and not item.messages:
        item = replace(item, messages=read_messages(prompt, item.where))
    return replace(item, row={**raw, "prompt": prompt}) if config.own_rewards else item


def load_items(config: TaskConfig, read: Read, path: str, split: str, *, answers: bool = True) -> list[Item]:
    """The items of the data set at `path`. Raises DataError for one that cannot be read, BadRowsError for bad rows
    unless `task.bad_rows` skips them."""
    items, bad = read_items(config, read, path, read_rows(path, split), answers=answers)
    if bad and config.bad_rows == "refuse":
        raise BadRowsError(bad)
    return items


def render_item(tokenizer: Tokenizer, item: Item) -> list[int]:
    """Token ids of a prompt, by the tokenizer's chat template if it has one. Raises DataError as `prompt_ids`."""
    if item.messages or getattr(tokenizer, "chat_template", None):
        return prompt_ids(tokenizer, item.form.messages(item.messages or item.prompt), item.where or "a prompt")
    return text_ids(tokenizer, item.form.text(item.prompt))


def respond(tokenizer: Tokenizer, solution: str) -> list[int]:
    """Token ids of a canonical solution as a response: the text and the end-of-sequence token."""
    return [*tokenizer(solution, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]


class _Encoded(NamedTuple):
    item: Item
    prompt: list[int]
    solution: list[int] | None


def encode_problems(
    config: TaskConfig, tokenizer: Tokenizer, items: Items, limits: AskedLimits, context: int
) -> tuple[Split[Problem], TokenLimits]:
    """Tokenize, and choose the limits that follow from the data. `context`: tokens that the model can read. Prompts
    that are too long are left out; where only the solution is too long, it is dropped. Raises DataError if none of a
    data set fits, BadRowsError for prompts that the chat template refuses, if they are not skipped."""
    bad: list[tuple[Item, BadRow]] = []

    def _encoded(item: Item) -> _Encoded | None:
        try:
            prompt = render_item(tokenizer, item)
        except DataError as error:
            bad.append((item, BadRow(item.where, str(error))))
            return None
        return _Encoded(item, prompt, respond(tokenizer, item.solution) if item.solution is not None else None)

    parts = (items.train, items.evaluation, items.sets)
    train, evaluation, sets = ([encoded for item in part if (encoded := _encoded(item)) is not None] for part in parts)
    strict = {source.label for source in every_source(config) if source.config.bad_rows == "refuse"}
    if refused := [row for item, row in bad if item.source in strict]:
        raise BadRowsError(refused)
    both, labels = [*train, *evaluation], [source.label for source in task_sources(config)]
    solutions = {
        label: [
            len(encoded.solution) for encoded in both if encoded.solution is not None and encoded.item.source == label
        ]
        for label in labels
    }
    prompts = [len(encoded.prompt) for encoded in (*both, *sets)]
    chosen = chosen_limits(limits, prompts, [*solutions.values()], context)
    kept = [
        [encoded for encoded in part if 0 < len(encoded.prompt) <= chosen.prompt] for part in (train, evaluation, sets)
    ]
    for index, wanted in enumerate(parts):
        for label in labels if index < 2 else dict.fromkeys(item.source for item in wanted):
            count, kind = sum(item.source == label for item in wanted), "evaluation" if index else "training"
            if (wanted or index) and not any(encoded.item.source == label for encoded in kept[index]):
                raise DataError(
                    f"task {label or config.name}: all {count} {kind} prompts are longer than "
                    + prompt_room(limits, chosen, context)
                )
    left_out = LeftOut(
        items.left_out.duplicates,
        len(prompts) - sum(map(len, kept)),
        sum(length > chosen.response for lengths in solutions.values() for length in lengths),
        (*items.left_out.bad_rows, *(row for _, row in bad)),
        sum(map(len, solutions.values())),
    )
    problems = [[_problem(config, tokenizer, encoded, chosen) for encoded in part] for part in kept]
    return Split(problems[0], problems[1], left_out, problems[2]), chosen


def _problem(config: TaskConfig, tokenizer: Tokenizer, encoded: _Encoded, limits: TokenLimits) -> Problem:
    item, ids = encoded.item, encoded.solution
    solution = None if ids is None or len(ids) > limits.response else np.array(ids, np.int32)
    return Problem(
        id=problem_id(config.title, item),
        prompt_ids=np.array(encoded.prompt, np.int32),
        reference=item.reference,
        level=item.level,
        solution_ids=solution,
        source=item.source,
        question=item.prompt if item.world is None else str(tokenizer.decode(encoded.prompt)),
        world=item.world,
        solution_mask=item.solution_mask,
    )


def problem_id(title: str, item: Item) -> str:
    """The id of an item's problem in a task of this title."""
    return f"{item.source or title}-{prompt_digest(item.prompt)}"
