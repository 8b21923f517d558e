"""The kinds of task, `KINDS`: the source of their problems, and the judge of their responses.

Called by `tasks/task.py`, `tasks/judging.py`, `tasks/starter.py` and the supervised commands. A new kind of task is a new entry
in `KINDS` and in the choices of `TaskConfig.name`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from core.config import Columns, TaskConfig
from core.errors import DataError
from tasks.code.programs import read_mbpp
from tasks.dialogue import chat
from tasks.dialogue.chat import Messages
from tasks.mathematics.answers import gsm8k_answer, math_answer, read_gsm8k, read_math
from tasks.problems import Item, Read, level_of, load_items, prompt_digest, split_items
from tasks.sources import Row
from tasks.synthetic.arithmetic import ARITHMETIC, arithmetic_answer
from tasks.synthetic.countdown import COUNTDOWN
from tasks.synthetic.generated import Puzzle, puzzle_items
from tasks.synthetic.lock import LOCK
from tasks.synthetic.rule import RULE

Answer = Callable[[str], str | None]
"""Response -> its final answer, normalised so that equal answers are equal texts; None if there is none."""


@dataclass(frozen=True, slots=True)
class TaskKind:
    """What a kind of task needs. Its problems are generated from `puzzle`, or read from rows by `read`."""

    verifier: str  # import path of a `tasks.judge_worker.Verify`, or of a function from TaskConfig to one; empty: a reward model judges
    puzzle: Puzzle | None = None
    read: Read | None = None
    has_answers: bool = True  # whether the rows hold gold answers
    answer: Answer | None = None  # for tasks whose responses end in short answers, on which maj@k votes
    answer_is_reference: bool = False  # whether the judge can compare a response with another one's answer
    runs_programs: bool = False  # whether the judge runs the model's programs in a sandbox


def read_dialogue(row: Row, columns: Columns, where: str) -> Item:
    """The item of a row whose prompt column is a dialogue (`chat.read_messages`). A last turn of the assistant is its solution.

    The reference contains the messages of the prompt. Raises DataError.
    """
    place = f"{where}: column {columns.prompt!r} (task.columns.prompt)"
    messages = chat.read_messages(row[columns.prompt], place)
    solution = None
    if messages[-1].role == "assistant":
        messages, solution = messages[:-1], messages[-1].content or None
    if not any(message.role == "user" and message.content for message in messages):
        raise DataError(f"{place}: there is no message before the assistant's last turn; fix or delete the row")
    return Item(chat.dialogue_text(messages), chat.dump_messages(messages), level_of(row, columns), solution, messages)


KINDS: Mapping[str, TaskKind] = {
    "arithmetic": TaskKind("tasks.synthetic.arithmetic:verify_arithmetic", ARITHMETIC, answer=arithmetic_answer),
    "lock": TaskKind("tasks.synthetic.lock:verify_lock", LOCK),
    "countdown": TaskKind("tasks.synthetic.countdown:verify_countdown", COUNTDOWN),
    "rule": TaskKind("tasks.synthetic.rule:verify_rule", RULE),
    "gsm8k": TaskKind(
        "tasks.mathematics.answers:verify_gsm8k", read=read_gsm8k, answer=gsm8k_answer, answer_is_reference=True
    ),
    "math": TaskKind(
        "tasks.mathematics.answers:verify_math", read=read_math, answer=math_answer, answer_is_reference=True
    ),
    "mbpp": TaskKind("tasks.code.programs:verifier", read=read_mbpp, runs_programs=True),
    "dialogue": TaskKind("", read=read_dialogue, has_answers=False),
}


def judged_by_model(config: TaskConfig) -> bool:
    """Whether the task's responses are scored by a reward model."""
    return not config.reward and not KINDS[config.name].verifier


def task_items(config: TaskConfig, seed: int) -> tuple[list[Item], list[Item], int]:
    """Training and evaluation items of any task, and the number of duplicates dropped. Raises DataError.

    `seed` changes only generated training problems; rows are the same for every seed.
    """
    kind = KINDS[config.name]
    if kind.puzzle is not None:
        lengths = range(config.min_operations, config.max_operations + 1)
        train = puzzle_items(kind.puzzle, seed, lengths, config.problems, evaluation=False)
        return train, puzzle_items(kind.puzzle, seed, lengths, config.eval_problems, evaluation=True), 0
    if not config.path:
        raise DataError(
            f"task.path is empty: task {config.name} needs a data set; name a file, directory or hub data set"
        )
    evaluation = _read_rows(config, config.eval_path, config.eval_split) if config.eval_path else None
    return split_items(config, _read_rows(config, config.path, config.split), evaluation)


def _read_rows(config: TaskConfig, path: str, split: str) -> list[Item]:
    kind = KINDS[config.name]
    assert kind.read is not None
    return load_items(config, kind.read, path, split, answers=kind.has_answers)


def evaluation_prompts(config: TaskConfig, seed: int) -> frozenset[str]:
    """Digests of the task's evaluation prompts, for commands that train on other rows than the task's.

    Each prompt has three digests: of its text, of the text in the task's template, and of the text as the only message of a
    dialogue. All rows of `eval_path` are included, not only `eval_problems`. Empty without data. Raises DataError as `task_items`.
    """
    items: list[Item] = []
    if KINDS[config.name].read is not None and config.eval_path:
        items = _read_rows(config, config.eval_path, config.eval_split)
    elif KINDS[config.name].puzzle is not None or config.path:
        _, items, _ = task_items(config, seed)
    texts = {text for item in items for text in (item.prompt, config.template.replace("{prompt}", item.prompt))}
    texts |= {item.messages[0].content for item in items if len(item.messages) == 1}
    return frozenset(map(prompt_digest, texts))


def asked_prompts(messages: Messages) -> Iterator[str]:
    """Digests of all prompts in a dialogue: each turn of the user, and the dialogue before each turn of the assistant."""
    for number, message in enumerate(messages):
        if message.role == "assistant":
            yield prompt_digest(chat.dialogue_text(messages[:number]))
        elif message.role == "user":
            yield prompt_digest(message.content)
