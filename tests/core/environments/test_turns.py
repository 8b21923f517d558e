"""Turns as tokens: where actions end, what follows them, and what a whole response tells."""

import re
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from bench.tasks.calculator import Calculator
from core.environments.protocol import Answer, Messages, load_environment
from core.environments.served import Served
from core.environments.turns import Retraced, TurnTokens
from core.errors import ConfigError, DataError
from core.records import Finish, IntArray, Rollout, Start, World
from tasks.synthetic.corpus import character_tokenizer

TOKENIZER = character_tokenizer("0123456789+-*=[]#\nero")
EOS = TOKENIZER.eos_token_id
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def ids(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False))


def tool(content: str) -> Messages:
    return [{"role": "tool", "content": content}]


def calculator() -> TurnTokens:
    return TurnTokens(TOKENIZER, Calculator.ends, [EOS])


def retraced(turns: TurnTokens, response: list[int]) -> Retraced:
    """A response, repeated with the calculator."""
    world, past = Calculator(), turns.retrace(response)
    try:
        action = next(past)
        while True:
            messages, reward, done, _ = world.step(action)
            action = past.send(Answer(messages, reward, done))
    except StopIteration as found:
        return cast(Retraced, found.value)


def chat_tokenizer(template: str = CHAT) -> Any:
    tokenizer = character_tokenizer("".join(map(chr, range(32, 127))) + "\n")
    tokenizer.add_special_tokens({"eos_token": "<|im_end|>", "additional_special_tokens": ["<|im_start|>"]})
    tokenizer.chat_template = template
    return tokenizer


def test_the_tokens_that_end_actions_and_what_follows_them() -> None:
    turns = calculator()
    assert turns.calls == set(ids("="))
    assert turns.text([*ids("[12*7="), EOS]) == "[12*7="
    assert turns.reply(ids("=")[0], tool("84]\n")) == ids("84]\n")
    assert turns.reply(ids("=")[0], []) == []
    assert TurnTokens(TOKENIZER, "", [EOS]).calls == set()
    with pytest.raises(ConfigError, match=r"rollout\.environment.*'\?'"):
        TurnTokens(TOKENIZER, "?", [EOS])


def test_a_whole_response_tells_which_tokens_were_answers() -> None:
    text = "[2*3=6]\n[6+4=10]\n#10"
    own = retraced(calculator(), [*ids(text), EOS]).mask
    assert [character for character, mine in zip(text, own, strict=False) if not mine] == [*"6]\n10]\n"]
    assert own[-1]
    assert all(retraced(calculator(), ids("[2*3=")).mask)
    assert retraced(calculator(), ids("[2*3=6]\n")) == ([True] * 5 + [False] * 3, [])
    assert retraced(calculator(), ids("[2*3=6]\n[6+")).rest == ids("[6+")


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("[2*3=6]\n[6+4=11]\n#11", r"answers '10\]\\n' after '.*6\+4=', where '11\]\\n' was stored"),
        ("[2*3=6", r"answers '6\]\\n' after '\[2\*3=', where '6' was stored"),
        ("#6", r"is over after '#6', where '#' was stored"),
    ],
)
def test_a_response_with_another_answer_is_refused(text: str, wrong: str) -> None:
    more = [*ids(text), EOS, *ids("#")] if text == "#6" else ids(text)
    with pytest.raises(DataError, match=f"repeated, the environment {wrong}"):
        retraced(calculator(), more)


def test_turns_are_those_of_the_chat_template_and_earlier_tokens_stay() -> None:
    """The whole dialogue as the template writes it, with other tokens for the same text in the policy's turn."""
    tokenizer = chat_tokenizer()
    turns = TurnTokens(tokenizer, "", [tokenizer.eos_token_id])
    said = [{"role": "user", "content": "Go."}, {"role": "assistant", "content": "left"}]
    answer = [{"role": "tool", "content": "a door"}, {"role": "user", "content": "And now?"}]
    prompt = tokenizer.apply_chat_template(said[:1], add_generation_prompt=True, tokenize=False)
    whole = tokenizer.apply_chat_template([*said, *answer], add_generation_prompt=True, tokenize=False)
    action = [*tokenizer("left")["input_ids"], tokenizer.eos_token_id]
    context = [*tokenizer(prompt)["input_ids"], *action, *turns.reply(action[-1], answer)]
    assert context == tokenizer(whole)["input_ids"]
    assert tokenizer.decode(turns.reply(action[-1], [])) == "\n<|im_start|>assistant\n"


