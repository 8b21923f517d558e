"""What a kind of task is: the source of its problems, and the judge of their responses. A new one is a `TaskKind` in a
file of its own and a line in `core/sections/registry.py`."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from inspect import isroutine
from typing import TypeVar

from core.config import Columns, RolloutConfig, TaskConfig, evaluation_sets, every_source, task_sources
from core.errors import ConfigError, DataError
from core.sections.registry import find, names
from tasks.dialogue import chat
from tasks.dialogue.chat import Messages
from tasks.held_out import held_out_digests, not_held_out, split_items
from tasks.problems import (
    Item,
    Items,
    LeftOut,
    Read,
    level_of,
    load_items,
    prompt_digest,
    prompt_form,
    read_items,
    solution_of,
    text_of,
)
from tasks.sources import BadRow, BadRowsError, Row, read_rows
from tasks.synthetic.generated import Puzzle, puzzle_items

Answer = Callable[[str], str | None]  # response -> final answer, equal texts for equal answers; None if there is none


@dataclass(frozen=True, slots=True)
class TaskKind:
    """What a kind of task needs. Its problems are generated from `puzzle`, or read by `read` from rows."""

    # import path of a function (reference, response) -> Verdict, or of one from TaskConfig to it; empty: a reward model
    # or the user's own reward judges, and rows need no gold answer
    verifier: str
    puzzle: Puzzle | None = None
    read: Read | None = None
    # (config, seed, whether they are held out) -> rows that the kind makes itself; None: those of `task.path`
    rows: Callable[[TaskConfig, int, bool], Sequence[Row]] | None = None
    answer: Answer | None = None  # for tasks whose responses end in short answers, on which maj@k votes
    marks: tuple[str, ...] = ()  # what the judge looks for before an answer; a prompt should name one of them
    runs_programs: bool = False  # whether the judge runs the model's programs in a sandbox
    # the beginning of a response -> whether it is wrong already, whatever follows; None if its text does not tell. A
    # puzzle has `Puzzle.prefix_correct` for that
    prefix_is_wrong: Callable[[str], bool | None] = lambda _: None
    environment: str = ""  # name of the environment that answers the policy, unless the recipe names one
    episodes: bool = False  # whether that environment judges, by the rewards of an episode


def read_dialogue(row: Row, columns: Columns, where: str) -> Item:
    """A row whose prompt column is a dialogue (`chat.read_messages`), which becomes the reference, too. A last turn of
    the assistant is its solution. Raises DataError."""
    place = f"{where}: column {columns.prompt!r} (task.columns.prompt)"
    messages = chat.read_messages(row[columns.prompt], place)
    solution = None
    if messages[-1].role == "assistant":
        messages, solution = messages[:-1], messages[-1].content or None
    if not any(message.role == "user" and message.content for message in messages):
        raise DataError(f"{place}: there is no message before the assistant's last turn; fix or delete the row")
    return Item(chat.dialogue_text(messages), chat.dump_messages(messages), level_of(row, columns), solution, messages)


def read_prompt(row: Row, columns: Columns, where: str) -> Item:
    """The item of a row with a prompt and any gold answer or none: the user's own reward judges. Raises DataError."""
    gold = row.get(columns.answer)
    reference = gold if isinstance(gold, str) else "" if gold is None else json.dumps(gold, default=str)
    prompt = text_of(row, columns.prompt, "prompt", where)
    return Item(prompt, reference, level_of(row, columns), solution_of(row, columns, where))


DIALOGUE = TaskKind("", read=read_dialogue)
PROMPTS = TaskKind("", read=read_prompt)
EPISODES = TaskKind("", read=read_prompt, episodes=True)
GENERATED = 4096  # training problems of a generated task whose recipe does not say how many


def find_kind(name: str) -> TaskKind:
    """The kind of task that `task.name` names. Raises ConfigError."""
    found = find("task.name", name)
    if not isinstance(found, TaskKind):
        raise ConfigError(f"task.name {name!r}: {type(found).__name__}; name a tasks.kinds.TaskKind")
    judged = ":" in found.verifier or found.episodes
    if name not in names("task.name") and (not judged or (found.puzzle is None) == (found.read is None)):
        raise ConfigError(
            f"task.name {name!r}: give it a verifier 'module:function' or episodes, and either a puzzle or read"
        )
    return found


AnyRollout = TypeVar("AnyRollout", bound=RolloutConfig)


