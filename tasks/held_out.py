"""The evaluation prompts of a task, for whoever learns from other rows than the task's own.

Called by `commands/sft.py` and `commands/reward_model.py`. Invariant: a prompt is known by the digest of its text, whether it stands
alone, in the task's template, or as the turns before a reply.
"""

from collections.abc import Iterator

from core.config import TaskConfig
from tasks.dialogue import chat
from tasks.dialogue.chat import Messages
from tasks.problems import Item, digest, load_items
from tasks.task import READERS, UNANSWERED, task_items


def evaluation_prompts(config: TaskConfig, seed: int) -> frozenset[str]:
    """Digests of the task's evaluation prompts: of `eval_path` all, whatever `eval_problems`; none where no data are named.

    Raises DataError as `tasks.task.task_items`.
    """
    items: list[Item] = []
    if config.name in READERS and config.eval_path:
        read, answers = READERS[config.name], config.name not in UNANSWERED
        items = load_items(config, read, config.eval_path, config.eval_split, answers=answers)
    elif config.name not in READERS or config.path:
        _, items, _ = task_items(config, seed)
    return frozenset(digest(text) for item in items for text in _texts(config.template, item))


def prompts(messages: Messages) -> Iterator[str]:
    """Digests of all that is asked in a dialogue: each turn of the user's, and what comes before each of the assistant's."""
    for number, message in enumerate(messages):
        if message.role == "assistant":
            yield digest(chat.plain(messages[:number]))
        elif message.role == "user":
            yield digest(message.content)


def _texts(template: str, item: Item) -> Iterator[str]:
    yield item.prompt
    yield template.replace("{prompt}", item.prompt)
    if len(item.messages) == 1:
        yield item.messages[0].content
