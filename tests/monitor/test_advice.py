"""Warnings about runs that learn nothing or unlearn."""

import io
from contextlib import closing
from dataclasses import replace

import pytest

from monitor.advice import advice
from monitor.console import open_console
from tests.trainer.examples import iteration
from trainer.metrics import IterationMetrics


def run(count: int, **fields: float) -> list[IterationMetrics]:
    return [replace(iteration(number), **fields) for number in range(1, count + 1)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"root_success": 0.0, "replay_success": 0.0}, "no response was correct for 10 iterations"),
        ({"root_success": 0.0, "replay_success": float("nan")}, "no response was correct for 10 iterations"),
        ({"root_success": 0.1, "replay_success": 0.01}, "hardly any replayed start succeeded"),
        ({"root_success": 0.1, "replay_success": 0.99}, "nearly all replayed starts succeeded"),
    ],
)
def test_ten_iterations_that_teach_nothing_are_told_once_in_ten(fields: dict[str, float], says: str) -> None:
    told = [advice(run(count, **fields)) for count in range(1, 31)]
    assert [count for count, lines in enumerate(told, 1) if lines] == [10, 20, 30]
    assert told[9][0].startswith(f"warning: {says}")


def test_a_streak_that_breaks_begins_again() -> None:
    good, bad = {"root_success": 0.1, "replay_success": 0.5}, {"root_success": 0.1, "replay_success": 1.0}
    assert advice([*run(5, **bad), *run(1, **good), *run(9, **bad)]) == []
    assert advice([*run(5, **bad), *run(1, **good), *run(10, **bad)]) != []
    assert advice(run(20, root_success=0.1, replay_success=float("nan"))) == []  # no replay


def test_a_large_step_is_told_where_rewards_are_rare() -> None:
    assert advice(run(1, kl=0.03, root_success=0.3)) == []
    assert advice(run(1, kl=0.015, root_success=0.01)) == []
    stream = io.StringIO()
    with closing(open_console("mine", 10, stream=stream)) as console:
        console.write(run(1, kl=0.03, root_success=0.01)[0])
    assert (
        stream.getvalue()
        .splitlines()[-1]
        .startswith("warning: KL 0.030 while 1.0% of the rollouts from the root succeed")
    )
