"""Chat templates: the date that they write."""

from datetime import date

import pytest
from transformers.utils import chat_template_utils

from core.environments.templates import rendered
from tasks.synthetic.corpus import character_tokenizer

SAID = [{"role": "user", "content": "a"}]


class Later(chat_template_utils.datetime):  # type: ignore[misc]
    """A clock on another day."""

    @classmethod
    def now(cls, *_: object) -> "Later":
        return cls(2031, 1, 2, 3, 4, 5)


def test_a_template_with_a_date_writes_that_of_the_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = character_tokenizer("a")
    tokenizer.chat_template = "{{ strftime_now('%d %b %y %H:%M:%S') }} {{ messages[0].content }}"
    tokenizer.template_date = date(2026, 11, 28)
    then = rendered(tokenizer, SAID, reply=True)
    assert "28" in then
    monkeypatch.setattr(chat_template_utils, "datetime", Later)
    assert rendered(tokenizer, SAID, reply=True) == then
    tokenizer.template_date = None
    assert "31" in rendered(tokenizer, SAID, reply=True)
