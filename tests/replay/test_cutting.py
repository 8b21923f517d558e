"""From rollouts to states: numbers by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest

from core.parts.sources import Progress, root_start, state_start
from core.records import Episode, Finish, FloatArray, IntArray, Problem, Provenance, Rollout, Start, Use, Verdict
from replay.cutting import cut, decided_share

AT = Progress(9, 1, 10, 4)


def ids(*tokens: int) -> IntArray:
    return np.array(tokens, dtype=np.int32)


PROBLEM = Problem("p", ids(1, 2), "gold", level="easy")
ROOT = root_start(PROBLEM, AT, 0)
STATE = state_start(PROBLEM, ids(5, 6, 7), 77, AT, 0)


def every(response: IntArray) -> IntArray:
    return np.arange(1, len(response), dtype=np.int32)


def scored(start: Start, tokens: IntArray, correct: bool, values: FloatArray | None = None) -> Rollout:
    """A rollout of which every token had a probability of 0.9."""
    log_p, versions = np.full(tokens.size, math.log(0.9), np.float32), np.full(tokens.size, 4, np.int32)
    known = np.zeros(tokens.size, np.float32) if values is None else values
    verdict = Verdict(float(correct), correct)
    return Rollout(start, 0, tokens, log_p, versions, Finish.STOP, verdict=verdict, values=known)


def test_starts_are_named_and_seeded_by_iteration() -> None:
    later = replace(AT, iteration=2)
    starts = [root_start(PROBLEM, at, index) for at in (AT, AT, later) for index in (0, 1)]
    assert [start.id for start in starts] == ["1.f0", "1.f1"] * 2 + ["2.f0", "2.f1"]
    assert [start.seed for start in starts[:2]] == [start.seed for start in starts[2:4]]
    seeds = {start.seed for start in starts}
    assert len(seeds) == 4
    assert (STATE.id, STATE.from_root, STATE.state_key, STATE.samples) == ("1.r0", False, 77, 4)
    assert STATE.context_ids.tolist() == [1, 2, 5, 6, 7]
    assert STATE.seed not in seeds
    more = root_start(PROBLEM, replace(AT, round=2), 1)  # of a round of dynamic sampling
    assert more.id == "1.f200001"
    assert more.seed not in seeds


def test_what_was_decided_is_counted_by_surprisal_behind_a_prefix_by_tokens() -> None:
    log_p = np.array([-0.98, -0.48, 0.0, -7.0], np.float32)
    mask = np.array([True, True, True, False])
    rollout = replace(scored(STATE, ids(8, 9, 8, 9), True), logprobs=log_p, mask=mask)
    # surprisal + 0.02 of the policy's tokens: 1, 0.5, 0.02; the last token is not the policy's
    known = 3 / (3 + 4)
    expected = known + (1 - known) * np.array([0, 1, 1.5, 1.52]) / 1.52
    np.testing.assert_allclose(decided_share(rollout), expected, rtol=1e-6)
    canonical = replace(scored(ROOT, ids(3, 4, 5, 6), True), use=Use.SOLUTION, proximal=np.full(4, -1.0, np.float32))
    np.testing.assert_allclose(decided_share(canonical), [0, 0.25, 0.5, 0.75], rtol=1e-6)


def test_states_lie_inside_the_continuation_with_the_value_before_the_next_token() -> None:
    values = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
    # The response is 5 6 7 | 8 9 10 11. Boundaries after 1, 3 (both in the prefix: states already), 4 and 6 tokens.
    states = cut(scored(STATE, ids(8, 9, 10, 11), False, values), lambda _: ids(1, 3, 4, 6), budget=100)
    assert states.rollout.response_ids.tolist() == [5, 6, 7, 8, 9, 10, 11]
    assert states.lengths.tolist() == [4, 6]
    # State of length 4 = prefix and token 8: the value before continuation token 4 - 3 = 1; length 6: token 3.
    assert states.values.tolist() == np.array([0.2, 0.4], np.float32).tolist()
    assert (states.provenance, states.problem_id) == (Provenance.OWN_FAILED, "p")


def test_a_state_of_a_truncated_rollout_leaves_room_to_finish() -> None:
    """Of a budget of 8 tokens a quarter stays: states of at most 6. A response that ended by itself had enough."""
    ended = scored(ROOT, ids(*range(8, 16)), correct=False)
    for rollout, expected in ((replace(ended, finish=Finish.LENGTH), [2, 4, 6]), (ended, [2, 4, 6, 7])):
        assert cut(rollout, lambda _: ids(2, 4, 6, 7), budget=8).lengths.tolist() == expected


def test_states_begin_after_answers_and_repeated_turns_are_steps() -> None:
    """Two turns in the prefix of three tokens. Then: 8, answer, 9 10, answer, 11."""
    mask = np.array([1, 0, 1, 1, 0, 1], np.bool_)
    episode = Episode(((0, 0.0), (3, 0.0), (5, 1.0)), 1.0, turns=5, repeated=2)
    rollout = replace(scored(STATE, ids(*range(8, 14)), True), mask=mask, episode=episode)
    # after the first answer, inside the second turn, after its answer
    assert cut(rollout, lambda _: ids(6), budget=100).lengths.tolist() == [5, 6, 8]
    assert episode.steps == 5  # three, and two that were repeated


def test_a_rollout_without_values_has_no_states() -> None:
    plain = scored(ROOT, ids(8, 9, 10), True, np.zeros(0, np.float32))
    states = cut(plain, lambda _: ids(1, 2), budget=100)
    assert (states.lengths.size, states.provenance) == (0, Provenance.OWN_SUCCESSFUL)
    answered = replace(plain, mask=np.array([True, False, True]))
    assert cut(answered, lambda _: ids(1, 2), budget=100).lengths.size == 0  # the end of an answer neither


def wrong_from_9(problem: str, response: IntArray) -> bool | None:
    """What contains a 9 is wrong; nothing is known of problem q."""
    return None if problem == "q" else 9 in response.tolist()


@pytest.mark.parametrize(
    ("problem", "tokens", "lengths"),
    [("p", (7, 8, 9, 10), [1, 2]), ("p", (7, 8, 8, 10), [1, 2, 3]), ("q", (9, 9, 9), [1, 2])],
)
def test_states_after_an_error_are_left_out(problem: str, tokens: tuple[int, ...], lengths: list[int]) -> None:
    rollout = scored(root_start(replace(PROBLEM, id=problem), AT, 0), ids(*tokens), True)
    assert cut(rollout, every, 100, wrong_from_9).lengths.tolist() == lengths
    assert len(cut(rollout, every, 100).lengths) == len(tokens) - 1


@pytest.mark.parametrize(("problem", "kind"), [("p", Provenance.OWN_PARTIAL), ("q", Provenance.OWN_FAILED)])
def test_right_lines_of_a_failure_are_a_part_of_a_solution(problem: str, kind: Provenance) -> None:
    failed = scored(root_start(replace(PROBLEM, id=problem), AT, 0), ids(7, 8, 9, 10), False)
    assert cut(failed, every, 100, wrong_from_9).provenance == kind
    assert cut(failed, every, 100).provenance == Provenance.OWN_FAILED


def test_a_failure_that_solves_a_part_is_told_apart() -> None:
    whole, wrong = scored(ROOT, ids(8, 8, 8, 8), True), scored(ROOT, ids(8, 8, 9, 8), False)
    part, form, none = (replace(wrong, verdict=replace(wrong.verdict, share=share)) for share in (0.5, 0.05, 0.0))
    kinds = [Provenance.OWN_SUCCESSFUL, Provenance.OWN_FAILED, Provenance.OWN_PARTIAL, *[Provenance.OWN_FAILED] * 2]
    assert [cut(one, every, 100).provenance for one in (whole, wrong, part, form, none)] == kinds


@pytest.mark.parametrize("correct", [True, False])
def test_states_after_which_nothing_is_decided_are_left_out(correct: bool) -> None:
    """Behind a prefix of three tokens. The rest has a probability of 0.94 after the first, 0.96 after the second."""
    log_p = np.log(np.array([0.5, 0.94 / 0.96, 0.96, 1.0], np.float32))
    rollout = replace(scored(STATE, ids(8, 9, 10, 11), correct), logprobs=log_p)
    assert cut(rollout, lambda _: ids(4, 5, 6), budget=100).lengths.tolist() == [4]
    # of a canonical solution the learner says how sure the policy is
    solution = replace(rollout, use=Use.SOLUTION, proximal=np.full(4, -1.0, np.float32))
    assert cut(solution, lambda _: ids(4, 5, 6), budget=100).lengths.tolist() == [4, 5, 6]
    assert cut(replace(solution, proximal=log_p), lambda _: ids(4, 5, 6), budget=100).lengths.tolist() == [4]


def test_a_state_whose_value_is_not_finite_is_left_out() -> None:
    values = np.array([0.1, np.nan, 0.3], np.float32)
    states = cut(scored(ROOT, ids(8, 9, 10), True, values), lambda _: ids(1, 2), budget=100)
    # The state of length 1 has the value before token 1, which is NaN; the one of length 2 has 0.3.
    assert states.lengths.tolist() == [2]
    assert states.values.tolist() == [np.float32(0.3)]
