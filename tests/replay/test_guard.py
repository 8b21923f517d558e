"""When the root guard halves the share of replay: numbers by hand."""

import json
from collections.abc import Sequence

from core.parts.sources import Progress, root_start
from core.records import EMPTY, Problem, Rollout, Verdict
from replay.guard import LEAST, RootGuard
from tests.replay.made import rollout

AT = Progress(0, 1, 100, 1)
NAMES = [f"p{number}" for number in range(LEAST)]
SUCCEEDS, FAILS = (True, True, True, False), (True, False, False, False)


def visit(name: str, outcomes: Sequence[bool]) -> list[Rollout]:
    start = root_start(Problem(name, EMPTY, "gold"), AT, 0)
    return [rollout(start, [1], Verdict(float(right), right)) for right in outcomes]


def guard(before: Sequence[bool], after: Sequence[bool], replayed: Sequence[bool], names: Sequence[str]) -> RootGuard:
    """After two visits of each problem; the last problem's outcomes stay, so that the changes differ."""
    made = RootGuard()
    made.observe({name: visit(name, before) for name in names}, [])
    later = {name: visit(name, before if name == names[-1] else after) for name in names}
    made.observe(later, visit(names[0], replayed))
    return made


def test_a_worse_root_halves_replay_whose_starts_succeed() -> None:
    assert guard(SUCCEEDS, FAILS, SUCCEEDS, NAMES).halves
    assert not guard(SUCCEEDS, FAILS, FAILS, NAMES).halves  # replayed starts fail, too: the run is lost otherwise
    assert not guard(FAILS, SUCCEEDS, SUCCEEDS, NAMES).halves
    assert not guard(SUCCEEDS, SUCCEEDS, SUCCEEDS, NAMES).halves


def test_few_problems_tell_nothing() -> None:
    assert not guard(SUCCEEDS, FAILS, SUCCEEDS, NAMES[1:]).halves


def test_a_change_within_two_standard_errors_is_noise() -> None:
    made = RootGuard()
    made.observe({name: visit(name, FAILS) for name in NAMES}, [])
    # 9 of 16 problems lose their one success in four, 7 gain one: a mean of -1/32, with a standard error of 2/32
    after = {name: visit(name, (number >= 9, number >= 9, False, False)) for number, name in enumerate(NAMES)}
    made.observe(after, visit("p0", SUCCEEDS))
    assert not made.halves


def test_replay_comes_back_with_the_root_and_goes_on_from_a_checkpoint() -> None:
    first, second = guard(SUCCEEDS, FAILS, SUCCEEDS, NAMES), RootGuard()
    second.from_json(json.loads(json.dumps(first.to_json())))
    for made in (first, second):
        assert made.halves
        made.observe({name: visit(name, SUCCEEDS) for name in NAMES}, [])
        assert not made.halves
    second.from_json({})
    assert second.to_json() == RootGuard().to_json()
