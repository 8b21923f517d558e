"""The examples of one's own rankings (`bench/rankings/`), on hand-computed cases."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bench.rankings.frontier import isotonic
from core.config import ReplayConfig
from core.errors import ConfigError
from core.records import FloatArray
from replay.rankings.base import StateColumns
from replay.rankings.find import check_ranking
from tests.replay.rankings.test_rankings import CANONICAL, FAILED, INF, PARTIAL, SUCCESS, columns, ranking, told

FRONTIER = "bench.rankings.frontier:Frontier"
SUCCESS_PREFIX = "bench.rankings.success_prefix:SuccessPrefix"
BACKWARDS = "bench.rankings.canonical:Canonical"


@pytest.mark.parametrize("name", [FRONTIER, SUCCESS_PREFIX, BACKWARDS])
def test_they_pass_the_check_of_a_users_ranking(name: str) -> None:
    check_ranking(ReplayConfig(ranking=name, ratio=0.5, canonical=True))


def test_a_ranking_refuses_a_recipe_that_gives_it_nothing() -> None:
    with pytest.raises(ConfigError, match=r"replay\.canonical"):
        check_ranking(ReplayConfig(ranking=BACKWARDS, ratio=0.5))
    check_ranking(ReplayConfig(ranking=BACKWARDS, ratio=0))  # where nothing is replayed


def frontier(given: StateColumns) -> FloatArray:
    return ranking(FRONTIER).priority(given)


def test_isotonic_pools_weighted_violators_of_one_chain_only() -> None:
    rate, weight = np.array([0.5, 0.1, 0.3, 0.9, 0.2]), np.array([1.0, 3.0, 1.0, 1.0, 1.0])
    chain = np.array([0, 0, 0, 1, 2])
    # chain 0: 0.5, 0.1 pool to (0.5 + 0.3) / 4 = 0.2 <= 0.3; 0.9 > 0.2 belong to different chains
    np.testing.assert_allclose(isotonic(rate, weight, chain), [0.2, 0.2, 0.3, 0.9, 0.2])


def priorities(wins: list[float], losses: list[float], **given: Any) -> list[float]:
    found = frontier(columns([25, 50, 75], [CANONICAL] * 3, wins=wins, losses=losses, **given))
    return [round(float(p), 3) for p in found]


def test_frontier_follows_the_worked_example() -> None:
    # h = 2.5: exp(-1.875) = 0.153, exp(-1.25) = 0.287, exp(-0.625) = 0.535: priority 1 - 0.035 at the third
    assert priorities([0, 0, 0], [0, 0, 0]) == [-INF, -INF, 0.965]
    # 4 wins: h = 1 / 1.4, exp(-0.536) = 0.585: priority 1 - 0.085
    assert priorities([0, 0, 4], [0, 0, 0]) == [0.915, -INF, -INF]
    # 4 losses: h = 5 / 2.6, exp(-0.962) = 0.382: priority 1 - 0.118
    assert priorities([0, 0, 4], [4, 0, 0]) == [-INF, 0.882, -INF]
    # 2 wins, 2 losses: h = 7 / 4, (2 + 2 exp(-0.875)) / 6 = 0.472
    assert priorities([0, 2, 4], [4, 2, 0]) == [-INF, 0.972, -INF]
    # decayed: h = 3 / 5.15, 2 exp(-0.437) / 3 = 0.431
    assert priorities([0, 8, 1], [1, 1, 0]) == [0.931, -INF, -INF]
    assert priorities([14, 4, 0.5], [0.4, 0.4, 0]) == [-INF] * 3


def test_a_mastered_frontier_moves_up_though_the_next_state_is_below_the_target() -> None:
    # h = 5 / (0.4 + 10 * 0.5 + 1.6 * 0.75) = 0.758: 0.25 has 2 exp(-0.568) / 6 = 0.189,
    # but (10 + 1) / (10 + 2) > 0.9 at 0.5
    assert priorities([0, 10, 0], [4, 0, 0]) == [0.689, -INF, -INF]
    # 9 / 10: not yet. h = 5 / 5.6, at 0.5 (8 + 2 exp(-0.446)) / 10 = 0.928, pooled with the prior
    # exp(-0.223) = 0.8 at 0.75
    assert priorities([0, 8, 0], [4, 0, 0]) == [-INF, 0.574, -INF]


def test_a_chain_that_its_continuations_do_not_confirm_rests() -> None:
    # 20 losses at the last state: h = 21 / (0.4 + 8 * 0.25) = 8.75, (2 exp(-2.19)) / 22 = 0.010 < 0.05
    assert priorities([0, 0, 0], [0, 0, 20]) == [-INF] * 3
    # 4 losses: h = 5 / (0.4 + 1.6 * 0.25) = 6.25, (2 exp(-1.5625)) / 6 = 0.070
    assert priorities([0, 0, 0], [0, 0, 4]) == [-INF, -INF, 0.57]


def test_rollouts_from_the_root_say_where_a_chain_is_begun() -> None:
    # way (0.4 + 4 + 1.6) / 5 = 1.2: exp(-0.75 / 1.2) = 0.535
    assert priorities([0, 0, 0], [0, 0, 0], root_wins=[4] * 3, root_losses=[4] * 3) == [0.965, -INF, -INF]
    # never solved: way (0.4 + 16) / 41 = 0.4, as without any rollout
    assert priorities([0, 0, 0], [0, 0, 0], root_losses=[40] * 3) == [-INF, -INF, 0.965]


def test_a_chain_rests_by_outcomes_of_its_beginning_alone_and_a_solved_problem_as_a_whole() -> None:
    assert priorities([9, 0, 0], [0, 0, 0]) == [-INF] * 3  # 10 / 11
    assert priorities([0, 40, 0], [0, 0, 0])[0] > 0  # p = 0.94 there, but nobody has tried
    assert priorities([0, 0, 0], [0, 0, 0], root_wins=[10] * 3) == [-INF] * 3  # 11 / 12 > 0.9


def retention(name: str, given: StateColumns) -> list[float]:
    found = ranking(name)
    return [round(float(w), 4) for w in found.retention(given, found.priority(given))]


def test_tried_chains_are_kept_before_untried_ones_and_of_those_that_rest_the_beginning() -> None:
    two = columns([20, 60, 10, 70], [SUCCESS] * 4, chain=[5, 5, 4, 4], tried=[0, 4, 0, 0], wins=[0, 4, 0, 0])
    assert np.isfinite(frontier(two)).tolist() == [True, False, False, True]
    # Chain 5 has been tried: class 4, order 0 for its frontier, 1 / (1 + 1024) for what was tried; chain 4:
    # class 3, order 1 for its frontier and 1 + 1 / (1 + 1024) for its beginning.
    expected = [4 + 1, 4 + 1 / (1 + 1 / 1025), 3 + 1 / (2 + 1 / 1025), 3 + 1 / 2]
    assert retention(FRONTIER, two) == [round(w, 4) for w in expected]
    rests = columns([20, 60, 90], [SUCCESS, SUCCESS, FAILED], chain=[5, 5, 6], tried=[12, 0, 0], wins=[12, 0, 0])
    assert retention(FRONTIER, rests) == [round(4 + 1 / (1 + 1 / 1025), 4), round(2 + 1 / 1.5, 4), 0.0]


def test_a_chain_that_is_too_long_keeps_states_from_its_beginning_to_its_end() -> None:
    given = columns(list(range(10, 90, 10)), [CANONICAL] * 8)
    # The frontier (0.6: exp(-2.5 * 0.4) = 0.37) first, then the shallowest, then every fourth, second, the others.
    order = np.argsort([-w for w in retention(FRONTIER, given)], kind="stable")
    assert (order + 1).tolist() == [6, 1, 5, 3, 7, 2, 4, 8]
    # of a curriculum its present state, the last
    assert np.argmax(retention(BACKWARDS, given)) == 7


def test_frontier_waits_for_the_first_success_of_a_problem() -> None:
    assert frontier(columns([20, 66, 67, 90], [FAILED] * 4)).tolist() == [-INF] * 4
    assert frontier(columns([20, 66], [PARTIAL] * 2)).tolist() == [-INF] * 2  # solves a part, and a failure
    assert told(FRONTIER, columns([66], [PARTIAL])) == ["an own failure: this ranking follows successes"]
    mixed = columns([90, 50], [FAILED, SUCCESS], chain=[0, 1])
    assert frontier(mixed).tolist() == pytest.approx([-INF, 1 - (0.5 - np.exp(-1.25))])
    assert retention(FRONTIER, mixed) == [0.0, 4.0]


def test_success_prefix_takes_own_successes_of_hard_problems() -> None:
    given = columns([10, 20, 30], [FAILED, SUCCESS, CANONICAL])
    assert ranking(SUCCESS_PREFIX).priority(given).tolist() == [-INF, 0.0, -INF]
    solved = columns([20], [SUCCESS], root_wins=[3], root_losses=[1])  # 4 / 6 > 1/2
    assert ranking(SUCCESS_PREFIX).priority(solved).tolist() == [-INF]
    assert told(SUCCESS_PREFIX, solved) == ["its problem is solved from the root"]
    half = columns([20], [SUCCESS], root_wins=[1], root_losses=[1])  # 2 / 4
    assert told(SUCCESS_PREFIX, half) == [""]


def test_canonical_goes_backwards_by_visits() -> None:
    lengths, provenance = [10, 20, 30, 40], [CANONICAL, CANONICAL, CANONICAL, FAILED]
    for tried, expected in (
        ([0, 0, 0, 0], 2),
        ([0, 0, 7, 0], 2),
        ([0, 0, 8, 0], 1),
        ([0, 8, 8, 0], 0),
        ([8, 8, 8, 0], None),
    ):
        found = np.isfinite(ranking(BACKWARDS).priority(columns(lengths, provenance, tried=tried)))
        assert found.tolist() == [i == expected for i in range(4)]


def test_a_chain_says_why_its_states_are_not_drawn() -> None:
    other, of_curriculum = "another state of its chain is replayed", "another state is replayed"
    over, none = "its curriculum is over", "no prefix of a canonical solution"
    lengths, provenance = [10, 20, 40], [CANONICAL, CANONICAL, FAILED]
    assert told(BACKWARDS, columns(lengths, provenance, tried=[0, 8, 0])) == ["", of_curriculum, none]
    assert told(BACKWARDS, columns(lengths, provenance, tried=[8, 8, 0])) == [over, over, none]
    chain = {"chain": [0, 0, 1]}
    # exp(-2.5 * 0.75) = 0.153, exp(-2.5 * 0.5) = 0.287: below the target, so the last state is the frontier
    given = columns([25, 50, 60], [SUCCESS, SUCCESS, FAILED], **chain)
    failure = "an own failure: this ranking follows successes"
    assert told(FRONTIER, given) == [other, "", failure]
    rests = "its chain is mastered from its shallowest state"
    assert told(FRONTIER, replace(given, wins=np.array([9, 0, 0], np.float32))) == [rests, rests, failure]
    lucky = "its chain succeeds in less than 5%"  # h = 21 / (0.4 + 8 * 0.5) = 4.77, (2 exp(-2.39)) / 22 = 0.008
    assert told(FRONTIER, replace(given, losses=np.array([0, 20, 0], np.float32))) == [lucky, lucky, failure]
    solved = "its problem is solved from the root"
    assert told(FRONTIER, replace(given, root_wins=np.full(3, 10, np.float32))) == [solved, solved, failure]
