"""Dialogue: the assistant's next turn, judged by a reward model.

Called by `tasks/task.py`. A row's dialogue (column `task.columns.prompt`) is a list of messages or a text of turns; its last turn, if
it is the assistant's, is the canonical solution, the turns before it are the prompt.
"""

from core.config import Columns
from core.errors import DataError
from tasks.dialogue import chat
from tasks.problems import Item
from tasks.sources import Row


def read_dialogue(row: Row, columns: Columns, where: str) -> Item:
    """A row as an item; what the judge needs are the prompt's messages. Raises DataError."""
    place = f"{where}: column {columns.prompt!r} (task.columns.prompt)"
    messages = chat.parse(row[columns.prompt], place)
    solution = None
    if messages[-1].role == "assistant":
        messages, solution = messages[:-1], messages[-1].content or None
    if not any(message.role == "user" and message.content for message in messages):
        raise DataError(f"{place}: nobody asks anything before the assistant's last turn; mend or delete the row")
    level = str(row[columns.level]) if columns.level is not None else ""
    return Item(chat.plain(messages), chat.dump(messages), level, solution, messages)
