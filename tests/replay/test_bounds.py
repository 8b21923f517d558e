"""Which problems are replayed, and when the share of replay halves: numbers by hand."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from core.parts.sources import Progress, root_start, state_start
from core.records import EMPTY, Problem, Provenance, ReplayedState, Rollout, Verdict
from replay.bounds import LEAST, PAUSE, rested, root_suffers
from replay.coverage import Coverage
from tests.replay.made import rollout

AT = Progress(0, 1, 100, 1)
DRAWN = [ReplayedState(key, name, EMPTY, 0.5, Provenance.OWN_FAILED, 0) for key, name in enumerate("abbc")]
NAMES = [f"p{number}" for number in range(LEAST)]
SUCCEEDS, FAILS = (True, True, True, False), (True, False, False, False)


def visit(name: str, *outcomes: bool, replayed: bool = False) -> list[Rollout]:
    problem = Problem(name, EMPTY, "gold")
    start = state_start(problem, EMPTY, 7, AT, 0) if replayed else root_start(problem, AT, 0)
    return [rollout(replace(start, id=f"{name}{replayed}"), [1], Verdict(float(right), right)) for right in outcomes]


def observed(*iterations: Sequence[Rollout]) -> Coverage:
    """What is known after iterations 1, 2, ..."""
    made = Coverage(3)
    for number, rollouts in enumerate(iterations, 1):
        made.observe(rollouts, replace(AT, iteration=number))
    return made


def test_failed_roots_come_first_then_what_was_replayed_longest_ago() -> None:
    first = [*visit("a", True, False), *visit("b", False)]
    second, third = visit("b", False, replayed=True), visit("c", True, replayed=True)
    lives = observed(first).lives
    assert rested(DRAWN, 9, lives, {}, 2) == [
        1,
        3,
        0,
    ]  # one state of each; of c nothing is known; the root of a succeeds
    assert rested(DRAWN, 2, lives, {}, 2) == [1, 3]
    assert rested(DRAWN, 9, observed(first, second).lives, {}, 1 + PAUSE) == [3, 0]  # b rests
    assert rested(DRAWN, 9, observed(first, second, third).lives, {}, 3 + PAUSE) == [1, 3, 0]  # b has rested longer


def test_a_problem_rests_from_its_draw_on_though_its_outcomes_are_not_known() -> None:
    """They are not in rounds of dynamic sampling, and in asynchronous mode."""
    lives = observed([*visit("a", False), *visit("b", False)]).lives
    assert rested(DRAWN, 9, lives, {"a": 2}, 2) == [1, 3]
    assert rested(DRAWN, 9, lives, {"a": 2, "b": 1, "c": 1}, 2 + PAUSE) == [1, 3, 0]  # a was drawn last


def test_a_success_from_a_state_is_no_success_of_the_root() -> None:
    states, solves, fails = visit("a", True, replayed=True), visit("a", True), visit("a", False)
    assert not observed(states).lives["a"].root_succeeds
    assert observed(states, solves).lives["a"].root_succeeds
    assert not observed(states, solves, fails).lives["a"].root_succeeds  # the last visit counts


def guard(before: Sequence[bool], after: Sequence[bool], replayed: Sequence[bool], names: Sequence[str]) -> Coverage:
    """After two visits of each problem; the last problem's outcomes stay, so that the changes differ."""
    first = [one for name in names for one in visit(name, *before)]
    second = [one for name in names for one in visit(name, *(before if name == names[-1] else after))]
    return observed(first, [*second, *visit(names[0], *replayed, replayed=True)])


def test_a_worse_root_halves_replay_whose_starts_succeed() -> None:
    assert root_suffers(guard(SUCCEEDS, FAILS, SUCCEEDS, NAMES))
    assert not root_suffers(guard(SUCCEEDS, FAILS, FAILS, NAMES))  # replayed starts fail, too: the run is lost anyhow
    assert not root_suffers(guard(FAILS, SUCCEEDS, SUCCEEDS, NAMES))
    assert not root_suffers(guard(SUCCEEDS, SUCCEEDS, SUCCEEDS, NAMES))


def test_few_problems_tell_nothing() -> None:
    assert not root_suffers(guard(SUCCEEDS, FAILS, SUCCEEDS, NAMES[1:]))


def test_a_change_within_two_standard_errors_is_noise() -> None:
    # 9 of 16 problems lose their one success in four, 7 gain one: a mean of -1/32, with a standard error of 2/32
    after = [visit(name, number >= 9, number >= 9, False, False) for number, name in enumerate(NAMES)]
    later = [*(one for group in after for one in group), *visit("p0", *SUCCEEDS, replayed=True)]
    assert not root_suffers(observed([one for name in NAMES for one in visit(name, *FAILS)], later))


def test_replay_comes_back_with_the_root_and_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    first, second = guard(SUCCEEDS, FAILS, SUCCEEDS, NAMES), Coverage(3)
    first.save(tmp_path)
    second.restore(tmp_path)
    for made in (first, second):
        assert root_suffers(made)
        made.observe([one for name in NAMES for one in visit(name, *SUCCEEDS)], replace(AT, iteration=3))
        assert not root_suffers(made)
    assert second.lives == first.lives
    second.restore(None)
    assert (second.lives, second.replayed_success) == ({}, 0.0)