def rollout_settings(rollout: AnyRollout, task: TaskConfig) -> AnyRollout:
    """The rollout section; its environment is the task's own where none is named. Raises ConfigError, also for an
    evaluation set that needs another one."""
    kinds = [find_kind(source.config.name) for source in task_sources(task)]
    name, options = rollout.environment, rollout.environment_options
    if ":" in name and isroutine(find("rollout.environment", name)):
        name, options = "served", {**options, "agent": name}
    name = name or next((kind.environment for kind in kinds if kind.environment), "")
    if not name and any(kind.episodes for kind in kinds):
        raise ConfigError(f"task.name {task.name!r} is judged by its environment; give rollout.environment")
    for one in evaluation_sets(task):
        if find_kind(one.config.name).environment not in ("", name):
            raise ConfigError(f"task.eval_sets: {one.label} needs an environment that the run lacks; leave it out")
    return rollout.model_copy(update={"environment": name, "environment_options": options})


def prompt_warnings(config: TaskConfig, first: Callable[[str], str]) -> list[str]:
    """A line for each data set whose judge looks for a mark that the prompt does not name. `first`: label -> its first
    prompt, as the model reads it."""
    lines = []
    for label, _, source in every_source(config):
        marks = find_kind(source.name).marks
        own = [each.name for each in source.own_rewards]
        if marks and (not own or "task" in own) and not any(mark in first(label) for mark in marks):
            name, looked_for = f"task {source.name}{label and f' ({label})'}", " or ".join(marks)
            lines.append(
                f"warning: {name}: the judge looks for {looked_for}, and the prompt does not say so; say it in "
                "task.template, unless the model was fine-tuned to write it"
            )
    return lines


def judged_by_model(config: TaskConfig) -> bool:
    """Whether responses to the task, or to one data set of its mixture, are scored by a reward model. Raises
    ConfigError when nothing judges them."""
    judged = [find_kind(source.config.name) for source in every_source(config) if not source.config.own_rewards]
    if PROMPTS in judged:
        raise ConfigError("task prompts has no judge: give task.reward, or take the task whose judge fits your answers")
    return any(not kind.verifier and not kind.episodes for kind in judged)


def task_items(config: TaskConfig, seed: int) -> Items:
    """The problems of a task: those of all data sets of a mixture, and of the evaluation sets. A prompt held out in one
    of them is trained on in none. `seed` changes only generated training problems. Raises DataError, ConfigError."""
    sources, sets = task_sources(config), evaluation_sets(config)
    parts = [(source, *_source_items(source.config, seed)) for source in sources]
    shown = [(one, *_set_items(one.config, seed)) for one in sets]
    bad = [(source, part.left_out.bad_rows) for source, part, _ in parts] + [(one, rows) for one, _, rows in shown]
    if refused := [row for source, rows in bad if source.config.bad_rows == "refuse" for row in rows]:
        raise BadRowsError(refused)
    left_out = LeftOut(
        sum(part.left_out.duplicates for _, part, _ in parts), bad_rows=tuple(row for _, rows in bad for row in rows)
    )
    learned = [item for _, part, _ in parts for item in part.train]
    kept_out = frozenset().union(
        *(prompts for _, _, prompts in parts), *(held_out_digests(items, [*items, *learned]) for _, items, _ in shown)
    )
    for source in sources:
        for example in source.config.examples:
            if prompt_digest(example.prompt) in kept_out:
                raise DataError(f"task.examples: {example.prompt[:60]!r} is an evaluation problem; show another one")
    train = {source.label: not_held_out(part.train, kept_out) for source, part, _ in parts}
    for source, part, _ in parts:
        label = source.label
        if part.train and not train[label]:
            raise DataError(
                f"task {label or config.name}: every training prompt is also evaluated; give task.eval_sets other data"
            )
    return Items(
        [replace(item, source=label) for label, items in train.items() for item in items],
        [replace(item, source=source.label) for source, part, _ in parts for item in part.evaluation],
        left_out,
        [replace(item, source=one.label) for one, items, _ in shown for item in items[: one.config.problems]],
    )


