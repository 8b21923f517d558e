"""How restarts are counted: hand-made times, no engines."""

from actors.budget import NODE_SECONDS, TOGETHER, Budget, Doubts


class Clock:
    """Seconds, set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_what_takes_many_engines_at_once_is_one_incident() -> None:
    clock = Clock()
    budget = Budget(1, 3600.0, clock=clock)
    for index in range(8):  # a node of eight engines: found out one after the other
        assert budget.spend(f"rollout-{index}")
        clock.now += TOGETHER / 10
    assert budget.spent == 1
    clock.now += TOGETHER
    assert not budget.spend("rollout-8")  # another one


def test_an_engine_that_dies_over_and_over_uses_the_budget_up() -> None:
    clock = Clock()
    budget = Budget(2, 3600.0, clock=clock)
    found = []
    for _ in range(3):
        clock.now += 1.0
        found += [budget.spend("rollout-0"), budget.spend("rollout-1")]
    assert found == [True, True, True, True, False, False]


def test_what_is_forgiven_or_long_ago_does_not_count() -> None:
    clock = Clock()
    budget = Budget(1, 3600.0, clock=clock)
    assert budget.spend("a")
    assert budget.spend("b")
    budget.forgive(["b"])  # a still counts
    assert budget.spent == 1
    assert not budget.spend("a")
    budget.forgive(["a", "a", "c"])  # there is no more than one
    assert budget.spent == 0
    assert budget.spend("a")
    clock.now += 3600.0
    assert budget.spent == 0
    assert budget.spend("a")
    assert not Budget(0, 3600.0).spend("a")


def test_an_engine_that_was_lost_with_its_node_does_not_count_however_late_that_is_noticed() -> None:
    clock = Clock()
    doubts = Doubts(clock)
    alive = {"head", "spot"}

    def settle() -> list[str]:
        return [loss.name for loss in doubts.settle(lambda: alive)]

    doubts.add("rollout-1", "spot", "it cannot be reached")
    doubts.add("rollout-2", "head", "its process died")
    clock.now += 30.0
    assert settle() == []  # the cluster has not noticed anything yet
    alive.remove("spot")
    assert settle() == []
    alive.add("spot")  # it may even come back: decided is decided
    clock.now += NODE_SECONDS
    assert settle() == ["rollout-2"]
    assert settle() == []
