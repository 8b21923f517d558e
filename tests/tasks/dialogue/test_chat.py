"""Dialogues as messages and as tokens: what is learned is exactly what the assistant says."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from tokenizers import Tokenizer as Tokenizers
from tokenizers import decoders, models, normalizers, processors
from transformers import PreTrainedTokenizerFast

from core.config import Columns, TaskConfig
from core.errors import DataError
from core.parts.judge import Asks, Case
from core.records import EMPTY, Finish, Problem, Rollout, Start, Verdict
from tasks.dialogue import chat
from tasks.dialogue.chat import Message
from tasks.kinds import find_kind, read_dialogue
from tasks.limits import TokenLimits
from tasks.problems import Items, LeftOut, Split, Tokenizer, encode_problems, load_items
from tasks.synthetic.corpus import END, character_tokenizer
from tasks.task import JudgedSource, Task

PRINTABLE = "".join(chr(code) for code in range(32, 127)) + "\n"
TURNS = "\n\nHuman: Hi\n\nAssistant: Hello.\nYou?\n\nHuman: Fine\n\nAssistant: Good"
MESSAGES = (
    Message("user", "Hi"),
    Message("assistant", "Hello.\nYou?"),
    Message("user", "Fine"),
    Message("assistant", "Good"),
)
MARKED = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{{ '<|endoftext|>' if m['role'] == 'assistant' }}\n"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture
def tokenizer() -> Tokenizer:
    return character_tokenizer(PRINTABLE)


def test_a_text_of_turns_and_a_list_of_messages_are_the_same_dialogue() -> None:
    as_objects = [{"role": message.role, "content": message.content} for message in MESSAGES]
    assert chat.read_messages(TURNS, "x") == chat.read_messages(as_objects, "x") == MESSAGES
    assert chat.read_messages("What is 1+1?", "x") == (Message("user", "What is 1+1?"),)
    kind = (Message("system", "Be kind."), *MESSAGES)
    assert chat.read_messages(f"Be kind.{TURNS}", "x") == chat.read_messages(f"System: Be kind.{TURNS}", "x") == kind
    assert chat.read_messages(chat.dialogue_text(kind[:2]), "x")[:2] == kind[:2]
    assert chat.load_messages(chat.dump_messages(MESSAGES)) == MESSAGES
    assert chat.read_messages(chat.dialogue_text(MESSAGES[:3]), "x") == (*MESSAGES[:3], Message("assistant", ""))


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("  ", "is str"),
        (None, "is empty"),
        (7, "is int"),
        ([{"role": "robot", "content": "x"}], "expected messages with role"),
        ([{"role": "user"}], "expected messages with role"),
    ],
)
def test_what_is_no_dialogue_is_named(value: object, why: str) -> None:
    with pytest.raises(DataError, match=why) as caught:
        chat.read_messages(value, "rows.jsonl: row 3")
    assert str(caught.value).startswith("rows.jsonl: row 3")


def test_without_a_chat_template_the_turns_are_written_as_in_hh(tokenizer: Tokenizer) -> None:
    found = chat.encode_dialogue(tokenizer, MESSAGES, "x")
    assert tokenizer.decode(found.ids) == TURNS + END
    assert tokenizer.decode([found.ids[at] for at in found.learned]) == "Hello.\nYou?Good" + END
    prompt = chat.prompt_ids(tokenizer, MESSAGES[:3], "x")
    assert found.ids[: len(prompt)] == prompt  # what a policy continues is what was learned


def test_a_chat_template_ends_the_turns_itself_and_what_follows_is_not_learned(tokenizer: Tokenizer) -> None:
    tokenizer.chat_template = MARKED
    found = chat.encode_dialogue(tokenizer, MESSAGES, "x")
    assert tokenizer.decode(found.ids) == f"<user>Hi\n<assistant>Hello.\nYou?{END}\n<user>Fine\n<assistant>Good{END}\n"
    assert tokenizer.decode([found.ids[at] for at in found.learned]) == f"Hello.\nYou?{END}Good{END}"
    assert chat.encode_dialogue(tokenizer, MESSAGES[:1], "x").learned == []


@pytest.mark.parametrize("template", [None, MARKED])
def test_an_empty_reply_ends_as_every_other(tokenizer: Tokenizer, template: str | None) -> None:
    tokenizer.chat_template = template
    found = chat.encode_dialogue(tokenizer, [MESSAGES[0], Message("assistant", "")], "x")
    assert tokenizer.decode([found.ids[at] for at in found.learned]) == END
    assert tokenizer.decode(found.ids).rstrip("\n").endswith(END)


def test_a_dialogue_that_the_template_refuses_is_named(tmp_path: Path, tokenizer: Tokenizer) -> None:
    tokenizer.chat_template = (
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system turn') }}{% endif %}" + MARKED
    )
    why = r"the chat template of the tokenizer refuses this dialogue \(no system turn\)"
    dialogue = (Message("system", "Be kind"), *MESSAGES)
    with pytest.raises(DataError, match=f"^f: row 7: {why}"):
        chat.encode_dialogue(tokenizer, dialogue, "f: row 7")
    file = tmp_path / "rows.jsonl"
    objects = [{"role": "system", "content": "Be kind"}, {"role": "user", "content": "Hi"}]
    file.write_text("".join(json.dumps({"prompt": row}) + "\n" for row in (TURNS, objects)))
    config = TaskConfig(name="dialogue", path=str(file))
    items = load_items(config, read_dialogue, str(file), "train", answers=False)
    with pytest.raises(DataError, match=rf"rows\.jsonl: row 2: {why}"):
        encode_problems(config, tokenizer, Items(items, items, LeftOut()), limits=TokenLimits(90, 20), context=8192)


@pytest.mark.parametrize(
    ("template", "begins"),
    [
        (None, "\n\nAssistant: "),
        (MARKED, "<assistant>"),
        (MARKED.replace("m['content']", "m['content'] | trim"), "<assistant>"),
        (
            "{% if messages[0]['role'] != 'system' %}<system>Be kind\n{% endif %}" + MARKED,
            "<system>Be kind\n<assistant>",
        ),
    ],
)
@pytest.mark.parametrize("said", ["Hello! You?", "assistant", "", "<"])
def test_what_an_assistant_says_first_is_learned(
    tokenizer: Tokenizer, template: str | None, begins: str, said: str
) -> None:
    tokenizer.chat_template = template
    found = chat.encode_dialogue(tokenizer, [Message("assistant", said), *MESSAGES[2:]], "x")
    assert tokenizer.decode(found.ids).startswith(f"{begins}{said}")
    assert tokenizer.decode([found.ids[at] for at in found.learned]) == f"{said}{END if template else ''}Good{END}"
    alone = chat.encode_dialogue(tokenizer, [Message("assistant", said)], "x")
    assert tokenizer.decode([alone.ids[at] for at in alone.learned]) == f"{said}{END}"


def test_tools_are_for_the_chat_template(tokenizer: Tokenizer) -> None:
    asked = [MESSAGES[0], Message("tools", '[{"name": "add"}]')]
    tokenizer.chat_template = "{{ tools[0].name }}" + MARKED
    assert tokenizer.decode(chat.prompt_ids(tokenizer, asked, "x")).startswith("add<user>Hi\n<assistant>")
    for template in (MARKED, None):
        tokenizer.chat_template = template
        with pytest.raises(DataError, match=r"row 1: .*tools"):
            chat.prompt_ids(tokenizer, asked, "row 1")


def test_a_template_that_rewrites_earlier_turns_is_refused(tokenizer: Tokenizer) -> None:
    tokenizer.chat_template = "{{ messages | length }}" + MARKED
    with pytest.raises(DataError, match=r"row 1: .*chat template"):
        chat.encode_dialogue(tokenizer, MESSAGES, "row 1")


def test_the_last_turn_of_the_assistant_is_the_canonical_solution(tmp_path: Path, tokenizer: Tokenizer) -> None:
    file = tmp_path / "rows.jsonl"
    objects = [{"role": "system", "content": "Be kind"}, {"role": "user", "content": "Hi"}]
    file.write_text("".join(json.dumps({"dialogue": row}) + "\n" for row in (TURNS, objects)))
    config = TaskConfig(name="dialogue", path=str(file), columns=Columns(prompt="dialogue"))
    first, second = load_items(config, read_dialogue, str(file), "train", answers=False)
    assert (first.solution, first.messages) == ("Good", MESSAGES[:3])
    assert chat.load_messages(first.reference) == MESSAGES[:3]
    assert (second.solution, second.prompt) == (None, "\n\nSystem: Be kind\n\nHuman: Hi\n\nAssistant:")
    split, _ = encode_problems(
        config, tokenizer, Items([first], [second], LeftOut()), limits=TokenLimits(90, 20), context=8192
    )
    assert tokenizer.decode(split.train[0].prompt_ids) == TURNS.removesuffix("Good")
    file.write_text(json.dumps({"dialogue": "\n\nAssistant: Hello"}))
    with pytest.raises(DataError, match=r"row 1: column 'dialogue' \(task\.columns\.prompt\)"):
        load_items(config, read_dialogue, str(file), "train", answers=False)


def ending_tokenizer(single: str) -> Tokenizer:
    """Adds special tokens to every text."""
    made = character_tokenizer(PRINTABLE)
    end = str(made.eos_token)
    made.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=single.replace("END", end), special_tokens=[(end, made.eos_token_id)]
    )
    return made


def test_a_prompt_has_no_end_of_sequence_behind_it() -> None:
    made = ending_tokenizer("$A END")
    assert chat.text_ids(made, "Hi") == made("Hi")["input_ids"][:-1]
    assert chat.text_ids(character_tokenizer(PRINTABLE), "Hi") == made("Hi")["input_ids"][:-1]


def test_a_dialogue_without_a_template_begins_as_a_text_does() -> None:
    made = ending_tokenizer("END $A")
    text, dialogue = chat.text_ids(made, "Hi"), chat.prompt_ids(made, MESSAGES[:1], "x")
    assert text[0] == dialogue[0] == made.eos_token_id
    assert dialogue.count(made.eos_token_id) == 1
    learned = chat.encode_dialogue(made, MESSAGES[:2], "x")
    assert learned.ids[: len(dialogue)] == dialogue


@pytest.mark.parametrize("template", [None, MARKED])
def test_a_response_continues_what_the_assistant_has_begun(tokenizer: Tokenizer, template: str | None) -> None:
    tokenizer.chat_template = template
    ids = chat.prompt_ids(tokenizer, [MESSAGES[0], Message("assistant", "The answer is ")], "x")
    assert tokenizer.decode(ids).endswith("The answer is")
    asked = chat.prompt_ids(tokenizer, MESSAGES[:1], "x")
    assert chat.prompt_ids(tokenizer, [MESSAGES[0], Message("assistant", " ")], "x") == asked  # nothing is begun
    tokenizer.chat_template = MARKED.replace("{{ m['content'] }}", "{{ m['content'] | upper }}")
    with pytest.raises(DataError, match="row 3"):
        chat.prompt_ids(tokenizer, MESSAGES[:2], "row 3")


def test_blanks_at_the_beginning_of_a_response_stay() -> None:
    """Pieces as Llama 2 has them: a text begins with a blank, which decoding drops."""
    pieces = {"<unk>": 0, "</s>": 1, "▁▁▁▁": 2, "▁": 3, "x": 4, "return": 5}
    made = Tokenizers(models.BPE(vocab=pieces, merges=[], unk_token="<unk>"))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    llama = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="</s>", unk_token="<unk>")
    anchor = chat.anchor_of(llama)
    assert llama.decode([2, 5]) == "   return"
    assert llama.decode([*anchor, 2, 5]).removeprefix(llama.decode(anchor)) == "    return"
    seen = list[str]()

    class Seeing:
        asks = Asks()

        def judge(self, cases: Sequence[Case]) -> list[Verdict]:
            seen.extend(case.response for case in cases)
            return [Verdict(0.0, False) for _ in cases]

    problem, ids = Problem("p", np.array([4], np.int32), "reference"), np.array([2, 5], np.int32)
    judged = {"": JudgedSource(1.0, find_kind("humaneval"), cast(Any, Seeing()))}
    task = Task(judged, Split([problem], [], LeftOut(0, 0), []), TokenLimits(9, 9), llama, "", {}, {})
    start, none = Start("s", "p", problem.prompt_ids, EMPTY, 1, 0), np.zeros(2, np.int32)
    task.judge([Rollout(start, 0, ids, none.astype(np.float32), none, Finish.STOP)])
    assert seen == ["    return"]  # a line of Python
    assert chat.anchor_of(character_tokenizer(PRINTABLE)) == []
