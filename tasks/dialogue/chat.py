"""Dialogues: reads rows of the usual forms as messages, and tokenizes messages with a mask of the assistant's tokens.
Invariant: training and scoring render a dialogue with the same chat template: the tokenizer's, or the turns of
Anthropic's HH data if it has none."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from core.environments.protocol import TOOLS
from core.environments.templates import rendered
from core.errors import DataError, first_line
from core.machine import bounded

_TURN = re.compile(r"(?:^|\n\n)(System|Human|Assistant):")
_NAMES = {"system": "System", "user": "Human", "assistant": "Assistant"}
ROLES = tuple(_NAMES)
NO_TEXT = "\ue000"  # a character for private use, with which no message begins
_ROLE_OF = {name: role for role, name in _NAMES.items()}


@dataclass(frozen=True, slots=True)
class Message:
    """One turn."""

    role: str
    content: str


Messages = tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class ChatTokens:
    """A tokenized dialogue and the positions of the assistant's tokens."""

    ids: list[int]
    learned: list[int]


def read_messages(value: object, where: str) -> Messages:
    r"""Messages of a cell: objects with role and content, or a text of turns (`\n\nHuman: ... \n\nAssistant: ...`). A
    text without turns is one message of the user; what stands before the first turn is the system's. `where`: begins
    the error message. Raises DataError."""
    if isinstance(value, str) and value.strip():
        first, *pieces = _TURN.split(value)
        if not pieces:
            return (Message("user", first.strip()),)
        turns = zip(pieces[::2], pieces[1::2], strict=True)
        before = (Message("system", first.strip()),) if first.strip() else ()
        return before + tuple(Message(_ROLE_OF[speaker], said.strip()) for speaker, said in turns)
    if isinstance(value, list) and value:
        return tuple(_from_object(turn, where) for turn in value)
    kind = "empty" if not value else type(value).__name__
    raise DataError(f"{where} is {kind}; expected a text of turns or a list of messages with role and content")


def _from_object(turn: object, where: str) -> Message:
    if not isinstance(turn, dict) or turn.get("role") not in ROLES or not isinstance(turn.get("content"), str):
        raise DataError(
            f"{where}: expected messages with role ({', '.join(ROLES)}) and content, found {str(turn)[:60]!r}"
        )
    return Message(turn["role"], turn["content"])


def question_of(messages: Messages) -> str:
    """The question, if nothing but system messages is beside it; else an empty text."""
    asked = [message for message in messages if message.role != "system"]
    return asked[0].content if len(asked) == 1 and asked[0].role == "user" else ""


def dialogue_text(messages: Sequence[Message]) -> str:
    """The dialogue as a text of turns that ends with an open turn of the assistant; `read_messages` reads it."""
    return f"{_turns(messages)}\n\nAssistant:"


def _turns(messages: Sequence[Message]) -> str:
    return "".join(f"\n\n{_NAMES[message.role]}: {message.content}" for message in messages)


def dump_messages(messages: Messages) -> str:
    """Messages as one text, for `Problem.reference`; `load_messages` reads it."""
    return json.dumps([asdict(message) for message in messages], ensure_ascii=False)


def load_messages(text: str) -> Messages:
    """What `dump_messages` wrote."""
    return tuple(Message(turn["role"], turn["content"]) for turn in json.loads(text))


def chat_text(tokenizer: Any, messages: Sequence[Message], where: str, *, reply: bool) -> str:
    """The dialogue as the model reads it. `reply`: append what begins the assistant's next turn. Raises DataError when
    the chat template refuses the dialogue: it may allow no system message, or only alternating roles; ModelError when
    the template itself fails or has no end."""
    template = getattr(tokenizer, "chat_template", None) or ""
    tools = next((json.loads(message.content) for message in messages if message.role == TOOLS), None)
    if tools and "tools" not in str(template):
        raise DataError(f"{where}: the chat template takes no tools; use another one, or describe them in a message")
    if not template:
        return _turns(messages) + ("\n\nAssistant: " if reply else "")
    from jinja2 import TemplateError  # imported late, so that the commands start faster

    try:
        said = [asdict(message) for message in messages if message.role != TOOLS]
        with bounded():
            return rendered(tokenizer, said, tools=tools, reply=reply)
    except TemplateError as error:
        raise DataError(
            f"{where}: the chat template of the tokenizer refuses this dialogue ({first_line(error)}); fix or delete "
            "the row, or use another template"
        ) from None


