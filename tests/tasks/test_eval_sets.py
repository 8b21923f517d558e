"""Evaluation sets: what they take from the task section, what they keep out of training, and their judges."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from commands.preflight import check_data
from core.config import RolloutConfig, TaskConfig, evaluation_sets
from core.errors import ConfigError, DataError
from core.load import dump_config, parse_config
from core.records import Start
from tasks.kinds import evaluation_prompts, rollout_settings, task_items
from tasks.problems import prompt_digest
from tasks.synthetic.corpus import character_tokenizer
from tasks.task import Task, build_task
from tests.tasks.test_mixture import CHARACTERS, answer

AIME = {"label": "aime", "path": "aime.jsonl", "columns": {"prompt": "problem", "answer": "answer"}, "samples": 4}


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def task_with_sets(folder: Path, **changes: Any) -> TaskConfig:
    """MATH with one problem held out; a set in MATH's form, which has one of its problems; one in AIME's; a generated
    one."""
    solved = [{"problem": f"{word}?", "solution": f"so \\boxed{{{i}}}"} for i, word in enumerate(("a", "b", "c", "d"))]
    exam = [{"problem": "B?", "solution": "\\boxed{1}"}, {"problem": "e?", "solution": "\\boxed{4}"}]
    aime = [{"problem": f"year {n}?", "answer": 200 + n} for n in (1, 2, 2, 3)]
    sets = [
        {"label": "exam", "path": str(Path(write(folder / "exam" / "test.jsonl", exam)).parent)},
        AIME | {"path": write(folder / "aime.jsonl", aime)},
        {"name": "arithmetic", "label": "chains", "problems": 3, "operations": [4, 4]},
    ]
    columns = {"prompt": "problem", "answer": "solution", "solution": "solution"}
    fields = {"name": "math", "path": write(folder / "math.jsonl", solved), "columns": columns, "eval_problems": 1}
    return TaskConfig.model_validate(fields | {"judge_timeout": 60.0, "eval_sets": sets} | changes)


def test_a_set_takes_what_it_leaves_out_from_the_task_section(tmp_path: Path) -> None:
    config = parse_config({"task": task_with_sets(tmp_path, problems=2, split="other").model_dump(mode="json")}, "test")
    exam, aime, chains = evaluation_sets(config.task)
    assert [one.label for one in (exam, aime, chains)] == ["exam", "aime", "chains"]
    assert (exam.config.name, exam.config.columns, exam.config.eval_split) == ("math", config.task.columns, "test")
    assert (exam.config.problems, chains.config.eval_problems) == (None, 3)  # all rows, not the two of the training
    assert (aime.config.name, aime.config.columns.answer, aime.weight) == ("math", "answer", 0.0)
    assert parse_config(yaml.safe_load(dump_config(config)), "dump") == config


def test_what_a_set_evaluates_is_trained_on_nowhere(tmp_path: Path) -> None:
    config = task_with_sets(tmp_path)
    items = task_items(config, 0)
    shown = {
        label: [item.prompt for item in items.sets if item.source == label] for label in ("exam", "aime", "chains")
    }
    assert (shown["exam"], shown["aime"]) == (["B?", "e?"], ["year 1?", "year 2?", "year 3?"])
    assert len(shown["chains"]) == 3
    assert len(items.evaluation) == 1
    trained = {prompt_digest(item.prompt) for item in items.train}
    evaluated = {prompt_digest(item.prompt) for item in (*items.evaluation, *items.sets)}
    assert trained
    assert not trained & evaluated
    assert evaluated <= evaluation_prompts(config, 0)  # nor by `launch.py sft`
    first, *_ = config.eval_sets
    short = first.model_copy(update={"problems": 1})
    short.model_fields_set.add("problems")
    few = task_items(config.model_copy(update={"eval_sets": (short,)}), 0)
    assert ([item.prompt for item in few.sets], {item.prompt for item in few.train} & {"b?", "B?"}) == (["B?"], set())


@pytest.fixture
def task(tmp_path: Path) -> Iterator[Task]:
    limits = (60, None)
    built = build_task(task_with_sets(tmp_path), character_tokenizer(CHARACTERS), limits=limits, context=8192, seed=0)
    yield built
    built.close()


def test_sets_are_judged_as_they_ask_and_are_no_part_of_the_training(task: Task) -> None:
    assert {label: (len(one.problems), one.samples) for label, one in task.sets.items()} == {
        "exam": (2, None),
        "aime": (3, 4),
        "chains": (3, None),
    }
    assert task.weights == {}  # no mixture
    assert task.limits.response == 32  # by MATH's solutions: sets do not change it
    aime = task.sets["aime"].problems
    right = task.judge([answer(task, problem, rf"\boxed{{{problem.reference}}}") for problem in aime])
    wrong = task.judge([answer(task, problem, r"\boxed{7}") for problem in aime])
    assert [item.verdict.correct for item in (*right, *wrong)] == [True] * 3 + [False] * 3
    (chains, *_) = task.sets["chains"].problems
    assert not task.judge([answer(task, chains, r"\boxed{7}")])[0].verdict.correct
    start = Start("s", aime[0].id, aime[0].prompt_ids, np.zeros(0, np.int32), 1, 0)
    with pytest.raises(DataError, match=aime[0].id):
        task.check_starts([start])


def test_sets_with_the_same_judge_share_its_processes(task: Task) -> None:
    judges = {label: source.judge for label, source in task._sources.items()}
    assert judges["exam"] is judges["aime"] is judges[""]
    assert judges["chains"] is not judges["exam"]


def test_a_set_that_needs_an_environment_which_the_run_lacks_is_refused() -> None:
    calls = {"label": "calls", "name": "bench.tasks.calculator:calculator"}
    with pytest.raises(ConfigError, match=r"task\.eval_sets: calls"):
        rollout_settings(RolloutConfig(), parse_config({"task": {"eval_sets": [calls]}}, "test").task)
    task = parse_config({"task": {"name": "bench.tasks.calculator:calculator", "eval_sets": [calls]}}, "test").task
    rollout_settings(RolloutConfig(), task)


def test_a_set_that_cannot_be_read_is_found_before_anything_starts(tmp_path: Path) -> None:
    config = parse_config({"task": {"eval_sets": [{"name": "gsm8k", "path": str(tmp_path / "no.jsonl")}]}}, "test")
    with pytest.raises(DataError, match=r"no\.jsonl"):
        check_data(config)


@pytest.mark.parametrize(
    ("sets", "told"),
    [
        ([{"label": "x", "path": "nowhere.jsonl"}], "nowhere.jsonl"),
        ([{"path": "math.jsonl"}], "task.eval_sets: two data sets are called 'math'; give each a label of its own"),
        ([AIME, AIME], "task.eval_sets: two data sets are called 'aime'"),
        ([{"label": "x", "path": "math.jsonl"}], "every training prompt is also evaluated; give task.eval_sets other"),
        ([{"label": "x", "path": "aime.jsonl"}], "aime.jsonl: row 1 has no column 'solution' (task.columns.answer)"),
        ([{"label": "x", "name": "gsm8"}], "task.eval_sets.0.name = 'gsm8': name one of"),
        ([{"label": "x", "eval_path": "y"}], "task.eval_sets cannot have the field 'eval_path'"),
        ([{"label": "x", "smaples": 2}], "the nearest valid name is 'task.eval_sets.0.samples'"),
        ([{"label": "x", "samples": 0}], "task.eval_sets.0.samples = 0: give a number above 0, or auto"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, sets: list[dict[str, Any]], told: str) -> None:
    task = task_with_sets(tmp_path).model_dump(mode="json")
    here = [one | {"path": str(tmp_path / one["path"])} if "path" in one else one for one in sets]

    def read() -> None:
        config = parse_config({"task": task | {"eval_sets": here}}, "test")
        task_items(config.task, 0)

    with pytest.raises((ConfigError, DataError)) as caught:
        read()
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