def test_an_answer_does_not_repeat_the_token_that_ended_the_turn() -> None:
    """Gemma and Phi end a turn with a token that is not the tokenizer's end of sequence."""
    tokenizer = chat_tokenizer()
    ended, tokenizer.eos_token = tokenizer.eos_token_id, tokenizer.pad_token
    reply = TurnTokens(tokenizer, "", [ended]).reply(ended, tool("84"))
    assert ended not in reply[:1]
    assert tokenizer.decode(reply).startswith("\n<|im_start|>tool\n84")


def test_a_template_may_write_earlier_turns_otherwise_after_a_user_has_answered() -> None:
    """Qwen3's writes an empty thought before the last answer alone."""
    thinking = CHAT.replace(
        "{{ m.content }}", "{% if loop.last and m.role == 'assistant' %}<think></think>{% endif %}{{ m.content }}"
    )
    plain, tokenizer = chat_tokenizer(), chat_tokenizer(thinking)
    answer = [{"role": "user", "content": "3"}]
    replies = [TurnTokens(one, "", [one.eos_token_id]).reply(one.eos_token_id, answer) for one in (plain, tokenizer)]
    assert replies[0] == replies[1]


def test_a_template_that_refuses_an_answer_is_named() -> None:
    refusing = CHAT.replace(
        "{% for m in messages %}",
        "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}",
    )
    rewriting = CHAT.replace("{{ m.content }}", "{{ m.content if loop.last or m.role == 'user' else 'gone' }}")
    for template, wrong in (
        (refusing, "refuses the answer of the environment: no tools"),
        (rewriting, "rewrites earlier turns"),
    ):
        tokenizer = chat_tokenizer(template)
        with pytest.raises(DataError, match=wrong):
            TurnTokens(tokenizer, "", [tokenizer.eos_token_id]).reply(tokenizer.eos_token_id, tool("84"))


def test_states_begin_after_answers_and_never_inside_or_before_one() -> None:
    """Tokens 0 1 (prefix) | 2 3 t t 6 t 8 9: states after 2 (in the policy's part), 6 and 8 tokens... by the mask
    below."""
    start = Start("s", "p", np.array([9], np.int32), np.array([0, 1], np.int32), 1, seed=0)
    mask = np.array([1, 1, 0, 0, 1, 0, 1, 1], np.bool_)  # lengths 2 .. 9: continuation token L - 2 comes next
    tokens = np.arange(2, 10, dtype=np.int32)
    trajectory = Rollout(start, 0, tokens, np.zeros(8, np.float32), np.zeros(8, np.int32), Finish.STOP, mask)

    def _every(response: IntArray) -> IntArray:
        return np.arange(1, len(response), dtype=np.int32)

    # every length: 3 goes on with token 3 (mask 1), 4 and 5 with the answer, 6 with the policy, 7 with the answer, 8
    # and 9 too
    assert trajectory.states(_every).tolist() == [3, 6, 8, 9]
    # no boundary at all, as in episodes: the ends of the two answers are states, 2 + 4 and 2 + 6
    assert trajectory.states(lambda _: np.zeros(0, np.int32)).tolist() == [6, 8]
    assert trajectory.generated.tolist() == mask.tolist()


def test_the_environments_of_the_documents_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[3] / "docs" / "environments.md").read_text(encoding="utf-8")
    for name, example in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", text, re.DOTALL):
        (tmp_path / name).write_text(example, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    shop = load_environment("my_environments:Shop")()
    assert shop.reset(World("p", "What is an apple?", "0.40")) == []
    assert shop.step("PRICE(apple)") == ([{"role": "user", "content": "0.40"}], 0.0, False, {})
    assert shop.step("0.40") == ([], 1.0, True, {"correct": True})
    with closing(Served("my_agents:buy")) as bought:
        asked, tools = bought.reset(World("p", "What is an apple?", "0.40"))
        assert (asked["content"], tools["role"]) == ("What is an apple?", "tools")
        call = '<tool_call>{"name": "price", "arguments": {"fruit": "apple"}}</tool_call>'
        assert bought.step(call) == ([{"role": "tool", "content": "0.40"}], 0.0, False, {})
        assert bought.step("0.40") == ([], 1.0, True, {})