def prompt_ids(tokenizer: Any, messages: Sequence[Message], where: str) -> list[int]:
    """Token ids of a dialogue and of what begins the assistant's next turn. A last turn of the assistant is a
    beginning, which the response continues; an empty one is as none. Raises DataError as `chat_text`."""
    begun = messages[-1].content.rstrip() if messages and messages[-1].role == "assistant" else ""
    if not begun:
        asked = messages[:-1] if messages and messages[-1].role == "assistant" else messages
        return _first_ids(tokenizer, chat_text(tokenizer, asked, where, reply=True))
    text, found, _ = chat_text(tokenizer, messages, where, reply=False).rpartition(begun)
    if not found:
        raise DataError(f"{where}: the chat template does not write the assistant's beginning as it is; leave it out")
    return _first_ids(tokenizer, text + begun)


def encode_dialogue(tokenizer: Any, messages: Sequence[Message], where: str) -> ChatTokens:
    """Token ids of a whole dialogue. Learned are the assistant's turns, each including its end-of-sequence token. If
    the template does not end turns with that token, one is added after the last turn, also if it is empty. Raises
    DataError as `chat_text`, and when the template changes earlier turns: the model would read another context."""
    ids: list[int] = []
    learned: list[int] = []
    done = ""
    open_turn = False
    for index, message in enumerate(messages):
        if message.role != "assistant":
            continue
        after = chat_text(tokenizer, messages[: index + 1], where, reply=False)
        if index:
            before = chat_text(tokenizer, messages[:index], where, reply=True)
        else:  # a template refuses to render no message: what begins this one is the same for any content
            other = chat_text(tokenizer, [Message("assistant", NO_TEXT)], where, reply=False)
            before = other.partition(NO_TEXT)[0]
        if not (before.startswith(done) and after.startswith(before)):
            raise DataError(f"{where}: the chat template of the tokenizer rewrites earlier turns; use another template")
        ids += _ids(tokenizer, before[len(done) :]) if done else _first_ids(tokenizer, before)
        said = _ids(tokenizer, after[len(before) :])
        open_turn = tokenizer.eos_token_id not in said
        ends = len(said) if open_turn else said.index(tokenizer.eos_token_id) + 1
        learned += range(len(ids), len(ids) + ends)
        ids += said
        done = after
    if open_turn:
        learned.append(len(ids))
        ids.append(tokenizer.eos_token_id)
    return ChatTokens(ids, [at for at in learned if at])


def _first_ids(tokenizer: Any, text: str) -> list[int]:
    """Token ids of the beginning of a context. A chat template writes the token of the beginning itself."""
    return _ids(tokenizer, text) if getattr(tokenizer, "chat_template", None) else text_ids(tokenizer, text)


def text_ids(tokenizer: Any, text: str) -> list[int]:
    """Token ids of a prompt, with what the tokenizer puts before a text and without an end of sequence behind it."""
    ids = list(tokenizer(text)["input_ids"])
    ended = ids[-1:] == [tokenizer.eos_token_id] and not text.endswith(str(tokenizer.eos_token))
    return ids[:-1] if ended else ids


def anchor_of(tokenizer: Any) -> list[int]:
    """A token to be decoded before a response, for tokenizers that drop a blank at the beginning of a text
    (SentencePiece); none for others."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    decoder = (json.loads(backend.to_str()).get("decoder") or {}) if backend is not None else {}
    kinds = {decoder.get("type")} | {part.get("type") for part in decoder.get("decoders", [])}
    return _ids(tokenizer, "x")[-1:] if kinds & {"Strip", "Metaspace"} else []


def _ids(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])
