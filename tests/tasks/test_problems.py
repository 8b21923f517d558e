"""From rows to problems: columns, template, filters, held-out split."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from core.config import Columns, FewShot, TaskConfig
from core.errors import ConfigError, DataError
from tasks.dialogue.chat import Message
from tasks.kinds import task_items
from tasks.limits import TokenLimits
from tasks.mathematics.answers import read_gsm8k
from tasks.problems import (
    Item,
    Items,
    LeftOut,
    PromptForm,
    Tokenizer,
    encode_problems,
    level_of,
    load_items,
    prompt_form,
    render_item,
)
from tasks.sources import BadRowsError, list_bad_rows
from tasks.synthetic.corpus import character_tokenizer

CHARACTERS = "".join(chr(code) for code in range(32, 127)) + "\n"


def items(count: int) -> list[Item]:
    return [Item(f"question {i}", str(i), solution=f"#### {i}") for i in range(count)]


def test_long_prompts_are_left_out_and_long_solutions_not_used() -> None:
    config, form = TaskConfig(name="gsm8k", path="x"), PromptForm("Q: {prompt} A:")
    tokenizer = character_tokenizer(CHARACTERS)
    given_items = [
        Item(prompt, "1", solution=solution, form=form)
        for prompt, solution in (("1", "12345"), ("12", "123456"), ("123", "1"))
    ]
    # one token a character: the template adds 6; the end of sequence adds 1 to a solution
    split, _ = encode_problems(
        config, tokenizer, Items(given_items, given_items[:1], LeftOut()), limits=TokenLimits(8, 6), context=8192
    )
    assert [len(problem.prompt_ids) for problem in split.train] == [7, 8]
    solutions = [None if p.solution_ids is None else p.solution_ids.tolist() for p in split.train]
    assert solutions[1] is None
    assert solutions[0] == [*tokenizer("12345")["input_ids"], tokenizer.eos_token_id]
    assert (split.left_out.long_prompts, split.left_out.long_solutions) == (1, 1)
    with pytest.raises(DataError, match=r"all 3 .*rollout\.max_prompt_tokens = 6"):
        encode_problems(config, tokenizer, Items(given_items, [], LeftOut()), limits=TokenLimits(6, 6), context=8192)


@pytest.mark.parametrize(
    ("limits", "context", "named"),
    [
        ((None, 512), 512, r"the 0 tokens that rollout\.max_response_tokens = 512 .* of 512"),
        ((None, 511), 512, r"the 0 tokens that rollout\.max_response_tokens = 511 .* of 512"),
        ((None, 505), 512, r"the 6 tokens that rollout\.max_response_tokens = 505 .* of 512"),
        ((None, 600), 512, r"the 0 tokens that rollout\.max_response_tokens = 600 .* of 512"),
        ((6, 506), 512, r"rollout\.max_prompt_tokens = 6"),
        ((None, None), 12, r"set rollout\.max_prompt_tokens"),
        ((None, 4), 12, r"set rollout\.max_prompt_tokens"),
    ],
)
def test_too_little_room_for_a_prompt_names_the_setting(
    limits: tuple[int | None, int | None], context: int, named: str
) -> None:
    items = [Item(prompt, "1", form=PromptForm("Q: {prompt} A:")) for prompt in ("1", "12")]  # 7 and 8 tokens
    with pytest.raises(DataError, match=named) as refused:
        encode_problems(
            TaskConfig(name="gsm8k", path="x"),
            character_tokenizer(CHARACTERS),
            Items(items, items, LeftOut()),
            limits,
            context,
        )
    assert "-" not in str(refused.value)


def rendered(tokenizer: Tokenizer, template: str, question: str) -> str:
    form, _ = prompt_form(TaskConfig(name="gsm8k", template=template), ("question", "answer"))
    return str(tokenizer.decode(render_item(tokenizer, Item(question, "", form=form))))


def test_the_template_may_hold_braces_and_must_hold_the_prompt() -> None:
    tokenizer = character_tokenizer(CHARACTERS)
    assert rendered(tokenizer, r"Put it in \boxed{}: {prompt}", "{x}") == r"Put it in \boxed{}: {x}"
    # a group of LaTeX is no column, not even of that name; nor is a set, nor what has two pairs of braces
    for text in (r"\boxed{answer} {prompt}", r"\frac{a}{b} x^{n} {1, 2} {prompt}", "{{prompt}}"):
        assert rendered(tokenizer, text, "q") == text.replace("{prompt}", "q")
    assert rendered(tokenizer, "as {{key}}: {prompt}", "q") == "as {key}: q"
    with pytest.raises(ConfigError, match=r"names \{extra\.question\}, which is no column"):
        prompt_form(TaskConfig(template="{prompt} {extra.question}"), ("extra", "prompt"))
    with pytest.raises(ConfigError, match=r"task\.template = 'Q:'"):
        prompt_form(TaskConfig(template="Q:"))


def test_the_chat_template_is_put_around_the_prompt() -> None:
    tokenizer = character_tokenizer(CHARACTERS)
    tokenizer.chat_template = (
        "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
        "{% if add_generation_prompt %}[bot]{% endif %}"
    )
    assert rendered(tokenizer, "Q {prompt}", "1+1") == "[user]Q 1+1[bot]"
    form = PromptForm("Q {prompt}", "Add.", (FewShot(prompt="1+2", response="3"),))
    shown = "[system]Add.[user]Q 1+2[assistant]3[user]Q 1+1[bot]"
    assert tokenizer.decode(render_item(tokenizer, Item("1+1", "", form=form))) == shown
    dialogue = (Message("system", "Be kind."), Message("user", "Hi"))  # its own system message stays
    shown = "[system]Be kind.[user]Q 1+2[assistant]3[user]Q Hi[bot]"
    assert tokenizer.decode(render_item(tokenizer, Item("", "", messages=dialogue, form=form))) == shown


def test_without_a_chat_template_system_prompt_and_examples_are_text() -> None:
    tokenizer = character_tokenizer(CHARACTERS)
    form = PromptForm("Q: {prompt}\nA: ", "Add.", (FewShot(prompt="1+2", response="3"),))
    text = "Add.\n\nQ: 1+2\nA: 3\n\nQ: 1+1\nA: "
    assert tokenizer.decode(render_item(tokenizer, Item("1+1", "", form=form))) == text


SVAMP = {"Body": "There are 5 pens.", "Question": "How many pens?", "Answer": 5.0}


def svamp(path: Path, rows: Sequence[Mapping[str, object]], **changes: object) -> TaskConfig:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = TaskConfig(
        name="gsm8k", path=str(path), template="Q: {Body} {Question}\nA: ", columns=Columns(answer="Answer")
    )
    return config.model_copy(update=changes)


def test_a_template_over_several_columns_tells_problems_apart_by_all_of_them(tmp_path: Path) -> None:
    other = SVAMP | {"Body": "There are 6 pens.", "Answer": 6.0}
    config = svamp(tmp_path / "svamp.jsonl", [SVAMP, other, SVAMP, SVAMP | {"Body": None}], eval_problems=1)
    items = task_items(config, 0)
    texts = {item.form.text(item.prompt) for item in (*items.train, *items.evaluation)}
    assert texts == {
        "Q: There are 5 pens. How many pens?\nA: ",
        "Q: There are 6 pens. How many pens?\nA: ",
        "Q: How many pens?\nA: ",  # an empty column
    }
    assert items.left_out.duplicates == 1
    with_prompt = config.model_copy(
        update={"template": "{Body} {prompt}", "columns": Columns(prompt="Question", answer="Answer")}
    )
    assert {item.prompt for item in task_items(with_prompt, 0).train} <= {text[3:-4] for text in texts}


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{Body} {Qestion}", r"task.template names \{Qestion\}, which is no column; the nearest is 'Question'"),
        (
            "{Body} {Answer}",
            r"task.template names \{Answer\}, the column of task.columns.answer: prompts would show it",
        ),
    ],
)
def test_a_template_that_names_the_wrong_column_is_refused(tmp_path: Path, template: str, why: str) -> None:
    config = svamp(tmp_path / "svamp.jsonl", [SVAMP], template=template)
    with pytest.raises(ConfigError, match=why):
        task_items(config, 0)


def test_an_example_that_is_an_evaluation_problem_is_refused(tmp_path: Path) -> None:
    rows = [SVAMP, SVAMP | {"Body": "There are 6 pens."}]
    config = svamp(tmp_path / "svamp.jsonl", rows, eval_problems=1)
    held_out = task_items(config, 0).evaluation[0].prompt
    shown = config.model_copy(update={"examples": (FewShot(prompt=held_out, response="5"),)})
    with pytest.raises(DataError, match=r"task\.examples: 'There are . pens"):
        task_items(shown, 0)


def test_bad_rows_are_refused_together_or_skipped_and_counted(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    good = [json.dumps({"question": f"{i}+1?", "answer": f"#### {i + 1}"}) for i in range(4)]
    bad = ['{"question": " ", "answer": "#### 2"}', "{", '{"question": "2?"}', '{"question": "", "answer": "#### 2"}']
    file.write_text("\n".join([good[0], *bad, *good[1:]]) + "\n")
    config = TaskConfig(name="gsm8k", path=str(file), eval_problems=1, columns=Columns(prompt="question"))
    with pytest.raises(BadRowsError) as caught:
        task_items(config, 0)
    empty = "column 'question' (task.columns.prompt) is empty"
    assert str(caught.value) == (
        f"{file}: row 2: {empty}; fix or delete the row (4 bad rows: `launch.py check` lists them, task.bad_rows skip "
        "leaves "
        f"them out)"
    )
    lines = list_bad_rows(caught.value.rows).splitlines()
    assert lines[:2] == ["bad rows: 4", f"      2  {empty}; the first is {file}: row 2"]
    assert lines[2].startswith("      1  not valid JSON (")
    assert lines[2].endswith(f"; the first is {file}: line 3")
    assert lines[3].startswith("      1  has no column 'answer' (task.columns.answer); its columns are question;")
    kept = task_items(config.model_copy(update={"bad_rows": "skip"}), 0)
    assert {item.prompt for item in (*kept.train, *kept.evaluation)} == {f"{i}+1?" for i in range(4)}
    assert str(kept.left_out).endswith("; 4 bad rows skipped")
    assert {item.where for item in kept.train} <= {f"{file}: row {number}" for number in (1, 6, 7, 8)}
    file.write_text(bad[1])
    with pytest.raises(BadRowsError, match=r"\(1 bad row\); .*: line 1: "):
        task_items(config.model_copy(update={"bad_rows": "skip"}), 0)


def test_prompts_that_the_chat_template_refuses_are_bad_rows() -> None:
    tokenizer = character_tokenizer(CHARACTERS)
    tokenizer.chat_template = "{% if messages[0]['content'] == 'bad' %}{{ raise_exception('no') }}{% endif %}ok"
    given = Items([Item("bad", "1", where="f: row 1"), Item("good", "1")], [Item("other", "1")], LeftOut())
    config = TaskConfig(name="gsm8k")
    with pytest.raises(BadRowsError, match=r"^f: row 1: .*chat template.* \(1 bad row"):
        encode_problems(config, tokenizer, given, TokenLimits(9, 9), 8192)
    split, _ = encode_problems(
        config.model_copy(update={"bad_rows": "skip"}), tokenizer, given, TokenLimits(9, 9), 8192
    )
    assert (len(split.train), len(split.left_out.bad_rows)) == (1, 1)


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
    assert "row 1: column 'question' (task.columns.prompt): expected messages with role" in message(
        {**good, "question": ["a"]}
    )
    assert "row 2: column 'answer' has no number after '####'" in message(good, {**good, "answer": "#### many"})
    assert "row 1: column 'answer' (task.columns.answer) is nan; fix" in message({**good, "answer": float("nan")})
    assert "row 1 has no column 'answer'" in message({"question": "1+1?", "answers": "#### 2"})


def test_a_row_without_a_level_is_of_no_group() -> None:
    columns = Columns(level="level")
    assert [level_of({"level": level}, columns) for level in (None, 3, "hard")] == ["", "3", "hard"]
