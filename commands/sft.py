"""`launch.py sft`: fine-tuning on canonical solutions, or on dialogues (loss on the assistant's tokens). Invariant:
held-out rows (evaluation problems; dialogues with the smallest hashes) are never trained on."""

from argparse import Namespace
from collections.abc import Sequence

from commands.supervised import Row, Rows, hold_out, read_dialogues, supervise
from core.config import Config, SftConfig, task_title
from core.errors import DataError
from core.records import Problem
from core.seeds import derive
from tasks.dialogue import chat
from tasks.dialogue.chat import Messages
from tasks.kinds import asked_prompts, check_trained, evaluation_prompts, task_items
from tasks.problems import encode_problems, prompt_digest
from trainer.model.files import inspect_model, load_tokenizer


def fine_tune(options: Namespace) -> int:
    """`launch.py sft`: start a new run, or with --resume continue an earlier one from its last checkpoint."""
    return supervise(options, "sft", sft_rows, lambda *_: None)


def sft_rows(config: Config, model: str, most: int) -> Rows:
    """The rows of at most `most` tokens. Raises DataError, ConfigError."""
    return from_messages(config, model, most) if config.sft.path else from_task(config, model, most)


def text_row(ids: Sequence[int], learned: Sequence[int]) -> Row:
    """A text of which the tokens at `learned` have loss.

    >>> text_row([5, 6, 7], [1])
    {'input_ids': [5, 6, 7], 'labels': [-100, 6, -100]}
    """
    chosen = set(learned)
    return {"input_ids": list(ids), "labels": [token if at in chosen else -100 for at, token in enumerate(ids)]}


def from_task(config: Config, model: str, most: int) -> Rows:
    """Training and held-out solutions of the task; no judge is started. Raises DataError, ConfigError."""
    check_trained(config.task)
    split, _ = encode_problems(
        config.task,
        load_tokenizer(model, config.model.template_date),
        task_items(config.task, derive(config.run.seed, "task")),
        (config.rollout.max_prompt_tokens, config.rollout.max_response_tokens),
        inspect_model(model).context,
    )
    print(f"task {task_title(config.task)}: {split.left_out}")
    train, held_out = (
        from_problems(problems, config, kind, most)
        for problems, kind in ((split.train, "training"), (split.evaluation, "evaluation"))
    )
    return Rows(train, held_out)


def from_problems(problems: Sequence[Problem], config: Config, kind: str, most: int) -> list[Row]:
    """Prompts with canonical solutions, which alone have loss; tells what is left out. Raises DataError if all are."""
    solved = [
        (problem.prompt_ids.tolist(), problem.solution_ids.tolist())
        for problem in problems
        if problem.solution_ids is not None
    ]
    found = [
        text_row(prompt + solution, range(len(prompt), len(prompt) + len(solution)))
        for prompt, solution in solved
        if len(prompt) + len(solution) <= most
    ]
    if not found:
        raise DataError(
            f"task {task_title(config.task)}: no canonical solution within sft.arguments.max_length = {most} to learn "
            "from; set task.columns.solution, raise it, or give dialogues in sft.path"
        )
    if len(found) < len(problems):
        print(
            f"task {task_title(config.task)}: {len(problems) - len(found)} of {len(problems)} {kind} problems left "
            f"out: {len(solved) - len(found)} over {most} tokens (sft.arguments.max_length), the others without a "
            "canonical solution within rollout.max_response_tokens"
        )
    return found


def dialogues(settings: SftConfig) -> list[tuple[str, Messages]]:
    """Each row of `sft.path`: its place in the file (for errors) and its dialogue. Raises DataError."""
    rows = [row[0] for row in read_dialogues(settings.path, settings.split, "sft.column", settings.column)]
    for where, messages in rows:
        if not any(message.role == "assistant" and message.content.strip() for message in messages):
            raise DataError(f"{where}: the assistant says nothing; correct or delete the row")
    return rows


def from_messages(config: Config, model: str, most: int) -> Rows:
    """Training and held-out dialogues of `sft.path`. Raises DataError."""
    path, tokenizer = config.sft.path, load_tokenizer(model, config.model.template_date)
    rows, unseen = dialogues(config.sft), evaluation_prompts(config.task, derive(config.run.seed, "task"))
    evaluated = set()
    texts: dict[str, list[Row]] = {}
    for where, messages in rows:
        tokens = chat.encode_dialogue(tokenizer, messages, where)
        if len(tokens.ids) <= most:
            key = prompt_digest(chat.dump_messages(messages))
            texts[key] = [text_row(tokens.ids, tokens.learned)]
            if not unseen.isdisjoint(asked_prompts(messages)):
                evaluated.add(key)
    print(f"{path}: {len(rows) - len(texts)} of {len(rows)} rows left out: over {most} tokens, or duplicates")
    return hold_out(config, path, texts, evaluated)
