"""Turns as tokens: where an action ends, what its text is, and the tokens of the environment's answer. Invariant: only
answers are encoded; the tokens before them stay as they are."""

from collections.abc import Collection, Generator, Sequence
from typing import Any, NamedTuple

from core.environments.protocol import FIELD, Answer, Messages
from core.environments.templates import rendered
from core.errors import ConfigError, DataError, first_line

_SAID = "\u2022said\u2022"  # stands for an action in a chat template


class Retraced(NamedTuple):
    """What is known of a response [R] once its actions were repeated."""

    mask: list[bool]  # [R] which tokens are the policy's
    rest: Sequence[int]  # its last tokens, of an action that is not answered


class TurnTokens:
    """Turns over the tokens of a model. Raises ConfigError when no token can end an action as the environment asks."""

    def __init__(self, tokenizer: Any, ends: str, stop: Collection[int]) -> None:
        """`ends`: characters that end an action; `stop`: the model's end-of-sequence tokens."""
        self._tokenizer, self.calls = tokenizer, frozenset[int]()
        if ends:
            texts = tokenizer.batch_decode([[token] for token in range(len(tokenizer))], skip_special_tokens=True)
            self.calls = frozenset(token for token, text in enumerate(texts) if text.endswith(tuple(ends)))
            if not self.calls:
                raise ConfigError(f"{FIELD}: no token of the model ends with one of {ends!r}; change its `ends`")
        self._stop = self.calls | frozenset(stop)

    def text(self, action: Sequence[int]) -> str:
        """The action as its environment reads it."""
        return str(self._tokenizer.decode(list(action), skip_special_tokens=True))

    def reply(self, last: int, messages: Messages) -> list[int]:
        """The tokens that follow an action whose last token is `last`. Raises DataError when the chat template refuses
        the messages."""
        plain = last in self.calls or not getattr(self._tokenizer, "chat_template", None)
        text = "".join(message["content"] for message in messages) if plain else self._written(last, messages)
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"]) if text else []

    def _written(self, last: int, messages: Messages) -> str:
        """What the chat template writes after the token `last` that ends the assistant's turn, up to its next turn.
        Earlier turns keep their tokens, so a template may write them otherwise now, as Qwen3's does with thoughts."""
        from jinja2 import TemplateError

        asked = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _SAID}]
        try:
            before, after = (
                rendered(self._tokenizer, said, reply=reply)
                for said, reply in ((asked, False), ([*asked, *messages], True))
            )
        except TemplateError as error:
            raise DataError(f"the chat template refuses the answer of the environment: {first_line(error)}") from None
        behind, rest = before.rpartition(_SAID)[2], after.rpartition(_SAID)[2]
        # the action has the token that ended it, which need not be the tokenizer's end of sequence
        ends = (self._tokenizer.decode([last]), self._tokenizer.eos_token)
        closing = next((behind.index(end) + len(end) for end in ends if end and end in behind), 0)
        if _SAID not in after or rest[:closing] != behind[:closing]:
            raise DataError("the chat template rewrites earlier turns when the environment answers; use another one")
        return rest[closing:]

    def retrace(self, response: Sequence[int]) -> Generator[str, Answer, Retraced]:
        """Repeats the actions of a response [R] that is known: yields each, and is sent its answer. Raises DataError
        when an answer differs from what follows the action."""
        mask, at = [True] * len(response), 0
        while True:
            end = next((k for k in range(at, len(response)) if response[k] in self._stop), len(response)) + 1
            if end >= len(response):
                return Retraced(mask, response[at:])
            answer = yield self.text(response[at:end])
            if answer.done and set(response[end:]) <= self._stop - self.calls:
                return Retraced(mask, [])  # a canonical solution has an end of sequence
            reply = self.reply(response[end - 1], answer.messages)
            at = end + len(reply)
            if answer.done or list(response[end:at]) != reply:
                found = "is over" if answer.done else f"answers {self.text(reply)[:60]!r}"
                raise DataError(
                    f"repeated, the environment {found} after {self.text(response[:end])[-60:]!r}, where "
                    f"{self.text(response[end : end + max(1, len(reply))])[:60]!r} was stored"
                )
            mask[end:at] = [False] * len(reply)