def _source_items(config: TaskConfig, seed: int) -> tuple[Items, frozenset[str]]:
    """The problems of one data set, before they are compared with the others', and digests of all that it holds out."""
    kind = find_kind(config.name)
    if kind.puzzle is not None:
        train = _puzzles(kind.puzzle, config, seed, held_out=False)
        return Items(train, _puzzles(kind.puzzle, config, seed, held_out=True), LeftOut()), frozenset()
    only_evaluated = bool(config.eval_path) and not config.path and kind.rows is None
    items, bad = ([], []) if only_evaluated else _read(kind, config, seed, held_out=False)
    rows = None
    if config.eval_path or kind.rows is not None:
        rows, more = _read(kind, config, seed, held_out=True)
        bad += more
    if bad and config.bad_rows == "refuse":
        return Items([], [], LeftOut(bad_rows=tuple(bad))), frozenset()
    train, evaluation, duplicates = split_items(config, items, rows)
    held_out = held_out_digests(rows or evaluation, [*items, *(rows or ())])
    return Items(train, evaluation, LeftOut(duplicates, bad_rows=tuple(bad))), held_out


def check_trained(config: TaskConfig) -> None:
    """Raises DataError for a data set with rows to evaluate and none to train on."""
    for _, _, source in task_sources(config):
        kind = find_kind(source.name)
        if source.eval_path and not source.path and kind.read is not None and kind.rows is None:
            raise DataError(_without_rows(source.name))


def _without_rows(task: str) -> str:
    return f"task.path is empty: task {task} needs a data set; name a file, directory or hub data set"


def _set_items(config: TaskConfig, seed: int) -> tuple[list[Item], list[BadRow]]:
    """All problems of an evaluation set, each prompt once, and its bad rows."""
    kind = find_kind(config.name)
    if kind.puzzle is not None:
        return _puzzles(kind.puzzle, config, seed, held_out=True), []
    items, bad = _read(kind, config, seed, held_out=True)
    unique = {prompt_digest(item.prompt): item for item in reversed(items)}
    return [*reversed(unique.values())], bad


def _puzzles(puzzle: Puzzle, config: TaskConfig, seed: int, *, held_out: bool) -> list[Item]:
    """Generated problems; the hash of their text decides which are held out."""
    form, _ = prompt_form(config)
    fewest, most = config.operations
    lengths = range(fewest, most + 1)
    count = config.eval_problems if held_out else config.problems or GENERATED
    return [replace(item, form=form) for item in puzzle_items(puzzle, seed, lengths, count, evaluation=held_out)]


def _read(kind: TaskKind, config: TaskConfig, seed: int, *, held_out: bool) -> tuple[list[Item], list[BadRow]]:
    """The items of the training or the held-out rows of a data set, and its bad rows."""
    path, split = (config.eval_path, config.eval_split) if held_out else (config.path, config.split)
    if kind.read is None or not (path or config.path):
        raise DataError(_without_rows(config.name))
    rows = read_rows(path, split) if kind.rows is None else kind.rows(config, seed, held_out)
    return read_items(config, kind.read, path or config.path, rows, answers=bool(kind.verifier))


def evaluation_prompts(config: TaskConfig, seed: int) -> frozenset[str]:
    """Digests of the task's evaluation prompts, for commands that train on other rows. Raises DataError. Each prompt
    has three: of its text, of the text in the task's template, and of its question without system messages. All
    rows of `eval_path` are included, not only `eval_problems`. Empty without data."""
    digests = frozenset[str]()
    for one in evaluation_sets(config):
        items, bad = _set_items(one.config, seed)
        if bad and one.config.bad_rows == "refuse":
            raise BadRowsError(bad)
        digests |= held_out_digests(items, items)
    for source in task_sources(config):
        kind, data = find_kind(source.config.name), source.config
        if kind.read is not None and kind.rows is None and data.eval_path:
            items = load_items(data, kind.read, data.eval_path, data.eval_split, answers=bool(kind.verifier))
            digests |= held_out_digests(items, items)
        elif kind.puzzle is not None or data.path:
            part, held_out = _source_items(data, seed)
            if part.left_out.bad_rows and data.bad_rows == "refuse":
                raise BadRowsError(part.left_out.bad_rows)
            digests |= held_out or held_out_digests(part.evaluation, part.evaluation)
    return digests


def asked_prompts(messages: Messages) -> Iterator[str]:
    """Digests of all prompts in a dialogue: the user's turns, and what comes before each turn of the assistant."""
    for number, message in enumerate(messages):
        if message.role == "assistant":
            yield prompt_digest(chat.dialogue_text(messages[:number]))
        elif message.role == "user":
            yield prompt_digest(message.content)
