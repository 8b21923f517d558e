"""Renders messages with the chat template of a tokenizer."""

from collections.abc import Mapping, Sequence
from typing import Any


def rendered(
    tokenizer: Any, messages: Sequence[Mapping[str, Any]], *, reply: bool, tools: list[Any] | None = None
) -> str:
    """The text that the model reads. `reply`: with what begins the assistant's next turn. A template with a date writes
    the tokenizer's `template_date`, else today's. Raises jinja2.TemplateError for messages that it refuses."""
    date = getattr(tokenizer, "template_date", None)
    clock = {} if date is None else {"strftime_now": date.strftime}
    return str(
        tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=reply, tokenize=False, **clock)
    )
