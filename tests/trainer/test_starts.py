"""What joins problems, store and rollouts: numbers by hand."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from core.records import (
    Episode,
    Finish,
    IntArray,
    Judged,
    Problem,
    Provenance,
    ReplayedState,
    Start,
    Success,
    Trajectory,
    Verdict,
)
from trainer.starts import (
    NO_VALUES,
    canonical_rollouts,
    cut_trajectories,
    decided_share,
    erroneous_share,
    erroneous_states,
    fresh_starts,
    imitated_rollouts,
    outcomes,
    replayed_count,
    replayed_starts,
    unsolved_share,
    value_queries,
)


def ids(*tokens: int) -> IntArray:
    return np.array(tokens, dtype=np.int32)


PROBLEM = Problem("p", ids(1, 2), "gold", level="easy")
STATE = ReplayedState(77, "p", ids(5, 6, 7), 0.5, Provenance.OWN_FAILED, 3)


def judged(start: Start, tokens: IntArray, correct: bool, sample: int = 0) -> Judged:
    """A rollout of which every token had a probability of 0.9."""
    log_p, versions = np.full(tokens.size, math.log(0.9), np.float32), np.full(tokens.size, 4, np.int32)
    trajectory = Trajectory(start, sample, tokens, log_p, versions, Finish.STOP)
    return Judged(trajectory, Verdict(float(correct), correct))


def test_starts_are_named_and_seeded_by_iteration() -> None:
    first, again, later = (fresh_starts([PROBLEM, PROBLEM], 4, seed=9, iteration=i) for i in (1, 1, 2))
    assert [start.id for start in first] == ["1.f0", "1.f1"]
    assert [start.seed for start in first] == [start.seed for start in again]
    seeds = [start.seed for start in (*first, *later)]
    assert len(set(seeds)) == 4
    replayed = replayed_starts([STATE], {"p": PROBLEM}, 4, seed=9, iteration=1)[0]
    assert replayed.id == "1.r0"
    assert replayed.replayed
    assert replayed.state_key == 77
    assert replayed.context_ids.tolist() == [1, 2, 5, 6, 7]
    assert replayed.seed not in seeds


def test_what_was_decided_is_counted_by_surprisal_behind_a_prefix_by_tokens() -> None:
    state = replayed_starts([STATE], {"p": PROBLEM}, 2, 0, 1)[0]
    depth, tokens = state.prefix_ids.size, ids(8, 9, 8, 9)
    log_p = np.array([-0.98, -0.48, 0.0, -7.0], np.float32)
    found = Trajectory(state, 0, tokens, log_p, ids(0, 0, 0, 0), Finish.STOP, np.array([True, True, True, False]))
    # surprisal + 0.02 of the policy's tokens: 1, 0.5, 0.02; the last token is not the policy's
    known = depth / (depth + 4)
    expected = known + (1 - known) * np.array([0, 1, 1.5, 1.52]) / 1.52
    np.testing.assert_allclose(decided_share(found), expected, rtol=1e-6)
    solved = Problem("s", ids(1), "gold", solution_ids=ids(3, 4, 5, 6))
    canonical = canonical_rollouts(fresh_starts([solved], 1, 0, 1), {"s": solved})[0].trajectory
    np.testing.assert_allclose(decided_share(canonical), [0, 0.25, 0.5, 0.75], rtol=1e-6)


def test_only_replayed_starts_have_outcomes() -> None:
    root = fresh_starts([PROBLEM], 1, 0, 1)[0]
    state = replayed_starts([STATE], {"p": PROBLEM}, 2, 0, 1)[0]
    found = outcomes([judged(root, ids(8), True), judged(state, ids(8), True), judged(state, ids(9), False, 1)])
    assert [(item.state_key, item.correct, item.success) for item in found] == [(77, True, 1.0), (77, False, 0.0)]
    assert [item.version for item in found] == [4, 4]


def test_candidates_lie_inside_the_continuation_with_the_value_before_the_next_token() -> None:
    start = replayed_starts([STATE], {"p": PROBLEM}, 1, 0, 1)[0]
    item = judged(start, ids(8, 9, 10, 11), correct=False)
    values = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
    # The response is 5 6 7 | 8 9 10 11. Boundaries after 1, 3 (both in the prefix: states already), 4 and 6 tokens.
    found = cut_trajectories([item], [values], lambda _: ids(1, 3, 4, 6), version=12)[0]
    assert found.response_ids.tolist() == [5, 6, 7, 8, 9, 10, 11]
    assert found.lengths.tolist() == [4, 6]
    # State of length 4 = prefix and token 8: the value before continuation token 4 - 3 = 1; length 6: token 3.
    assert found.values.tolist() == np.array([0.2, 0.4], np.float32).tolist()
    assert found.provenance is Provenance.OWN_FAILED
    assert found.parent == 77
    assert found.version == 12


def test_a_state_of_a_truncated_trajectory_leaves_room_to_finish() -> None:
    """Of a budget of 8 tokens a quarter stays: states of at most 6. A response that ended by itself had enough."""
    root = fresh_starts([PROBLEM], 1, 0, 1)[0]
    ended = judged(root, ids(*range(8, 16)), correct=False)
    cut = replace(ended, trajectory=replace(ended.trajectory, finish=Finish.LENGTH))
    values = [np.zeros(8, np.float32)] * 2
    found = cut_trajectories([cut, ended], values, lambda _: ids(2, 4, 6, 7), 1, budget=8)
    assert [c.lengths.tolist() for c in found] == [[2, 4, 6], [2, 4, 6, 7]]


def test_states_begin_after_answers_and_repeated_turns_are_steps() -> None:
    """Two turns in the prefix of three tokens. Then: 8, answer, 9 10, answer, 11."""
    state = replayed_starts([STATE], {"p": PROBLEM}, 1, 0, 1)[0]
    mask = np.array([1, 0, 1, 1, 0, 1], np.bool_)
    episode = Episode(((0, 0.0), (3, 0.0), (5, 1.0)), 1.0, turns=5, repeated=2)
    plain = judged(state, ids(*range(8, 14)), correct=True)
    item = replace(plain, trajectory=replace(plain.trajectory, mask=mask, episode=episode))
    values = [np.zeros(6, np.float32)]
    found = cut_trajectories([item], values, lambda _: ids(6), 1)[0]
    assert found.lengths.tolist() == [5, 6, 8]  # after the first answer, inside the second turn, after its answer
    assert episode.steps == 5  # three, and two that were repeated


def test_the_share_of_replay_falls_with_the_run_or_with_what_is_solved() -> None:
    assert [replayed_count(10, "annealed", progress, 1.0) for progress in (0.0, 0.5, 0.9)] == [10, 5, 1]
    assert [replayed_count(10, "unsolved", 0.0, share) for share in (1.0, 0.7, 0.0)] == [10, 7, 0]


def test_the_unsolved_share_counts_fresh_problems_without_any_success() -> None:
    solved, failed = fresh_starts([PROBLEM, replace(PROBLEM, id="q")], 2, seed=9, iteration=1)
    (replayed,) = replayed_starts([STATE], {"p": PROBLEM}, 2, seed=9, iteration=1)
    rollouts = [(solved, False), (solved, True), (failed, False), (failed, False), (replayed, True)]
    found = [judged(start, ids(5), correct) for start, correct in rollouts]
    assert unsolved_share(found) == 0.5
    assert unsolved_share(found[-1:]) == 1.0  # no fresh problem


def test_a_trajectory_without_values_offers_its_outcome_alone() -> None:
    item = judged(fresh_starts([PROBLEM], 1, 0, 1)[0], ids(8, 9, 10), correct=True)
    found = cut_trajectories([item], [NO_VALUES], lambda _: ids(1, 2), 1)[0]
    assert found.lengths.size == 0
    assert found.provenance is Provenance.OWN_SUCCESSFUL
    called = judged(item.trajectory.start, ids(8, 9, 10), correct=True)
    answered = replace(called, trajectory=replace(called.trajectory, mask=np.array([True, False, True])))
    found = cut_trajectories([answered], [NO_VALUES], lambda _: ids(1, 2), 1)[0]
    assert found.lengths.size == 0  # the end of an answer neither


def test_canonical_solutions_of_fresh_starts_only() -> None:
    solved = Problem("s", ids(1), "gold", solution_ids=ids(3, 4))
    problems = {"p": PROBLEM, "s": solved}
    starts = [*fresh_starts([PROBLEM, solved], 2, 0, 1), *replayed_starts([STATE], problems, 2, 0, 1)]
    found = canonical_rollouts(starts, problems)
    assert [item.trajectory.tokens.tolist() for item in found] == [[3, 4]]
    assert found[0].verdict.correct


def test_an_imitated_success_is_a_whole_response_from_the_root() -> None:
    found = imitated_rollouts([Success("p", ids(8, 9), 1.0)], {"p": PROBLEM})[0].trajectory
    assert (found.start.replayed, found.start.context_ids.tolist(), found.tokens.tolist()) == (False, [1, 2], [8, 9])
    assert found.generated.all()
    mask = np.array([True, False, True])
    answered = imitated_rollouts([Success("p", ids(8, 9, 8), 1.0, mask)], {"p": PROBLEM})[0].trajectory
    assert answered.generated.tolist() == [True, False, True]  # the environment's part is not imitated


def test_a_value_query_reads_the_state_before_its_token() -> None:
    query = value_queries([STATE], {"p": PROBLEM})[0]
    assert query.trajectory.start.context_ids.tolist() == [1, 2, 5, 6, 7]
    assert query.trajectory.tokens.size == 1


def wrong_from_9(problem: str, response: IntArray) -> bool | None:
    """What contains a 9 is wrong; nothing is known of problem q."""
    return None if problem == "q" else 9 in response.tolist()


def test_erroneous_shares_count_what_can_be_told() -> None:
    texts = [("p", ids(9)), ("p", ids(1)), ("p", ids(2)), ("p", ids(3)), ("q", ids(9))]
    assert erroneous_share(texts, wrong_from_9) == 0.25  # 1 of 4
    assert math.isnan(erroneous_share(texts[4:], wrong_from_9))
    root, other = fresh_starts([PROBLEM, replace(PROBLEM, id="q")], 1, 0, 1)
    rollouts = [
        judged(root, ids(7, 8, 9, 10, 11), True),
        judged(root, ids(7, 8), False),
        judged(other, ids(9, 9), True),
    ]
    # States after every token but the last: 4 + 1. Those of lengths 3 and 4 contain the 9.
    every = lambda response: np.arange(1, len(response), dtype=np.int32)  # noqa: E731
    assert erroneous_states(rollouts, every, wrong_from_9) == 2 / 5
    assert math.isnan(erroneous_states(rollouts[2:], every, wrong_from_9))


def test_states_after_an_error_are_left_out_and_the_success_is_lucky() -> None:
    root, other = fresh_starts([PROBLEM, replace(PROBLEM, id="q")], 1, 0, 1)
    rollouts = [
        judged(root, ids(7, 8, 9, 10), True),
        judged(root, ids(7, 8, 9, 10), False),
        judged(root, ids(7, 8, 8, 10), True),
        judged(other, ids(9, 9, 9), True),
    ]
    values = [np.zeros(item.trajectory.tokens.size, np.float32) for item in rollouts]
    cut = partial(cut_trajectories, rollouts, values, lambda response: np.arange(1, len(response), dtype=np.int32), 1)
    found = [(one.lengths.tolist(), one.lucky) for one in cut(is_wrong=wrong_from_9)]
    assert found == [([1, 2], True), ([1, 2], False), ([1, 2, 3], False), ([1, 2], False)]
    assert [len(one.lengths) for one in cut()] == [3, 3, 3, 2]


def test_a_failure_that_solves_a_part_is_told_apart() -> None:
    start = fresh_starts([PROBLEM], 1, 0, 1)[0]
    whole, wrong = judged(start, ids(8, 8, 8, 8), correct=True), judged(start, ids(8, 8, 9, 8), correct=False)
    part, form, none = (replace(wrong, verdict=replace(wrong.verdict, share=share)) for share in (0.5, 0.05, 0.0))
    found = cut_trajectories([whole, wrong, part, form, none], [np.zeros(4, np.float32)] * 5, lambda _: ids(1), 1)
    kinds = [Provenance.OWN_SUCCESSFUL, Provenance.OWN_FAILED, Provenance.OWN_PARTIAL, *[Provenance.OWN_FAILED] * 2]
    assert [one.provenance for one in found] == kinds
    assert [one.success for one in found] == [1.0, 0.0, 0.5, 0.05, 0.0]


@pytest.mark.parametrize("correct", [True, False])
def test_states_after_which_nothing_is_decided_are_left_out(correct: bool) -> None:
    """Behind a prefix of three tokens. The rest has a probability of 0.94 after the first, 0.96 after the second."""
    state = replayed_starts([STATE], {"p": PROBLEM}, 1, 0, 1)[0]
    plain = judged(state, ids(8, 9, 10, 11), correct)
    log_p = np.log(np.array([0.5, 0.94 / 0.96, 0.96, 1.0], np.float32))
    item = replace(plain, trajectory=replace(plain.trajectory, logprobs=log_p))
    cut = partial(cut_trajectories, values=[np.zeros(4, np.float32)], boundaries=lambda _: ids(4, 5, 6), version=1)
    assert cut([item])[0].lengths.tolist() == [4]
    given = cut([item], provenance=lambda _: Provenance.CANONICAL)[0]  # nobody knows what the policy says of it
    assert given.lengths.tolist() == [4, 5, 6]


def test_what_is_not_finite_is_not_offered() -> None:
    start = fresh_starts([PROBLEM], 1, 0, 1)[0]
    item = judged(start, ids(8, 9, 10), correct=True)
    values = np.array([0.1, np.nan, 0.3], np.float32)
    found = cut_trajectories([item], [values], lambda _: ids(1, 2), version=1)[0]
    # The state of length 1 has the value before token 1, which is NaN; the one of length 2 has 0.3.
    assert found.lengths.tolist() == [2]
    assert found.values.tolist() == [np.float32(0.3)]
    unrewarded = Judged(item.trajectory, Verdict(math.nan, False))
    assert cut_trajectories([unrewarded], [values], lambda _: ids(2), version=1) == []
