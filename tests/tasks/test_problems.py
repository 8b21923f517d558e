"""From rows to problems: columns, template, filters, held-out split."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from core.config import Columns, TaskConfig
from core.errors import ConfigError, DataError
from tasks.corpus import character_tokenizer
from tasks.mathematics.answers import read_gsm8k
from tasks.problems import Item, encode_problems, load_items, render_item, split_items

CHARACTERS = "".join(chr(code) for code in range(32, 127)) + "\n"


def items(count: int) -> list[Item]:
    return [Item(f"question {i}", str(i), solution=f"#### {i}") for i in range(count)]


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
    with pytest.raises(DataError, match="every prompt is also an evaluation prompt"):
        split_items(config, items(4), items(10))


def test_holding_out_everything_is_an_error() -> None:
    with pytest.raises(DataError, match=r"task.eval_problems = 10 of 10 distinct prompts"):
        split_items(TaskConfig(name="gsm8k", path="x", eval_problems=10), items(10), None)


def test_problems_bounds_the_training_rows() -> None:
    train, _, _ = split_items(TaskConfig(name="gsm8k", path="x", eval_problems=2, problems=5), items(40), None)
    assert len(train) == 5


def test_long_prompts_are_left_out_and_long_solutions_not_used() -> None:
    config = TaskConfig(name="gsm8k", path="x", template="Q: {prompt} A:")
    tokenizer = character_tokenizer(CHARACTERS)
    given_items = [Item("1", "1", solution="12345"), Item("12", "1", solution="123456"), Item("123", "1", solution="1")]
    # one token a character: the template adds 6; the end of sequence adds 1 to a solution
    split = encode_problems(
        config, tokenizer, (given_items, given_items[:1], 0), max_prompt_tokens=8, max_response_tokens=6
    )
    assert [len(problem.prompt_ids) for problem in split.train] == [7, 8]
    solutions = [None if p.solution_ids is None else p.solution_ids.tolist() for p in split.train]
    assert solutions[1] is None
    assert solutions[0] == [*tokenizer("12345")["input_ids"], tokenizer.eos_token_id]
    assert (split.left_out.long_prompts, split.left_out.long_solutions) == (1, 1)
    with pytest.raises(DataError, match=r"all 3 training prompts are longer than rollout\.max_prompt_tokens = 6"):
        encode_problems(config, tokenizer, (given_items, [], 0), max_prompt_tokens=6, max_response_tokens=6)


def test_the_template_may_hold_braces_and_must_hold_the_prompt() -> None:
    tokenizer = character_tokenizer(CHARACTERS)
    text = tokenizer.decode(render_item(r"Put it in \boxed{}: {prompt}", tokenizer, Item("{x}", "")))
    assert text == r"Put it in \boxed{}: {x}"
    with pytest.raises(ConfigError, match=r"has no \{prompt\}"):
        encode_problems(
            TaskConfig(template="Q:"),
            tokenizer,
            (items(1), items(1), 0),
            max_prompt_tokens=9,
            max_response_tokens=9,
        )


def test_the_chat_template_is_put_around_the_prompt() -> None:
    tokenizer = character_tokenizer(CHARACTERS)
    tokenizer.chat_template = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}[bot]{% endif %}"
    assert tokenizer.decode(render_item("Q {prompt}", tokenizer, Item("1+1", ""))) == "[user]Q 1+1[bot]"


def test_bad_rows_are_named(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    config = TaskConfig(name="gsm8k", path=str(file), columns=Columns(prompt="question", answer="answer"))

    def message(*rows: Mapping[str, object]) -> str:
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        with pytest.raises(DataError) as caught:
            load_items(config, read_gsm8k, str(file), "train")
        return str(caught.value)

    good = {"question": "1+1?", "answer": "steps\n#### 2"}
    assert "row 2: column 'question' (task.columns.prompt) is empty" in message(good, {**good, "question": " \n"})
    assert "row 1: column 'question' (task.columns.prompt) is empty" in message({**good, "question": None})
    assert "row 1: column 'question' (task.columns.prompt) is list, not text" in message({**good, "question": ["a"]})
    assert "row 2: column 'answer' has no number after '####'" in message(good, {**good, "answer": "#### many"})
    assert "row 1: column 'answer' (task.columns.answer) is nan; fix" in message({**good, "answer": float("nan")})
    assert "row 1 has no column 'answer'" in message({"question": "1+1?", "answers": "#### 2"})
