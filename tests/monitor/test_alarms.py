"""Warnings about runs that learn nothing or unlearn."""

import re
from dataclasses import replace

import pytest

from core.load import FIELDS
from monitor.alarms import WARNINGS, alarms
from tests.trainer.examples import iteration
from trainer.metrics import IterationMetrics


def run(count: int, **fields: float) -> list[IterationMetrics]:
    return [replace(iteration(number), **fields) for number in range(1, count + 1)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"reward": 0.0, "root_success": 0.1, "replay_success": 0.0}, "no reward in 10 iterations"),
        ({"root_success": 0.1, "replay_success": 0.04}, "hardly any replayed start succeeded in 10"),
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
    assert line.startswith("warning: replayed starts succeeded in 10 iterations, rollouts from the root in under 10%")
    assert alarms(run(9, root_success=0.0, replay_success=0.3, kl_coefficient=0.0)) == []
    assert alarms(run(10, root_success=0.0, replay_success=0.3, kl_coefficient=0.09)) == [line]
    assert alarms(run(10, root_success=0.0, replay_success=0.3, kl_coefficient=0.2)) == []
    assert alarms(run(10, root_success=0.01, replay_success=0.3, kl_coefficient=0.0)) == []


def test_a_root_that_is_lost_is_told_whatever_the_kl() -> None:
    lost = {"root_success": 0.06, "replay_success": 0.9, "kl_coefficient": 0.2}
    assert "in under 10%: a few chains are learnt" in alarms(run(10, **lost))[0]
    assert (
        alarms(run(10, **(lost | {"root_success": 0.11}))) == alarms(run(10, **(lost | {"replay_success": 0.7}))) == []
    )


def test_a_large_step_is_told_where_rewards_are_rare_and_become_rarer() -> None:
    before, after = {"kl": 0.001, "root_success": 0.04}, {"kl": 0.011, "root_success": 0.015}
    (line,) = alarms([*run(10, **before), *run(10, **after)])
    assert line.startswith("warning: rollouts from the root succeed half as often as 10 iterations ago")
    assert alarms([*run(10, **before), *run(9, **after), *run(1, kl=0.009, root_success=0.01)]) == []  # small steps
    assert alarms([*run(10, **before), *run(10, kl=0.04, root_success=0.021)]) == []  # hardly rarer
    assert alarms([*run(10, kl=0.001, root_success=0.4), *run(10, kl=0.04, root_success=0.1)]) == []  # not rare


def test_three_large_steps_in_a_row_are_told_at_any_success() -> None:
    assert alarms(run(3, kl=0.049, root_success=0.3)) == alarms(run(2, kl=0.06, root_success=0.3)) == []
    (line,) = alarms(run(3, kl=0.06, root_success=0.3))
    assert line.startswith("warning: a KL above 0.05 in 3 updates in a row")


def test_every_warning_names_an_option_that_helps() -> None:
    for text in WARNINGS:
        named = re.findall(r"\b([a-z]+\.[a-z_]+)\b", text.replace("launch.py", ""))
        assert named, text
        assert set(named) <= set(FIELDS), text
