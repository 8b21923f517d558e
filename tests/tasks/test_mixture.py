"""A mixture of data sets: its configuration, what is held out of all of them, and each response judged as its data set
asks."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.config import Config, TaskConfig, task_sources
from core.errors import ConfigError, DataError
from core.load import dump_config, override, parse_config
from core.plan import placement
from core.records import Finish, Problem, Rollout, Start
from tasks.kinds import evaluation_prompts, task_items
from tasks.limits import TokenLimits
from tasks.problems import Items, LeftOut, encode_problems, prompt_digest
from tasks.synthetic.corpus import character_tokenizer
from tasks.task import Task, build_task

CHARACTERS = "".join(chr(code) for code in range(32, 127)) + "\n"
TWO: dict[str, Any] = {
    "name": "gsm8k",
    "eval_problems": 1,
    "judge_timeout": 60.0,  # the machine may be busy
    "columns": {"prompt": "q", "answer": "a", "solution": "a"},
    "sources": [
        {"path": "words.jsonl", "label": "words", "weight": 3, "template": "Q: {prompt}"},
        {"path": "maths.jsonl.gz", "name": "math", "examples": [{"prompt": "1", "response": r"\boxed{1}"}]},
    ],
}


def two(folder: Path, **changes: Any) -> TaskConfig:
    """Four word problems and three of mathematics; "shared" is in both."""
    words = [{"q": text, "a": f"#### {i}"} for i, text in enumerate(("one", "two", "shared", "four"))]
    maths = [{"q": text, "a": f"so \\boxed{{{i}}}"} for i, text in enumerate(("Shared", "x", "y"))]
    (folder / "words.jsonl").write_text("".join(json.dumps(row) + "\n" for row in words))
    (folder / "maths.jsonl.gz").write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in maths).encode()))
    sources = [source | {"path": str(folder / source["path"])} for source in TWO["sources"]]
    return TaskConfig.model_validate(TWO | {"sources": sources} | changes)


def test_a_data_set_takes_what_it_leaves_out_from_the_task_section() -> None:
    config = parse_config({"task": TWO}, "test")
    first, second = task_sources(config.task)
    assert [(source.label, source.weight, source.config.name) for source in (first, second)] == [
        ("words", 3.0, "gsm8k"),
        ("math", 1.0, "math"),
    ]
    assert (first.config.template, second.config.template) == ("Q: {prompt}", "{prompt}")
    assert first.config.columns == second.config.columns == config.task.columns
    assert first.config.sources == ()
    assert task_sources(first.config) == (("", 1.0, first.config),)
    longer = override(config, ["--task.judge_timeout", "7"])  # also after the file was read
    assert [source.config.judge_timeout for source in task_sources(longer.task)] == [7.0, 7.0]
    import yaml

    assert parse_config(yaml.safe_load(dump_config(config)), "dump") == config
    assert override(Config(), ["--task.sources", json.dumps(TWO["sources"])]).task.sources == config.task.sources


def test_mistakes_in_a_mixture_are_one_line() -> None:
    def message(**task: Any) -> str:
        with pytest.raises(ConfigError) as caught:
            parse_config({"task": task}, "test")
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "task.sources: two data sets are called 'math'; give each a label" in message(sources=[{"name": "math"}] * 2)
    unknown = "unknown key 'task.sources.0.pth'; the nearest valid name is 'task.sources.0.path'"
    assert unknown in message(sources=[{"pth": "x"}])
    assert "task.sources.0.weight = 0: Input should be greater than 0" in message(sources=[{"weight": 0}])
    assert "task.sources.0.operations" in message(sources=[{"operations": [11, 10]}])


def test_one_dialogue_among_the_data_sets_asks_for_the_reward_model() -> None:
    config = parse_config({"task": {"sources": [{}, {"name": "dialogue"}]}}, "test")
    assert [bundle.name for bundle in placement(config, "cpu")][-1] == "reward model"
    assert [bundle.name for bundle in placement(Config(), "cpu")][-1] == "replay shard"


def test_what_one_data_set_holds_out_is_trained_on_in_none(tmp_path: Path) -> None:
    items = task_items(two(tmp_path), 0)
    held_out = {prompt_digest(item.prompt) for item in items.evaluation}
    assert [item.source for item in items.evaluation] == ["words", "math"]
    assert not held_out & {prompt_digest(item.prompt) for item in items.train}
    assert held_out <= evaluation_prompts(two(tmp_path), 0)
    (tmp_path / "exam.jsonl").write_text(json.dumps({"q": "SHARED", "a": "7"}) + "\n")
    words, maths = two(tmp_path).sources
    exam = maths.model_copy(update={"eval_path": str(tmp_path / "exam.jsonl")})
    exam.model_fields_set.add("eval_path")
    items = task_items(two(tmp_path).model_copy(update={"sources": (words, exam)}), 0)
    assert [item.prompt for item in items.evaluation if item.source == "math"] == ["SHARED"]
    assert "shared" in {item.prompt for item in task_items(two(tmp_path), 0).train if item.source == "words"}
    assert "shared" not in {item.prompt for item in items.train}


@pytest.fixture
def task(tmp_path: Path) -> Any:
    built = build_task(two(tmp_path), character_tokenizer(CHARACTERS), limits=TokenLimits(60, 30), context=8192, seed=0)
    yield built
    built.close()


def answer(task: Task, problem: Problem, text: str) -> Rollout:
    start = Start("s", problem.id, problem.prompt_ids, np.zeros(0, np.int32), 1, 0)
    ids = np.array(task.tokenizer(text)["input_ids"], np.int32)
    return Rollout(start, 0, ids, ids.astype(np.float32), ids, Finish.STOP)


def test_each_response_is_judged_as_its_data_set_asks(task: Task) -> None:
    assert task.weights == {"words": 3.0, "math": 1.0}
    problems = [*task.train, *task.evaluation]
    assert {problem.id.split("-")[0] for problem in problems} == {"words", "math"}
    hashes = task.judge([answer(task, problem, f"#### {problem.reference}") for problem in problems])
    boxed = task.judge([answer(task, problem, rf"\boxed{{{problem.reference}}}") for problem in problems])
    assert all(item.verdict.correct for item in boxed)  # GSM8K's judge reads both forms
    assert [item.verdict.correct for item in hashes] == [problem.source == "words" for problem in problems]
    word = next(problem for problem in problems if problem.source == "words")
    number = next(problem for problem in problems if problem.source == "math")
    assert task.decode(word.prompt_ids).startswith("Q: ")
    assert task.decode(number.prompt_ids).startswith("1\\boxed{1}\n\n")
    votes = task.votes(
        task.judge([answer(task, problem, f"#### {7 + i % 2}") for problem in (word, number) for i in (0, 1)])
    )
    assert votes == {word.id: ["7", "8"], number.id: [None, None]}
    assert task.prefix_is_wrong(word.id, word.prompt_ids) is None


def test_a_data_set_without_a_problem_that_fits_is_named(tmp_path: Path) -> None:
    config, tokenizer = two(tmp_path), character_tokenizer(CHARACTERS)
    items = task_items(config, 0)
    kept = Items([item for item in items.train if item.source == "words"], items.evaluation, LeftOut())
    with pytest.raises(DataError, match="task math: "):
        encode_problems(config, tokenizer, kept, limits=TokenLimits(60, 30), context=8192)
