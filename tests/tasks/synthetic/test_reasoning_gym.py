"""The task reasoning_gym against the package's own scores, in a judging process as a run has one."""

import json
import os
import subprocess
import sys
from contextlib import closing
from typing import Any

import pytest

from core.config import Columns, TaskConfig
from core.errors import ConfigError, DataError
from core.parts.judge import Case
from tasks.judging import start_judge
from tasks.kinds import task_items
from tasks.problems import Item
from tasks.synthetic.reasoning_gym import (
    HELD_OUT_SEED,
    TRAINING_SEEDS,
    read_reasoning,
    reasoning_rows,
    row_of,
    verify_reasoning,
)

reasoning_gym = pytest.importorskip("reasoning_gym", reason="pip install --no-deps -r requirements/reasoning.txt")

DATA_SETS = (
    "basic_arithmetic",
    "chain_sum",
    "complex_arithmetic",
    "count_primes",
    "countdown",
    "family_relationships",
    "fraction_simplification",
    "graph_color",
    "knights_knaves",
    "largest_island",
    "leg_counting",
    "letter_jumble",
    "maze",
    "mini_sudoku",
    "number_sorting",
    "polynomial_equations",
    "propositional_logic",
    "rubiks_cube",
    "simple_equations",
    "tower_of_hanoi",
)


def config_of(name: str, **fields: Any) -> TaskConfig:
    return TaskConfig(
        name="reasoning_gym", path=name, judge_timeout=60.0, **{"problems": 3, "eval_problems": 2, **fields}
    )


def entry_of(item: Item) -> tuple[Any, dict[str, Any]]:
    """The data set and the entry of an item, made by the package in this process."""
    made = json.loads(item.reference)
    data = reasoning_gym.create_dataset(made["data_set"], seed=made["seed"], size=1)
    return data, data[0]


def test_twenty_data_sets_are_judged_with_their_own_scores() -> None:
    """Each problem with its answer, with that of another problem, with a part of it, and without any."""
    graded = set()
    with closing(start_judge(config_of("leg_counting"))) as judges:
        for name in DATA_SETS:
            data = reasoning_gym.create_dataset(name, seed=5, size=3)
            entries = [data[index] for index in range(3)]
            items = [
                read_reasoning(row_of(name, "{}", 5 + index, entry), Columns(), name)
                for index, entry in enumerate(entries)
            ]
            assert [item.prompt for item in items] == [entry["question"].strip() for entry in entries]
            answers = [str(entry["answer"]) for entry in entries]
            cases, expected = [], []
            for place, (item, entry) in enumerate(zip(items, entries, strict=True)):
                for answer in (answers[place], answers[place - 1], answers[place][:-1], ""):
                    cases.append(Case(item.reference, f"I think <answer>0</answer>, no: <answer> {answer} </answer>."))
                    expected.append(float(data.score_answer(answer.strip(), entry)))
            verdicts = judges.judge(cases)
            assert [verdict.detail for verdict in verdicts if verdict.judge_failed] == []
            assert [verdict.reward for verdict in verdicts] == pytest.approx(expected), name
            assert [verdict.share for verdict in verdicts] == pytest.approx(expected), name  # for the replay store
            assert [verdict.correct for verdict in verdicts] == [score >= 1.0 for score in expected]
            graded |= {score for score in expected if 0 < score < 1}
    assert graded  # some wrong answers are worth something


def test_an_answer_that_a_data_set_cannot_read_is_wrong() -> None:
    (item, *_) = task_items(config_of("prime_factorization"), seed=0).train
    data, entry = entry_of(item)
    with pytest.raises(ValueError, match="invalid literal"):
        data.score_answer("x y", entry)
    verdict = verify_reasoning(item.reference, "x y")
    assert (verdict.reward, verdict.correct, verdict.judge_failed) == (0.0, False, False)
    assert verdict.detail.startswith("score 0: 'x y' (ValueError: invalid literal")


def test_held_out_problems_have_seeds_of_their_own_and_are_the_same_in_every_run() -> None:
    first, second = (task_items(config_of("leg_counting"), seed) for seed in (0, 1))
    assert [item.prompt for item in first.evaluation] == [item.prompt for item in second.evaluation]
    assert {item.prompt for item in first.train}.isdisjoint({item.prompt for item in second.train})
    for items in (first, second):
        assert all(json.loads(item.reference)["seed"] < TRAINING_SEEDS for item in items.train)
        assert {json.loads(item.reference)["seed"] for item in items.evaluation} == {HELD_OUT_SEED, HELD_OUT_SEED + 1}


def test_every_process_makes_the_same_problems() -> None:
    """Here one whose questions follow the order of a set of texts; the seed of hashes is another in every process."""
    script = """
from tests.tasks.synthetic.test_reasoning_gym import config_of
from tasks.synthetic.reasoning_gym import reasoning_rows
print([row["prompt"] for row in reasoning_rows(config_of("ransom_note"), 0, False)])
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    here = [row["prompt"] for row in reasoning_rows(config_of("ransom_note"), 0, False)]
    assert done.stdout == f"{here}\n"
    assert done.stdout.count("ransom note") >= 3


def test_a_training_problem_that_is_also_held_out_is_left_out() -> None:
    small = {"min_animals": 1, "max_animals": 1, "min_instances": 1, "max_instances": 2}
    items = task_items(config_of("leg_counting", parameters=small, problems=200, eval_problems=4), seed=0)
    held_out = {item.prompt for item in items.evaluation}
    assert held_out.isdisjoint({item.prompt for item in items.train})
    assert items.left_out.duplicates > 0
    with pytest.raises(DataError, match="leg_counting"):
        task_items(config_of("leg_counting", parameters=small, problems=200, eval_problems=2000), seed=0)


def test_parameters_and_canonical_solutions() -> None:
    columns = {"solution": "answer"}
    (item, *_) = task_items(
        config_of("chain_sum", parameters={"min_terms": 7, "max_terms": 7}, columns=columns), 0
    ).train
    assert sum(item.prompt.count(f" {sign} ") for sign in "+-") == 6
    assert item.solution == json.loads(item.reference)["answer"]
    # without tags the whole response is the answer
    assert verify_reasoning(item.reference, f" {item.solution}\n").correct
    said = verify_reasoning(item.reference, "<answer>none</answer>")
    assert (said.correct, said.detail) == (False, f"score {said.reward:g}: 'none'")


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"path": "leg_countign"}, "task.path = 'leg_countign' is no data set of Reasoning Gym; the nearest of its"),
        ({"path": ""}, "task.path is empty: task reasoning_gym needs a data set"),
        ({"parameters": {"max_animal": 2}}, "task.parameters of leg_counting: .*max_animal"),
        ({"parameters": {"max_animals": 0}}, "task.parameters of leg_counting: .*; correct or leave it out"),
        ({"parameters": {"seed": 3}}, "task.parameters has 'seed', which follows from run.seed"),
    ],
)
def test_mistakes_are_one_line(fields: dict[str, Any], told: str) -> None:
    config = config_of("leg_counting").model_copy(update=fields)
    with pytest.raises((ConfigError, DataError), match=told) as caught:
        task_items(config, seed=0)
    assert "\n" not in str(caught.value)


def test_without_the_package_the_line_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(ConfigError, match=r"reasoning-gym .*pip install"):
        task_items(config_of("leg_counting", parameters={"max_animals": 7}), seed=0)
