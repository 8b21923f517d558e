"""Warnings about runs that learn nothing or unlearn."""

import re
from dataclasses import replace

import pytest

from core.load import FIELDS
from monitor.alarms import ALARMS, alarms
from tests.trainer.examples import iteration
from trainer.metrics import IterationMetrics


def run(count: int, **fields: float) -> list[IterationMetrics]:
    return [replace(iteration(number), **fields) for number in range(1, count + 1)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"reward": 0.0, "root_success": 0.1, "replay_success": 0.0}, "no_reward"),
        ({"root_success": 0.1, "replay_success": 0.04}, "replay_fails"),
        ({"root_success": 0.1, "replay_success": 0.99}, "replay_mastered"),
    ],
)
def test_ten_iterations_that_teach_nothing_are_told_once(fields: dict[str, float], name: str) -> None:
    names = {count: [alarm.name for alarm in alarms(run(count, **fields))] for count in range(1, 25)}
    assert {count: rung for count, rung in names.items() if rung} == {10: [name]}


def test_a_streak_that_breaks_begins_again() -> None:
    good, bad = {"root_success": 0.1, "replay_success": 0.5}, {"root_success": 0.1, "replay_success": 1.0}
    assert alarms([*run(5, **bad), *run(1, **good), *run(9, **bad)]) == []
    assert alarms([*run(5, **bad), *run(1, **good), *run(10, **bad)]) != []
    assert alarms(run(10, root_success=0.1, replay_success=float("nan"))) == []  # no replay


def test_a_root_that_is_lost_while_replay_succeeds_is_told_unless_a_kl_holds_it() -> None:
    (alarm,) = alarms(run(10, root_success=0.0, replay_success=0.3, kl_coefficient=0.0))
    assert alarm.name == "root_lost"
    assert alarms(run(9, root_success=0.0, replay_success=0.3, kl_coefficient=0.0)) == []
    assert alarms(run(10, root_success=0.0, replay_success=0.3, kl_coefficient=0.09)) == [alarm]
    assert alarms(run(10, root_success=0.0, replay_success=0.3, kl_coefficient=0.2)) == []
    assert alarms(run(10, root_success=0.01, replay_success=0.3, kl_coefficient=0.0)) == []


def test_a_root_that_is_lost_is_told_whatever_the_kl() -> None:
    lost = {"root_success": 0.06, "replay_success": 0.9, "kl_coefficient": 0.2}
    assert [alarm.name for alarm in alarms(run(10, **lost))] == ["root_lost"]
    assert (
        alarms(run(10, **(lost | {"root_success": 0.11}))) == alarms(run(10, **(lost | {"replay_success": 0.7}))) == []
    )


def test_a_large_step_is_told_where_rewards_are_rare_and_become_rarer() -> None:
    before, after = {"kl": 0.001, "root_success": 0.04}, {"kl": 0.011, "root_success": 0.015}
    (alarm,) = alarms([*run(10, **before), *run(10, **after)])
    assert alarm.name == "step_too_large"
    assert alarms([*run(10, **before), *run(9, **after), *run(1, kl=0.009, root_success=0.01)]) == []  # small steps
    assert alarms([*run(10, **before), *run(10, kl=0.04, root_success=0.021)]) == []  # hardly rarer
    assert alarms([*run(10, kl=0.001, root_success=0.4), *run(10, kl=0.04, root_success=0.1)]) == []  # not rare


def test_three_large_steps_in_a_row_are_told_at_any_success() -> None:
    assert alarms(run(3, kl=0.049, root_success=0.3)) == alarms(run(2, kl=0.06, root_success=0.3)) == []
    (alarm,) = alarms(run(3, kl=0.06, root_success=0.3))
    assert alarm.name == "kl_spike"


def test_every_warning_names_an_option_that_helps() -> None:
    for alarm in ALARMS:
        fields = re.findall(r"\b([a-z]+\.[a-z_]+)\b", alarm.text.replace("launch.py", ""))
        assert fields, alarm.name
        assert set(fields) <= set(FIELDS), alarm.name
