"""Renders messages with the chat template of a tokenizer, which is a program of others: it may raise or have no end."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from core.errors import ModelError, first_line
from core.machine import NoEnd

LONGEST = 2**20  # characters, besides eight for each that is given


def rendered(
    tokenizer: Any, messages: Sequence[Mapping[str, Any]], *, reply: bool, tools: list[Any] | None = None
) -> str:
    """The text that the model reads. `reply`: with what begins the assistant's next turn. A template with a date writes
    the tokenizer's `template_date`, else today's. Raises jinja2.TemplateError for messages that it refuses, ModelError
    when it fails itself."""
    from jinja2 import TemplateError, TemplateSyntaxError  # imported late, so that the commands start faster

    date = getattr(tokenizer, "template_date", None)
    options = {} if date is None else {"strftime_now": date.strftime}
    options |= {"tools": tools, "add_generation_prompt": reply, "tokenize": False}
    try:
        text = str(tokenizer.apply_chat_template(messages, **options))
        if len(text) > LONGEST + 8 * len(str((messages, tools))):
            raise OverflowError(f"it writes {len(text):,} characters")
    except TemplateSyntaxError as error:
        raise _failed(tokenizer, f"line {error.lineno}: {first_line(error)}") from None
    except TemplateError:
        raise
    except (Exception, NoEnd) as error:  # whatever an expression raises
        raise _failed(tokenizer, f"{type(error).__name__}: {first_line(error)}") from None
    return text


def _failed(tokenizer: Any, why: str) -> ModelError:
    place = Path(tokenizer.name_or_path)
    file = next((name for name in ("chat_template.jinja", "tokenizer_config.json") if (place / name).is_file()), "")
    return ModelError(f"{place / file}: its chat template fails ({why}); mend it, or use another one")
