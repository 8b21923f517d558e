"""Which problems are replayed: numbers by hand."""

import json

from core.parts.sources import Progress, root_start, state_start
from core.records import EMPTY, Problem, Provenance, ReplayedState, Rollout, Verdict
from replay.visits import PAUSE, Visits
from tests.replay.made import rollout

AT = Progress(0, 1, 100, 1)
DRAWN = [ReplayedState(key, name, EMPTY, 0.5, Provenance.OWN_FAILED, 0) for key, name in enumerate("abbc")]


def visit(name: str, *outcomes: bool, replayed: bool = False) -> list[Rollout]:
    problem = Problem(name, EMPTY, "gold")
    start = state_start(problem, EMPTY, 7, AT, 0) if replayed else root_start(problem, AT, 0)
    return [rollout(start, [1], Verdict(float(right), right)) for right in outcomes]


def test_failed_roots_come_first_then_what_was_replayed_longest_ago() -> None:
    visits = Visits()
    visits.observe({"a": visit("a", True, False), "b": visit("b", False)}, [], 1)
    assert visits.choose(DRAWN, 9, 2) == [1, 3, 0]  # one state of each; of c nothing is known; the root of a succeeds
    assert visits.choose(DRAWN, 2, 2) == [1, 3]
    visits.observe({}, visit("b", False, replayed=True), 2)
    assert visits.choose(DRAWN, 9, 1 + PAUSE) == [3, 0]  # b rests
    visits.observe({}, visit("c", True, replayed=True), 3)
    assert visits.choose(DRAWN, 9, 3 + PAUSE) == [1, 3, 0]  # b has rested longer


def test_to_choose_changes_nothing() -> None:
    visits = Visits()
    assert visits.choose(DRAWN, 2, 1) == visits.choose(DRAWN, 2, 1) == [0, 1]


def test_a_success_from_a_state_is_no_success_of_the_root() -> None:
    visits = Visits()
    visits.observe({}, visit("a", True, replayed=True), 1)
    assert visits.root_fails("a")
    visits.observe({"a": visit("a", True)}, [], 2)
    assert not visits.root_fails("a")
    visits.observe({"a": visit("a", False)}, [], 3)
    assert visits.root_fails("a")  # the last visit counts


def test_visits_go_on_from_a_checkpoint() -> None:
    first, second = Visits(), Visits()
    first.observe({"a": visit("a", True)}, visit("b", False, replayed=True), 1)
    second.from_json(json.loads(json.dumps(first.to_json())))
    assert second.choose(DRAWN, 3, 2) == first.choose(DRAWN, 3, 2) == [3, 0]
    second.from_json({})
    assert second.to_json() == Visits().to_json()
