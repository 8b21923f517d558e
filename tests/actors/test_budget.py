"""How restarts are counted: hand-made times, no engines."""

import pytest

from actors.pool import INCIDENT_SECONDS, RestartBudget
from core.errors import ActorError


class Clock:
    """Seconds, set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_losses_of_many_actors_at_once_are_one_incident() -> None:
    clock = Clock()
    budget = RestartBudget(1, 3600.0, clock)
    for index in range(8):  # a node of eight engines, noticed one after the other
        budget.charge(f"rollout-{index}", "its process died")
        clock.now += INCIDENT_SECONDS / 10
    assert budget.spent == 1
    clock.now += INCIDENT_SECONDS
    with pytest.raises(ActorError, match=r"^rollout-8: it hangs.*rollout\.max_restarts = 1"):
        budget.charge("rollout-8", "it hangs")


def test_an_actor_that_dies_over_and_over_uses_the_budget_up() -> None:
    clock = Clock()
    budget = RestartBudget(2, 3600.0, clock)
    for spent in (1, 2):
        clock.now += 1.0
        for name in ("rollout-0", "rollout-1"):
            budget.charge(name, "its process died")
        assert budget.spent == spent
    clock.now += 1.0
    with pytest.raises(ActorError, match=r"rollout\.max_restarts"):
        budget.charge("rollout-0", "its process died")


def test_a_loss_of_long_ago_does_not_count() -> None:
    clock = Clock()
    budget = RestartBudget(1, 3600.0, clock)
    budget.charge("a", "its process died")
    clock.now += 3600.0
    assert budget.spent == 0
    budget.charge("a", "its process died")
    with pytest.raises(ActorError, match=r"rollout\.max_restarts"):
        RestartBudget(0, 3600.0).charge("a", "its process died")
