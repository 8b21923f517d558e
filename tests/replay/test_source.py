"""Replay as a start source, with a real store in this process."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from core.config import ReplayConfig
from core.parts.sources import Progress, root_start, state_start
from core.records import Finish, Problem, Rollout, Use, Verdict, unsolved_share
from replay.coverage import Coverage
from replay.source import Cutting, Replay, replayed_count
from replay.store.store import ReplayStore
from tests.replay.test_cutting import STATE, every, ids, scored
from trainer.run import Sources

SOLVED = Problem("p", ids(1, 2), "gold", solution_ids=ids(3, 4, 5))
PROBLEMS = {"p": SOLVED, "q": replace(SOLVED, id="q", solution_ids=None)}
AT = Progress(9, 3, 10, 2, version=5)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ReplayStore]:
    config = ReplayConfig(ranking="value")
    made = ReplayStore(config, vocabulary=100, directory=tmp_path, fingerprint="task", local=True)
    yield made
    made.close()


def source(store: ReplayStore, refreshed: int = 0, **fields: object) -> Replay:
    config = ReplayConfig.model_validate(
        {"ratio": 0.5, "start_states": 1, "schedule": "constant", "bounded": False, **fields}
    )
    return Replay(config, store, PROBLEMS, Coverage(2), Cutting(every, 100), refreshed)


def rollout(problem: str, correct: bool, *tokens: int) -> Rollout:
    return scored(root_start(PROBLEMS[problem], AT, "pq".index(problem)), ids(*tokens), correct)


def test_the_share_of_replay_falls_with_the_run_or_with_what_is_solved() -> None:
    assert [replayed_count(10, "annealed", progress, 1.0) for progress in (0.0, 0.5, 0.9)] == [10, 5, 1]
    assert [replayed_count(10, "unsolved", 0.0, share) for share in (1.0, 0.7, 0.0)] == [10, 7, 0]


def test_nothing_is_proposed_before_there_are_enough_states(store: ReplayStore) -> None:
    replay = source(store, start_states=3)
    replay.observe([rollout("p", False, 7, 8, 9)], AT)  # states of 1 and 2 tokens
    assert (len(store), replay.propose(8, AT)) == (2, [])
    replay.observe([rollout("q", True, 7, 8, 9)], AT)
    starts = replay.propose(8, AT)
    assert [start.id for start in starts] == ["3.r0", "3.r1", "3.r2", "3.r3"]  # half of 8, and there are four states
    assert all(not start.from_root and start.samples == 2 for start in starts)
    assert [start.seed for start in replay.propose(8, AT)] == [start.seed for start in starts]
    assert len(replay.propose(4, AT)) == 2


def test_the_places_of_replay_shrink_as_problems_are_solved(store: ReplayStore) -> None:
    """Of two problems one is solved: half of the half."""
    replay = source(store, schedule="unsolved")
    replay.observe([rollout("p", False, 7, 8, 9), rollout("q", True, 7, 8, 9)], AT)
    replay.observe([], AT)  # what is known of the roots counts from the next iteration on
    assert len(replay.propose(8, AT)) == replay.wanted(8, AT) == 2
    assert source(store, start_states=10**5, schedule="annealed").wanted(8, replace(AT, iteration=6)) == 2  # half over


def test_outcomes_of_replayed_starts_reach_their_states_and_others_do_not(store: ReplayStore) -> None:
    replay = source(store)
    replay.observe([rollout("p", False, 7, 8, 9)], AT)
    (start, _) = replay.propose(4, AT)
    continued = [scored(start, ids(9, 9), correct) for correct in (True, False)]
    left_out = replace(continued[0], use=Use.COUNT, values=np.zeros(0, np.float32))
    replay.observe([*continued, left_out, replace(continued[0], use=Use.IMITATE)], AT)
    stats = store.stats()
    assert (stats.outcomes, stats.solved, stats.root_outcomes) == (3, 2, 1)


def test_stale_states_are_valued_anew_and_a_value_that_is_not_finite_is_not_stored(store: ReplayStore) -> None:
    replay = source(store, refreshed=2)
    replay.observe([rollout("p", False, 7, 8, 9)], replace(AT, version=4))
    queries = replay.extra([], AT)
    assert [(query.use, query.tokens.size) for query in queries] == [(Use.VALUE, 1)] * 2
    assert {tuple(query.start.context_ids.tolist()) for query in queries} == {(1, 2, 7), (1, 2, 7, 8)}
    values = (np.array([math.nan], np.float32), np.array([0.25], np.float32))
    replay.observe([replace(query, values=value) for query, value in zip(queries, values, strict=True)], AT)
    assert sorted(state.value for state in store.top(9, 99)) == [0.0, 0.25]
    assert len(store) == 2
    # One has a value of version 5 now; at version 5 the other is stale.
    assert [query.start.state_key for query in replay.extra([], AT)] == [queries[0].start.state_key]


def test_canonical_solutions_of_fresh_starts_are_valued_and_stored(store: ReplayStore) -> None:
    replay = source(store, canonical=True)
    replayed = scored(state_start(SOLVED, ids(3), 77, AT, 0), ids(4), False)
    rollouts = [rollout("p", False, 7, 8), rollout("p", False, 7, 9), rollout("q", False, 7), replayed]
    (solution,) = replay.extra(rollouts, AT)
    assert (solution.tokens.tolist(), solution.use, solution.verdict.correct) == ([3, 4, 5], Use.SOLUTION, True)
    log_p = np.full(3, -1.0, np.float32)
    replay.observe([replace(solution, values=np.zeros(3, np.float32), proximal=log_p)], AT)
    assert [state.prefix_ids.tolist() for state in store.top(9, 99)] in ([[3], [3, 4]], [[3, 4], [3]])
    assert source(store).extra(rollouts, AT) == []
    replaced = [replace(one, use=Use.COUNT) for one in rollouts]  # by dynamic sampling: those that fail altogether
    assert [one.start.problem_id for one in replay.extra(replaced, AT)] == ["p"]


def test_a_rollout_whose_reward_is_not_finite_is_not_stored(store: ReplayStore) -> None:
    lost = replace(rollout("p", False, 7, 8), verdict=Verdict(math.nan, False))
    source(store).observe([lost], AT)
    assert (len(store), store.stats().root_outcomes) == (0, 0)


def test_it_goes_on_from_a_checkpoint(store: ReplayStore, tmp_path: Path) -> None:
    replay = source(store)
    replay.observe([rollout("p", False, 7, 8, 9), rollout("q", True, 7, 8, 9)], AT)
    replay.save(tmp_path / "saved")
    expected = [start.state_key for start in replay.propose(8, AT)]
    replay.restore(None)
    assert replay.propose(8, AT) == []
    replay.restore(tmp_path / "saved")
    assert [start.state_key for start in replay.propose(8, AT)] == expected
    assert replay.metrics()["store_states"] == 4


def test_the_unsolved_share_counts_fresh_problems_without_any_success() -> None:
    rollouts = [rollout("p", False, 5), rollout("p", True, 5), rollout("q", False, 5), scored(STATE, ids(5), True)]
    assert unsolved_share(rollouts) == 0.5
    assert unsolved_share(rollouts[-1:]) == 1.0  # no fresh problem
    assert rollouts[0].finish is Finish.STOP


def test_a_replayed_problem_rests(store: ReplayStore) -> None:
    coverage, config = Coverage(2), ReplayConfig(ratio=0.5, start_states=1, schedule="constant", bounded=True)
    both = Sources(coverage, {"replay": Replay(config, store, PROBLEMS, coverage, Cutting(every, 100), 0)})
    both.observe([rollout("p", False, 7, 8, 9), rollout("q", False, 7, 8, 9)], AT)
    starts = both.propose(8, AT)
    assert [start.id for start in starts] == ["3.r0", "3.r1"]  # one of each problem, though there are four states
    assert {start.problem_id for start in starts} == {"p", "q"}
    both.observe([scored(start, ids(9, 9), False) for start in starts], AT)
    assert both.propose(8, replace(AT, iteration=6)) == []
    both.observe([], replace(AT, iteration=6))
    assert store.stats().hit_rate == 2 / 8  # 4 are wanted in each iteration
    again = both.propose(8, replace(AT, iteration=7))
    assert {start.problem_id for start in again} == {"p", "q"}


def test_a_problem_rests_after_a_resume_although_its_continuations_were_lost(
    store: ReplayStore, tmp_path: Path
) -> None:
    coverage, config = Coverage(2), ReplayConfig(ratio=0.5, start_states=1, schedule="constant", bounded=True)
    replay = Replay(config, store, PROBLEMS, coverage, Cutting(every, 100), 0)
    replay.observe([rollout("p", False, 7, 8, 9)], AT)
    assert [start.problem_id for start in replay.propose(8, replace(AT, iteration=4))] == ["p"]
    replay.save(tmp_path / "in the middle")  # before iteration 4 is observed: it will be repeated
    replay.observe([], replace(AT, iteration=4))
    replay.save(tmp_path / "after")
    for folder, drawn in (("in the middle", ["p"]), ("after", [])):
        replay.restore(tmp_path / folder)
        assert [start.problem_id for start in replay.propose(8, replace(AT, iteration=5))] == drawn


def test_an_iteration_that_is_repeated_knows_of_all_draws_before_it(store: ReplayStore, tmp_path: Path) -> None:
    """Also of draws without outcomes, of problems that it had drawn again."""
    replay = source(store, bounded=True)
    replay.observe([rollout("p", False, 7, 8, 9), rollout("q", False, 7, 8, 9)], AT)
    first, second = (_drawn(replay, 2, iteration, observe=True) for iteration in (4, 5))
    replay.save(tmp_path / "before")
    for iteration in range(9, 17):
        replay.restore(tmp_path / "before")
        assert _drawn(replay, 4, iteration) == first + second  # the one that was drawn longest ago comes first
        replay.save(tmp_path / "in the middle")
        replay.restore(tmp_path / "in the middle")
        assert _drawn(replay, 4, iteration) == first + second


def _drawn(replay: Replay, most: int, iteration: int, *, observe: bool = False) -> list[str]:
    at = replace(AT, iteration=iteration)
    drawn = [start.problem_id for start in replay.propose(most, at)]
    if observe:
        replay.observe([], at)
    return drawn


def test_draws_count_once_their_iteration_is_complete(store: ReplayStore, tmp_path: Path) -> None:
    """A run that is stopped between `propose` and `observe` repeats the iteration."""
    replay = source(store)
    replay.observe([rollout("p", False, 7, 8, 9)], AT)
    replay.propose(8, AT)  # 2 of 4
    replay.save(tmp_path / "stopped")
    assert replay.metrics()["store_hit_rate"] == 0.0
    replay.restore(tmp_path / "stopped")
    replay.propose(8, AT)
    replay.observe([], AT)
    assert (store.stats().requested, store.stats().sampled) == (4, 2)


def test_rounds_of_an_iteration_draw_other_problems(store: ReplayStore) -> None:
    replay = source(store, bounded=True)
    replay.observe([rollout("p", False, 7, 8, 9), rollout("q", False, 7, 8, 9)], AT)
    (first,), (second,) = replay.propose(2, AT), replay.propose(2, replace(AT, round=1))
    assert {first.problem_id, second.problem_id} == {"p", "q"}
    assert replay.propose(2, replace(AT, round=2)) == []


def test_what_follows_a_prefix_of_another_source_is_no_state(store: ReplayStore) -> None:
    hinted = scored(state_start(SOLVED, ids(3, 4), None, AT, 0, "hinted"), ids(7, 8, 9), True)
    source(store).observe([hinted], AT)
    assert len(store) == 0
