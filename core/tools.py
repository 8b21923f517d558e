"""What a user adds in Python, and the tool that answers calls in responses: the policy writes a call, the answer
follows. Invariant: a tool is a pure function of the text, so a run repeats, and a response tells what were answers."""

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from core.errors import ConfigError
from core.records import Flags, IntArray

FIELD = "rollout.tool"


@dataclass(frozen=True, slots=True)
class Tool:
    """Answers the calls that a policy writes into its response.

    >>> calculator = Tool("=", lambda text: "4]" if text.endswith("[2+2=") else None)
    """

    ends: str  # characters. The tool is asked when the policy has written a token whose text ends with one of them.
    answer: Callable[[str], str | None]
    """Text of the response so far -> the text that follows; None: no call. It must not raise, or depend on more."""


class TokenTool:
    """A tool over the tokens of a model. Raises ConfigError when no token can end a call."""

    def __init__(self, tool: Tool, tokenizer: Any) -> None:
        texts = tokenizer.batch_decode([[token] for token in range(len(tokenizer))], skip_special_tokens=True)
        self.calls = frozenset(token for token, text in enumerate(texts) if text.endswith(tuple(tool.ends)))
        if not self.calls:
            raise ConfigError(
                f"{FIELD}: no token of the model ends with one of {tool.ends!r}, so the tool would never be asked; "
                "change its `ends`"
            )
        self._tool, self._tokenizer = tool, tokenizer

    def answer(self, response: Sequence[int]) -> list[int]:
        """The tokens that follow a response so far, which ends with one of `calls`; none if it is no call."""
        text = self._tool.answer(self._tokenizer.decode(list(response), skip_special_tokens=True))
        return list(self._tokenizer.encode(text, add_special_tokens=False)) if text else []

    def mask(self, response: IntArray) -> Flags:
        """[R] False where the tool answers a call of a response that was written as a whole (a canonical solution)."""
        mask, tokens = np.ones(response.size, np.bool_), response.tolist()
        for at, token in enumerate(tokens, 1):
            if token in self.calls and mask[at - 1]:
                answer = self.answer(tokens[:at])
                mask[at : at + len(answer)] = tokens[at : at + len(answer)] != answer
        return mask


def imported(field: str, path: str) -> Any:
    """The object at an import path 'module:name', also in the working directory. Raises ConfigError."""
    module, _, name = path.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:  # importing runs the user's code, which may raise anything
        raise ConfigError(
            f"{field} {path!r}: {type(error).__name__}: {error}; write it as 'module:name', in the folder that you "
            "start from"
        ) from error


def load_tool(path: str) -> Tool:
    """The tool at an import path. Asks it about an empty response. Raises ConfigError."""
    tool = imported(FIELD, path)
    if not isinstance(tool, Tool) or not tool.ends:
        raise ConfigError(f"{FIELD} {path!r}: name a core.tools.Tool whose `ends` are the last characters of calls")
    try:
        found: object = tool.answer("")
    except Exception as error:  # the user's code
        raise ConfigError(
            f"{FIELD} {path!r}: asked about an empty response: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(found, str | None):
        raise ConfigError(f"{FIELD} {path!r}: answers {type(found).__name__}; return a str, or None if it is no call")
    return tool
