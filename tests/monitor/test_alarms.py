"""Warnings about runs that learn nothing or unlearn."""

import re
from dataclasses import replace

import pytest

from core.command_line import FIELDS
from monitor.alarms import WARNINGS, alarms
from tests.trainer.examples import iteration
from trainer.metrics import IterationMetrics


def run(count: int, **fields: float) -> list[IterationMetrics]:
    return [replace(iteration(number), **fields) for number in range(1, count + 1)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"reward": 0.0, "root_success": 0.1, "replay_success": 0.0}, "no reward in 10 iterations"),
        ({"root_success": 0.1, "replay_success": 0.01}, "hardly any replayed start succeeded in 10"),
        ({"root_success": 0.1, "replay_success": 0.99}, "nearly all replayed starts succeeded in 10"),
    ],
)
def test_ten_iterations_that_teach_nothing_are_told_once(fields: dict[str, float], says: str) -> None:
    told = [alarms(run(count, **fields)) for count in range(1, 25)]
    assert [count for count, lines in enumerate(told, 1) if lines] == [10]
    assert len(told[9]) == 1
    assert told[9][0].startswith(f"warning: {says}")


def test_a_streak_that_breaks_begins_again() -> None:
    good, bad = {"root_success": 0.1, "replay_success": 0.5}, {"root_success": 0.1, "replay_success": 1.0}
    assert alarms([*run(5, **bad), *run(1, **good), *run(9, **bad)]) == []
    assert alarms([*run(5, **bad), *run(1, **good), *run(10, **bad)]) != []
    assert alarms(run(10, root_success=0.1, replay_success=float("nan"))) == []  # no replay


def test_a_root_that_is_lost_while_replay_succeeds_is_told_unless_a_kl_holds_it() -> None:
    (line,) = alarms(run(10, root_success=0.0, replay_success=0.3, kl_coefficient=0.0))
    assert line.startswith("warning: replayed starts succeeded in 10 iterations, rollouts from the root hardly ever")
    assert alarms(run(9, root_success=0.0, replay_success=0.3, kl_coefficient=0.0)) == []
    assert alarms(run(10, root_success=0.0, replay_success=0.3, kl_coefficient=0.1)) == [line]
    assert alarms(run(10, root_success=0.0, replay_success=0.3, kl_coefficient=0.2)) == []
    assert alarms(run(10, root_success=0.01, replay_success=0.3, kl_coefficient=0.0)) == []


def test_a_large_step_is_told_where_rewards_are_rare() -> None:
    assert alarms(run(1, kl=0.049, root_success=0.3)) == []
    assert alarms(run(1, kl=0.015, root_success=0.01)) == []
    (line,) = alarms(run(1, kl=0.03, root_success=0.01))
    assert line.startswith("warning: a KL above 0.02 while under 5% of the rollouts from the root succeed")
    (line,) = alarms(run(1, kl=0.06, root_success=0.01))
    assert line.startswith("warning: a KL above 0.02")
    (line,) = alarms(run(1, kl=0.06, root_success=0.3))
    assert line.startswith("warning: a KL above 0.05: the update was too large")


def test_every_warning_names_an_option_that_helps() -> None:
    for text in WARNINGS:
        named = re.findall(r"\b([a-z]+\.[a-z_]+)\b", text.replace("launch.py", ""))
        assert named, text
        assert set(named) <= set(FIELDS), text
