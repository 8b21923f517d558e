"""Problems that are held out: which, and what is not trained on because of them."""

from pathlib import Path
from typing import Any

import pytest

from core.config import TaskConfig
from core.errors import DataError
from tasks.dialogue.chat import Message, dialogue_text, question_of
from tasks.held_out import split_items
from tasks.kinds import evaluation_prompts, task_items
from tasks.problems import Item, prompt_digest
from tests.tasks.test_eval_sets import write
from tests.tasks.test_problems import items


def test_held_out_prompts_do_not_depend_on_the_order_and_never_train() -> None:
    config = TaskConfig(name="gsm8k", path="x", eval_problems=7)
    train, evaluation, duplicates = split_items(config, [*items(40), *items(3)], None)
    again, evaluation_again, _ = split_items(config, items(40)[::-1], None)
    assert (len(train), len(evaluation), duplicates) == (33, 7, 3)
    assert {item.prompt for item in evaluation} == {item.prompt for item in evaluation_again}
    assert {item.prompt for item in train} == {item.prompt for item in again}
    assert not {item.prompt for item in train} & {item.prompt for item in evaluation}


def test_a_held_out_prompt_in_another_layout_is_not_trained_on() -> None:
    evaluation = [Item("How many apples?", "3")]
    rows = [Item("how many\n  APPLES?", "3"), Item("How many pears?", "3"), Item("How  many pears?", "3")]
    train, held, duplicates = split_items(TaskConfig(name="gsm8k", path="x", eval_path="y"), rows, evaluation)
    assert ([item.prompt for item in train], held, duplicates) == (["How many pears?"], evaluation, 1)


def test_training_rows_that_are_evaluation_prompts_are_dropped() -> None:
    config = TaskConfig(name="gsm8k", path="x", eval_problems=100)
    train, evaluation, _ = split_items(config, items(10), items(4))
    assert [item.prompt for item in train] == [f"question {i}" for i in range(4, 10)]
    assert len(evaluation) == 4
    few = config.model_copy(update={"eval_problems": 2})  # of the four: the others are not trained on either
    train, evaluation, _ = split_items(few, items(10), items(4))
    assert [item.prompt for item in train] == [f"question {i}" for i in range(4, 10)]
    assert [item.prompt for item in evaluation] == ["question 0", "question 1"]
    with pytest.raises(DataError, match="evaluation prompt"):
        split_items(config, items(4), items(10))


def test_holding_out_everything_is_an_error() -> None:
    with pytest.raises(DataError, match=r"task\.eval_problems = 10 of 10"):
        split_items(TaskConfig(name="gsm8k", path="x", eval_problems=10), items(10), None)


def test_problems_bounds_the_training_rows() -> None:
    train, _, _ = split_items(TaskConfig(name="gsm8k", path="x", eval_problems=2, problems=5), items(40), None)
    assert len(train) == 5


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("where", ["eval_path", "eval_sets"])
def test_a_held_out_question_is_known_with_and_without_a_system_message(
    tmp_path: Path, where: str, turned: bool
) -> None:
    """Rows as verl has them, and the same questions as plain text. Two are not held out."""
    answers = [{"answer": "#### 1"}] * 5
    plain = [{"question": f"{number}?", **one} for number, one in enumerate(answers)]
    asked = [[{"role": "system", "content": "Think."}, {"role": "user", "content": f" {n}? "}] for n in range(5)]
    system = [{"question": messages, **one} for messages, one in zip(asked, answers, strict=True)]
    learned, held_out = (plain, system) if turned else (system, plain)
    path, other = write(tmp_path / "train.jsonl", learned), write(tmp_path / "test.jsonl", held_out[:3])
    columns = {"prompt": "question", "answer": "answer"}
    fields: dict[str, Any] = {"name": "gsm8k", "path": path, "columns": columns, "eval_problems": 1}
    fields |= {where: other if where == "eval_path" else [{"label": "exam", "path": other}]}
    config = TaskConfig.model_validate(fields)
    items = task_items(config, 0)
    assert items.train
    assert all("3?" in item.prompt or "4?" in item.prompt for item in items.train)
    known = evaluation_prompts(config, 0)
    assert [prompt_digest(f"{number}?") in known for number in range(3)] == [True, True, True]


def dialogues(system: str, count: int) -> list[Item]:
    """The same questions under a system message."""
    asked = [(Message("system", system), Message("user", f"{number}?")) for number in range(count)]
    return [Item(dialogue_text(messages), "1", messages=messages) for messages in asked]


def test_a_question_under_several_system_messages_is_held_out_under_all() -> None:
    """Each system message has several questions."""
    config, plain = TaskConfig(name="gsm8k", path="x", eval_path="y"), [Item(f"{number}?", "1") for number in range(6)]
    both = [*dialogues("Think.", 3), *dialogues("Be brief.", 3)]
    for held_out in (both, dialogues("Think.", 3), [*dialogues("Think.", 3), Item("0?", "1")]):
        for rows in (plain, dialogues("Guess.", 6), [*plain, *dialogues("Guess.", 6)]):
            train, _, _ = split_items(config, rows, held_out)
            asked = {question_of(item.messages) or item.prompt for item in train}
            assert asked == {"3?", "4?", "5?"}
    train, held, _ = split_items(TaskConfig(name="gsm8k", path="x", eval_problems=2), [*both, *plain], None)
    asked, gone = ({question_of(item.messages) or item.prompt for item in some} for some in (train, held))
    assert not asked & gone


def test_a_question_without_words_holds_nothing_else_out() -> None:
    messages = (Message("system", "Solve 1+1."), Message("user", " "))
    held_out = [Item(dialogue_text(messages), "2", messages=messages)]
    train, _, _ = split_items(TaskConfig(name="gsm8k", path="x", eval_path="y"), items(4), held_out)
    assert len(train) == 4


def test_the_prompts_of_two_evaluation_sets_are_known_apart(tmp_path: Path) -> None:
    """They ask the same under different system messages."""
    columns, sets = {"prompt": "question", "answer": "answer"}, []
    for system in ("Think.", "Be brief."):
        rows = [
            {"question": [{"role": "system", "content": system}, {"role": "user", "content": f"{n}?"}], "answer": "1"}
            for n in range(3)
        ]
        sets.append({"label": system[:2], "path": write(tmp_path / f"{system[:2]}.jsonl", rows), "columns": columns})
    path = write(tmp_path / "train.jsonl", [{"question": f"{n}?", "answer": "1"} for n in range(5)])
    config = TaskConfig.model_validate(
        {"name": "gsm8k", "path": path, "columns": columns, "eval_problems": 1, "eval_sets": sets}
    )
    known = evaluation_prompts(config, 0)
    assert all(prompt_digest(f"{number}?") in known for number in range(3))


@pytest.mark.parametrize("given", [True, False])
def test_one_question_about_many_texts_is_held_out_with_its_text(given: bool) -> None:
    """The system message has the text."""
    rows = []
    for text in "abcdef":
        messages = (Message("system", text), Message("user", "Summarise the text."))
        rows.append(Item(dialogue_text(messages), "", messages=messages))
    config = TaskConfig(name="prompts", path="x", eval_path="y" if given else "", eval_problems=2)
    for count in (3, 1):
        train, held, _ = split_items(config, rows, rows[:count] if given else None)
        assert (len(train), len(held)) == (6 - count if given else 4, min(count, 2) if given else 2)
        assert not {item.prompt for item in train} & {item.prompt for item in held}
