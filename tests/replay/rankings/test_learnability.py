"""The ranking `learnability`: by hand, and in closed loop with a made-up policy."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from core.config import ReplayConfig
from replay.evidence import Evidence
from replay.rankings.find import find_ranking
from replay.rankings.learnability import state_chances
from replay.success import Known, features_of
from tests.replay.rankings.closed_loop import Loop, made
from tests.replay.rankings.test_rankings import (
    CANONICAL,
    FAILED,
    INF,
    PARTIAL,
    SUCCESS,
    columns,
    ranking,
    told,
)

__all__ = ["made"]  # a fixture
OURS = ranking("learnability")
CHAIN = [25, 50, 75], [CANONICAL] * 3


def weights(lengths: list[int], provenance: list[int], **given: object) -> list[float]:
    """By which states are drawn at temperature 1, in millionths."""
    found = np.exp(OURS.priority(columns(lengths, provenance, **given)).astype(np.float64))
    return [round(1e6 * float(weight)) for weight in found]


def test_the_worked_example() -> None:
    # p = 0.148047, 0.377541, 0.679179; 4 p (1 - p) = 0.504518, 0.940015, 0.871580, in all 2.316113.
    # The problem is worth 0.940015, of which each gets its share.
    expected = [0.940015 * worth / 2.316113 for worth in (0.504518, 0.940015, 0.871580)]
    assert weights(*CHAIN) == pytest.approx([1e6 * weight for weight in expected], abs=2)


def test_a_state_counts_its_own_outcomes_on_top_of_the_model() -> None:
    failed = columns([75, 50], [FAILED, FAILED], wins=[3, 0], losses=[1, 0])
    before = 1 / (1 + np.exp(3 + 1.25))  # 2 - 5 / 4 - 5 in log odds: 0.0141; a failure tells nothing of its problem
    # four outcomes of the model, four of its own
    assert state_chances(failed)[0] == pytest.approx((4 * before + 3) / 8)


def test_states_of_failures_and_of_solved_problems_are_not_replayed() -> None:
    assert weights([75, 90], [FAILED] * 2) == [0, 0]  # 2 - 0.5 - 5 = -3.5 in log odds: 0.029
    assert told("learnability", columns([75], [FAILED])) == ["its chance of success is below 5%"]
    assert weights(*CHAIN, root_wins=[2] * 3, root_losses=[1] * 3) == [0, 0, 0]  # 3 / 5 > 1/2
    solved = columns(*CHAIN, root_wins=[2] * 3, root_losses=[1] * 3)
    assert told("learnability", solved) == ["its problem is solved from the root"] * 3
    half = weights(*CHAIN, root_wins=[2] * 3, root_losses=[2] * 3)  # 3 / 6: only its end is certain
    assert [weight > 0 for weight in half] == [True, True, False]


def test_states_of_failures_that_solve_a_part_begin_like_those_of_successes() -> None:
    """Until their own continuations, or those of others, tell more."""
    begun = columns([50, 50], [PARTIAL, SUCCESS], problem=[0, 1], chain=[0, 1])
    assert state_chances(begun)[0] == pytest.approx(state_chances(begun)[1])
    assert weights([50], [PARTIAL])[0] > 0 == weights([50], [FAILED])[0]
    assert weights([50], [PARTIAL], losses=[80], tried=[80]) == [0]
    other = replace(begun, model=replace(begun.model, weights=(2.0, -5.0, -5.0, 0.0, 0.0, 0.0, 0.0, -5.0, 0.0)))
    assert told("learnability", other) == ["its chance of success is below 5%", ""]


def test_a_problem_is_drawn_by_its_best_state_whatever_their_number() -> None:
    two = weights([25, 50, 75, 50], [CANONICAL] * 4, problem=[0, 0, 0, 1], chain=[0, 0, 0, 1])
    assert sum(two[:3]) == pytest.approx(two[3], abs=3)


def test_a_state_that_never_fails_is_not_replayed() -> None:
    assert weights(*CHAIN, wins=[0, 0, 4], tried=[0, 0, 4])[2] == 0
    once = columns(*CHAIN, wins=[0, 3, 4], losses=[0, 0.5, 0], tried=[0, 4, 4])
    assert told("learnability", once) == ["", "", "none of its continuations fails"]
    sure = columns([99], [CANONICAL], root_wins=[3], root_losses=[5], value=[4.0])
    sure = replace(sure, model=replace(sure.model, weights=(3.5, -5.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)))
    assert told("learnability", sure) == ["its chance of success is above 95%"]


def test_a_problem_without_a_success_from_the_root_comes_first_where_successes_are_imitated() -> None:
    solved_once = {"problem": [0, 1], "root_solved": [1, 0], "root_wins": [1, 0], "root_losses": [7, 8]}
    states = columns([50, 50], [CANONICAL] * 2, **solved_once)
    first, second = find_ranking(ReplayConfig(imitated=32)).priority(states)
    alone = find_ranking(ReplayConfig(imitated=0)).priority(states)
    assert alone[0] > alone[1]  # the root makes it likelier to succeed
    assert second == alone[1]
    assert first == pytest.approx(alone[0] - 10)


def test_states_of_failures_that_solve_a_part_are_tried_and_rest_when_their_continuations_fail() -> None:
    """8 rollouts from the root fail. States of those that solve nothing wait."""
    states = columns([25, 75, 75], [PARTIAL, PARTIAL, FAILED], root_losses=[8] * 3, chain=[0, 0, 1])
    assert told("learnability", states) == ["", "", "its chance of success is below 5%"]
    evidence = Evidence()
    evidence.join([Known(0.4, features) for features in features_of(states)[:2].tolist()], [[False] * 8] * 2, 1.0)
    later = replace(states, model=evidence.model(of_success=True))
    assert told("learnability", later) == ["its chance of success is below 5%"] * 3
    proven = replace(later, provenance=np.full(3, SUCCESS, np.uint8))
    assert told("learnability", proven)[1] == ""  # what it says of other states is less


def test_what_is_left_is_counted_in_decisions() -> None:
    """Half of the tokens are still to come, but hardly a decision: 2 - 5 x 0.02 instead of 2 - 5 x 0.5 in log odds."""
    assert state_chances(columns([50], [SUCCESS], left=[0.02]))[0] == pytest.approx(1 / (1 + np.exp(-1.9)))


def test_a_mastered_end_moves_the_start_back() -> None:
    begin, mastered = weights(*CHAIN), weights(*CHAIN, wins=[0, 0, 16])
    assert np.argmax(begin) == 1
    assert np.argmax(mastered) == 0


def test_a_lucky_chain_is_left_after_a_few_failures() -> None:
    assert weights(*CHAIN, losses=[0, 0, 4])[0] == 0
    assert weights(*CHAIN, losses=[0, 0, 8]) == [0, 0, 0]


def test_what_is_needed_later_is_kept() -> None:
    states = columns([25, 50, 75, 60], [SUCCESS] * 3 + [FAILED], chain=[0, 0, 0, 1], root_losses=[60] * 4)
    priority = OURS.priority(states)
    assert (priority[0], priority[3]) == (-INF, -INF)  # hopeless from there, as yet
    kept = OURS.retention(states, priority)
    assert kept[0] > 1
    assert kept[3] == 0


def test_a_proven_state_is_kept_before_a_partial_one() -> None:
    states = columns([75, 25, 60], [SUCCESS, PARTIAL, FAILED], chain=[0, 1, 2], tried=[0, 4, 0], wins=[0, 2, 0])
    kept = OURS.retention(states, OURS.priority(states))
    assert kept[0] > 2 >= kept[1] > 1 > kept[2]


def share_before(length: int, loop: Loop) -> float:
    """Chance that the next draw is a shorter state."""
    rows = loop.rows()
    weight = np.exp(rows["priority"].astype(np.float64))
    return float(weight[rows["length"] < length].sum() / weight.sum())


def test_the_start_moves_back_as_the_end_is_mastered(made: Callable[..., Loop]) -> None:
    """Of 21 tokens the policy always finishes the last 10; from before it succeeds in 2 of 5, and the root fails."""
    loop = made(size=21)
    shares = []
    for _ in range(80):
        loop.turn(lambda k, _v: 1.0 if k > 10 else 0.4 if k else 0.0, starts=1, roots=1)
        shares.append(share_before(11, loop))
    assert shares[0] < 0.65
    assert np.mean(shares[-40:]) > 0.75


def test_a_problem_that_the_root_solves_gets_no_draws(made: Callable[..., Loop]) -> None:
    """A step is right in 0.7 of all tries at first, always from version 30 on."""
    loop = made()
    seen = [loop.turn(lambda k, v: min(0.7 + 0.01 * v, 1.0) ** (11 - k), roots=2) for _ in range(50)]
    assert sum(map(len, seen[1:12])) >= 5
    assert sum(map(len, seen[40:])) == 0


def test_a_problem_that_never_succeeds_again_is_left_alone(made: Callable[..., Loop]) -> None:
    loop = made()
    seen = [len(loop.turn(lambda _k, _v: 0.0, roots=2)) for _ in range(40)]
    assert seen[1] == 1  # at first it counts as solved: one of one
    assert sum(seen) <= 12
