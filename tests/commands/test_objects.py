"""Rewards and rows that Python hands over, and errors of the Python interface."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Dataset

import retrospect
from commands.objects import with_objects
from core.config import Config, RewardConfig
from core.errors import ConfigError, DataError, RetrospectError
from core.load import override
from core.parts.judge import Case
from tasks.judging import start_judge
from tasks.kinds import task_items
from tests.commands.rewards import exits

ROWS = [{"prompt": f"{n} + 1?", "answer": str(n + 1)} for n in range(20)]


def always(reference: str, response: str, file: object = None) -> float:
    return 1.0


def config(folder: Path, *options: str) -> Config:
    return override(Config(), [f"--run.root={folder}", "--task.judge_workers=0", *options])


def test_rows_are_a_list_or_a_data_set_and_stay_the_same(tmp_path: Path) -> None:
    one, other = (with_objects(config(tmp_path), None, rows).task for rows in (ROWS, Dataset.from_list(ROWS)))
    assert one == other
    assert (one.name, one.eval_problems) == ("prompts", 2)
    items = task_items(one, 0)
    assert {item.prompt: item.reference for item in (*items.train, *items.evaluation)} == {
        row["prompt"]: row["answer"] for row in ROWS
    }
    named = with_objects(config(tmp_path, "--task.name=gsm8k", "--task.eval_problems=5"), None, ROWS).task
    assert (named.name, named.eval_problems) == ("gsm8k", 5)


def test_cells_of_pandas_are_their_values(tmp_path: Path) -> None:
    """`read_parquet(...).to_dict("records")` has an array where a row of verl or TRL has a list of messages."""
    message = {"role": "user", "content": "0+2?"}
    row = {"prompt": np.array([message], dtype=object), "answer": np.int64(2)}
    task = with_objects(config(tmp_path), None, [row, row]).task
    written = json.loads(Path(task.path).read_text().splitlines()[0])
    assert written == {"prompt": [message], "answer": 2}


def test_a_reward_may_be_a_closure_and_judges_in_another_process(tmp_path: Path) -> None:
    wanted = "7"

    def reward(reference: str, response: str) -> float:
        return 0.5 * (response == reference) + 0.5 * (response == wanted)

    for workers in ("0", "1"):
        task = with_objects(config(tmp_path, f"--task.judge_workers={workers}"), reward, ROWS).task
        judge = start_judge(task, check=True)
        verdicts = judge.judge([Case("7", "7"), Case("7", "8"), Case("8", "8")])
        judge.close()
        assert [verdict.reward for verdict in verdicts] == [1.0, 0.0, 0.5]
    both = with_objects(config(tmp_path), [reward, exits], ROWS).task.rewards
    assert [one.label for one in both] == ["reward", "exits"]
    assert both[1] == RewardConfig(name="tests.commands.rewards:exits", label="exits")


@pytest.mark.parametrize(
    ("given", "kind", "told"),
    [
        ({"data": []}, DataError, "data has no rows"),
        ({"data": [3]}, DataError, "data: row 1 is int"),
        ({"data": "rows.jsonl"}, DataError, "data is str"),
        ({"data": 3}, DataError, "data is int"),
        ({"reward": "mine:reward"}, ConfigError, "reward is 'mine:reward'"),
        ({"reward": [3]}, ConfigError, "reward is 3"),
        ({"reward": partial(always, file=sys.stderr)}, ConfigError, "cannot be sent"),
        ({}, ConfigError, "model.path and task.name"),
    ],
)
def test_wrong_objects_are_one_line(given: dict[str, Any], kind: type[Exception], told: str, tmp_path: Path) -> None:
    with pytest.raises(kind, match=told):
        retrospect.train(config(tmp_path), **given)


def test_errors_of_the_python_interface_are_of_the_project(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file" / "below", Path("/proc/x")):
        with pytest.raises(RetrospectError) as told:
            retrospect.train(config(place), reward=always, data=ROWS)
        assert str(place) in str(told.value)
    with pytest.raises(RetrospectError, match="null character"):
        retrospect.resume("a\0b")
    for call in (retrospect.train, retrospect.evaluate):
        with pytest.raises(ConfigError, match="config is str"):
            call("my.yaml")  # type: ignore[arg-type]


def test_a_script_hands_over_its_own_function(tmp_path: Path) -> None:
    """A function of `__main__` can be imported nowhere else."""
    script = """
import retrospect, json, sys
from commands.objects import with_objects
def helper(text): return len(text)
def reward(reference, response): return float(helper(response))
config = retrospect.override(retrospect.Config(), ["--run.root=."])
print(with_objects(config, reward, [{"prompt": "a"}, {"prompt": "b"}]).model_dump_json())
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={"PYTHONPATH": str(Path(retrospect.__file__).parent), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    task = Config.model_validate(json.loads(done.stdout.splitlines()[-1])).task
    judge = start_judge(task.model_copy(update={"judge_workers": 1}), check=True)
    assert judge.judge([Case("", "four")])[0].reward == 4.0
    judge.close()
