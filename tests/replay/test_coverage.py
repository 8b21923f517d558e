"""What a run has seen and solved, by hand."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from core.parts.sources import Progress, root_start, state_start
from core.records import EMPTY, Problem, Rollout, Use, Verdict
from replay.coverage import LEAST, RECENT, Coverage, Life, read_lives
from tests.replay.made import rollout
from tests.trainer.fakes import PROBLEMS, FakeEngines

AT = Progress(0, 1, 10, 2)
IDS = np.array([7, 8], np.int32)


def test_visits_and_solved_problems(tmp_path: Path) -> None:
    """p1 fails at its root twice and succeeds from a state; p2 succeeds at its root; p3 is never started."""
    engines = FakeEngines(lambda start, _: ([1], not start.from_root or start.problem_id == "p2"))
    starts = [root_start(PROBLEMS["p1"], AT, 0), root_start(PROBLEMS["p1"], AT, 1), root_start(PROBLEMS["p2"], AT, 2)]
    rollouts = engines.judge(engines.generate([*starts, state_start(PROBLEMS["p1"], IDS, 5, AT, 0)]))
    coverage = Coverage(4)
    coverage.observe(rollouts, AT)
    expected = {"visited": 0.5, "visits": 1.5, "covered_from_root": 0.25, "covered": 0.5}  # of 4; 3 starts of 2
    assert coverage.metrics() == expected
    coverage.save(tmp_path)
    again = Coverage(4)
    again.restore(tmp_path)
    assert again.metrics() == expected
    assert read_lives(tmp_path) == {
        # two roots, and a state of two tokens
        "p1": Life(2, None, 1, [[1, 0, 0, 2], [1, 0, 0, 2], [1, 2, 2, 2]], [0.0], root_succeeds=False, replayed=1),
        "p2": Life(1, 1, 1, [[1, 0, 2, 2]], [1.0], root_succeeds=True),
    }
    again.restore(None)
    assert again.metrics() == {"visited": 0.0, "visits": 0.0, "covered_from_root": 0.0, "covered": 0.0}
    assert {rollout.use for rollout in rollouts} == {Use.TRAIN}


def test_a_response_without_a_verdict_is_no_failure() -> None:
    fails = visit("a", False)[0]
    nobody_knows = replace(fails, verdict=replace(fails.verdict, judge_failed=True))
    assert observed([nobody_knows]).lives == {}
    assert observed([*visit("a", True), nobody_knows]).lives["a"].root == [1.0]


def test_a_life_keeps_its_newest_starts_and_its_first_successes() -> None:
    engines, life = FakeEngines(lambda start, _: ([1], start.from_root)), Life()
    root, state = root_start(PROBLEMS["p1"], AT, 0), state_start(PROBLEMS["p1"], IDS, 5, AT, 0)
    for iteration in range(1, RECENT + 2):
        life.add(iteration, engines.judge(engines.generate([state if iteration == 1 else root])))
    assert (life.visits, life.first, life.first_from_root) == (RECENT, 2, 2)
    assert life.recent[0] == [2, 0, 2, 2]
    assert len(life.recent) == RECENT


NAMES = [f"p{number}" for number in range(LEAST)]
SUCCEEDS, FAILS = (True, True, True, False), (True, False, False, False)


def visit(name: str, *outcomes: bool, replayed: bool = False) -> list[Rollout]:
    problem = Problem(name, EMPTY, "gold")
    start = state_start(problem, np.array([2], np.int32), 7, AT, 0) if replayed else root_start(problem, AT, 0)
    return [rollout(replace(start, id=f"{name}{replayed}"), [1], Verdict(float(right), right)) for right in outcomes]


def observed(*iterations: Sequence[Rollout]) -> Coverage:
    """What is known after iterations 1, 2, ..."""
    made = Coverage(3)
    for number, rollouts in enumerate(iterations, 1):
        made.observe(rollouts, replace(AT, iteration=number))
    return made


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
    assert guard(SUCCEEDS, FAILS, SUCCEEDS, NAMES).replay_costs
    assert not guard(SUCCEEDS, FAILS, FAILS, NAMES).replay_costs  # replayed starts fail, too: the run is lost anyhow
    assert not guard(FAILS, SUCCEEDS, SUCCEEDS, NAMES).replay_costs
    assert not guard(SUCCEEDS, SUCCEEDS, SUCCEEDS, NAMES).replay_costs


def test_few_problems_tell_nothing() -> None:
    assert not guard(SUCCEEDS, FAILS, SUCCEEDS, NAMES[1:]).replay_costs


def test_a_change_within_two_standard_errors_is_noise() -> None:
    # 9 of 16 problems lose their one success in four, 7 gain one: a mean of -1/32, with a standard error of 2/32
    after = [visit(name, number >= 9, number >= 9, False, False) for number, name in enumerate(NAMES)]
    later = [*(one for group in after for one in group), *visit("p0", *SUCCEEDS, replayed=True)]
    assert not observed([one for name in NAMES for one in visit(name, *FAILS)], later).replay_costs


def test_worse_held_out_success_halves_replay_too(tmp_path: Path) -> None:
    made, restored = guard(SUCCEEDS, SUCCEEDS, SUCCEEDS, NAMES), Coverage(3)
    held_out = [f"h{number}" for number in range(LEAST)]
    made.evaluated([one for name in held_out for one in visit(name, *SUCCEEDS)])
    assert not made.replay_costs  # nothing to compare with
    made.evaluated([one for name in held_out[1:] for one in visit(name, *FAILS)])
    assert not made.replay_costs  # 15 problems say nothing
    made.evaluated([one for name in held_out for one in visit(name, *FAILS)])
    made.save(tmp_path)
    restored.restore(tmp_path)
    assert made.replay_costs
    assert restored.replay_costs
    restored.evaluated([one for name in held_out for one in visit(name, *SUCCEEDS)])
    assert not restored.replay_costs
    restored.restore(None)
    assert not restored.replay_costs


def test_replay_comes_back_with_the_root_and_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    first, second = guard(SUCCEEDS, FAILS, SUCCEEDS, NAMES), Coverage(3)
    first.save(tmp_path)
    second.restore(tmp_path)
    for made in (first, second):
        assert made.replay_costs
        made.observe([one for name in NAMES for one in visit(name, *SUCCEEDS)], replace(AT, iteration=3))
        assert not made.replay_costs
    assert second.lives == first.lives
    second.restore(None)
    assert (second.lives, second.replayed_success) == ({}, 0.0)
