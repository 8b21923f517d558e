"""Chat templates: the date that they write."""

import resource
from datetime import date
from functools import partial

import pytest
from transformers.utils import chat_template_utils

from core.environments.templates import rendered
from core.errors import RetrospectError
from core.machine import bounded
from tasks.dialogue.chat import Message, chat_text
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


FAULTY = {
    "division": "{{ 1 / (messages | length - 1) }}",
    "type": "{{ messages + 1 }}",
    "recursion": "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
    "syntax": "{% for m in messages %}",
    "unknown filter": "{{ messages | nothing }}",
    "range": "{% for i in range(10 ** 9) %}{% endfor %}",
    "loops": "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}",
    "power": "{{ (3 ** (10 ** 9)) % 10 }}",
    "digits": "{{ 9 ** 99999 }}",
    "text": "{{ 'a' * 10 ** 11 }}",
    "doubling": "{% set n = namespace(t='a') %}{% for i in range(99) %}{% set n.t = n.t + n.t %}{% endfor %}{{ n.t }}",
    "list": "{{ [0] * 10 ** 11 }}",
    "output": "{% for i in range(90000) %}{{ messages[0].content }} and more of the same{% endfor %}",
    "format": "{{ '%99999999999d' % 1 }}",
    "center": "{{ 'a' | center(10 ** 11) }}",
    "index": "{{ ('a' | list)[3] + 1 }}",
    "nested": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "encoding": "{{ 'a'.encode('nothing') }}",
    "attribute": "{{ (1).nothing() }}",
    "key": "{{ {}.popitem() }}",
    "int": "{{ 'x'.split('') }}",
    "date": "{{ strftime_now(7) }}",
}


@pytest.mark.parametrize("template", FAULTY.values(), ids=FAULTY)
def test_a_template_that_fails_or_has_no_end_is_one_line(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.dialogue.chat.bounded", partial(bounded, 1.0))
    tokenizer = character_tokenizer("a")
    tokenizer.chat_template, tokenizer.name_or_path = template, "some/model"
    limit = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(RetrospectError, match="chat template") as error:
        chat_text(tokenizer, [Message("user", "a")], "row 1", reply=True)
    assert "\n" not in str(error.value)
    assert resource.getrlimit(resource.RLIMIT_AS) == limit
