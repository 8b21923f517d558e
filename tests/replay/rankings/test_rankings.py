"""The rankings on hand-computed cases."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from core.config import ReplayConfig
from core.records import Candidate, Outcome, Provenance
from replay.keys import eviction_order
from replay.rankings.base import RankSettings, StateColumns, SuccessModel
from replay.rankings.canonical import canonical
from replay.rankings.frontier import frontier, isotonic
from replay.rankings.posterior import posterior, quarantined_below, thompson
from replay.rankings.registry import RANKINGS
from replay.rankings.success_prefix import success_prefix
from replay.shard import Shard
from replay.writes import pack_candidates, pack_outcomes

FAILED, SUCCESS, CANONICAL = 0, 1, 2
SETTINGS = RankSettings(target=0.3)
INF = np.inf


def columns(lengths: list[int], provenance: list[int], **given: Any) -> StateColumns:
    """States of one problem and one chain of 100 tokens, unless told otherwise."""
    n = len(lengths)
    reals = {name: np.zeros(n, np.float32) for name in ("value", "wins", "losses", "root_wins", "root_losses")}
    ints = {"problem": np.zeros(n, np.int64), "chain": np.zeros(n, np.int64), "tried": np.zeros(n, np.int64)}
    ints |= {"length": np.array(lengths, np.int64), "total": np.full(n, 100, np.int64)}
    known: dict[str, Any] = reals | ints | {"provenance": np.array(provenance, np.uint8)}
    known |= {name: np.array(v, known[name].dtype) for name, v in given.items()}
    return StateColumns(**known)


def test_value_is_the_value() -> None:
    given = columns([10, 20], [0, 0], value=[0.25, 0.5])
    assert RANKINGS["value"].priority(given, SETTINGS).tolist() == [0.25, 0.5]
    wide = replace(SETTINGS, model=replace(SETTINGS.model, spread=0.125))
    assert RANKINGS["value"].priority(given, wide).tolist() == [2.0, 4.0]  # in standard deviations of all values


def test_eviction_goes_by_retention_then_version() -> None:
    retention = np.array([-INF, -1.0, -0.0, 0.0, 0.5, 0.5], np.float32)
    version = np.array([9, 9, 1, 2, 3, 4], np.int32)
    order = eviction_order(retention, version, np.zeros(6, np.uint64))
    assert (np.diff(order.astype(object)) > 0).all()


def test_isotonic_pools_weighted_violators_of_one_chain_only() -> None:
    rate, weight = np.array([0.5, 0.1, 0.3, 0.9, 0.2]), np.array([1.0, 3.0, 1.0, 1.0, 1.0])
    chain = np.array([0, 0, 0, 1, 2])
    # chain 0: 0.5, 0.1 pool to (0.5 + 0.3) / 4 = 0.2 <= 0.3; 0.9 > 0.2 belong to different chains
    np.testing.assert_allclose(isotonic(rate, weight, chain), [0.2, 0.2, 0.3, 0.9, 0.2])


def priorities(wins: list[float], losses: list[float], **given: Any) -> list[float]:
    found = frontier(columns([25, 50, 75], [CANONICAL] * 3, wins=wins, losses=losses, **given), SETTINGS)
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
    # h = 5 / (0.4 + 10 * 0.5 + 1.6 * 0.75) = 0.758: 0.25 has 2 exp(-0.568) / 6 = 0.189, but (10 + 1) / (10 + 2) > 0.9 at 0.5
    assert priorities([0, 10, 0], [4, 0, 0]) == [0.689, -INF, -INF]
    # 9 / 10: not yet. h = 5 / 5.6, at 0.5 (8 + 2 exp(-0.446)) / 10 = 0.928, pooled with the prior exp(-0.223) = 0.8 at 0.75
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
    ranking = RANKINGS[name]
    assert ranking.retention is not None
    return [round(float(w), 4) for w in ranking.retention(given, ranking.priority(given, SETTINGS))]


def test_tried_chains_are_kept_before_untried_ones_and_of_those_that_rest_the_beginning() -> None:
    two = columns([20, 60, 10, 70], [SUCCESS] * 4, chain=[5, 5, 4, 4], tried=[0, 4, 0, 0], wins=[0, 4, 0, 0])
    assert np.isfinite(frontier(two, SETTINGS)).tolist() == [True, False, False, True]
    # Chain 5 has been tried: class 4, order 0 for its frontier, 1 / (1 + 1024) for what was tried; chain 4: class 3, order 1 for
    # its frontier and 1 + 1 / (1 + 1024) for its beginning.
    expected = [4 + 1, 4 + 1 / (1 + 1 / 1025), 3 + 1 / (2 + 1 / 1025), 3 + 1 / 2]
    assert retention("frontier", two) == [round(w, 4) for w in expected]
    rests = columns([20, 60, 90], [SUCCESS, SUCCESS, FAILED], chain=[5, 5, 6], tried=[12, 0, 0], wins=[12, 0, 0])
    assert retention("frontier", rests) == [round(4 + 1 / (1 + 1 / 1025), 4), round(2 + 1 / 1.5, 4), 0.0]


def test_a_chain_that_is_too_long_keeps_states_from_its_beginning_to_its_end() -> None:
    given = columns(list(range(10, 90, 10)), [CANONICAL] * 8)
    # The frontier (0.6: exp(-2.5 * 0.4) = 0.37) first, then the shallowest, then every fourth, every second, the others.
    order = np.argsort([-w for w in retention("frontier", given)], kind="stable")
    assert (order + 1).tolist() == [6, 1, 5, 3, 7, 2, 4, 8]
    # of a curriculum its present state, the last
    assert np.argmax(retention("canonical", given)) == 7


def test_frontier_waits_for_the_first_success_of_a_problem() -> None:
    assert frontier(columns([20, 66, 67, 90], [FAILED] * 4), SETTINGS).tolist() == [-INF] * 4
    mixed = columns([90, 50], [FAILED, SUCCESS], chain=[0, 1])
    assert frontier(mixed, SETTINGS).tolist() == pytest.approx([-INF, 1 - (0.5 - np.exp(-1.25))])
    assert retention("frontier", mixed) == [0.0, 4.0]


def test_posterior_prefers_the_learnable_retires_and_quarantines() -> None:
    found = posterior(columns([1] * 4, [0] * 4, wins=[0, 5, 98, 0], losses=[0, 5, 0, 98]), SETTINGS)
    # a = b = 1: 4 / (2 * 3) = 0.667; a = b = 6: 4 * 36 / (12 * 13) = 0.923
    # a = 99, b = 1: mean 0.99, sd sqrt(0.0099 / 101) = 0.0099, lower 0.970 > 0.9: retired; the mirror image: quarantined
    np.testing.assert_allclose(found, [2 / 3, 12 / 13, -INF, -1.0], rtol=1e-6)


def test_the_bound_of_quarantine_is_within_reach_of_decayed_losses() -> None:
    # decay 0.95: (1 - 0.95^20) / 0.05 = 12.830 losses, m = 1 / 14.830 = 0.06743, s = sqrt(m (1 - m) / 15.830) = 0.06303
    assert quarantined_below(0.95) == pytest.approx(0.06743 + 2 * 0.06303, abs=1e-4)
    # decay 0.98: (1 - 0.98^50) / 0.02 = 31.791 losses, m = 1 / 33.791 = 0.02959, s = sqrt(m (1 - m) / 34.791) = 0.02873
    assert quarantined_below(0.98) == pytest.approx(0.02959 + 2 * 0.02873, abs=1e-4)
    assert quarantined_below(0.5) == 0.2  # two versions, 1.5 losses: a bound of 0.71 would say nothing
    assert (
        quarantined_below(1.0) == quarantined_below(0.999) == 0.05
    )  # the least; without decay every loss counts for good


@pytest.mark.parametrize(("continuations", "survived", "dead"), [(1, 19, 21), (4, 3, 4)])
def test_a_state_that_only_loses_is_quarantined_and_comes_back(continuations: int, survived: int, dead: int) -> None:
    """Decay 0.95, one visit per version, all continuations wrong: 4 (1 + 0.95 + 0.95^2) = 11.4 < 12.83 < 14.84 losses."""
    shard = Shard(ReplayConfig(ranking="posterior", decay=0.95), 10)
    tokens, one, value = np.arange(8, dtype=np.int32), np.array([4], np.int32), np.array([0.5], np.float32)
    shard.apply(pack_candidates([Candidate("p", tokens, one, value, Provenance.OWN_FAILED, 0.0, 0)], 10))
    found = []
    key = int(shard.states["key"][0])
    for version in range(1, dead + 1):
        shard.apply(pack_outcomes([Outcome(key, "p", False, version)] * continuations, SuccessModel()))
        found.append(float(shard.states["priority"][0]))
    assert min(found[:survived]) > 0
    assert found[-1] == -1.0
    for visit in range(20):  # 0.95^20 of the losses are left, 0.36
        again = Candidate("p", tokens[::-1].copy(), one, value, Provenance.OWN_FAILED, 0.0, dead + 1 + visit)
        shard.apply(pack_candidates([again], 10))
    assert shard.states["priority"][shard.states["key"] == key] > 0


def test_thompson_belongs_to_seed_and_state() -> None:
    keys, ones = np.arange(1, 2001, dtype=np.uint64), np.ones(2000)
    scores = thompson(keys, 2 * ones, 2 * ones, seed=1)
    np.testing.assert_array_equal(thompson(keys[5:9], ones[:4] * 2, ones[:4] * 2, seed=1), scores[5:9])
    # E[4 p (1 - p)] for Beta(2, 2): 4 * 2 * 2 / (4 * 5) = 0.8
    assert scores.mean() == pytest.approx(0.8, abs=0.02)


def settled(wins: list[float], losses: list[float]) -> list[float]:
    tried = [int(won + lost) for won, lost in zip(wins, losses, strict=True)]
    given = columns([1] * len(wins), [0] * len(wins), wins=wins, losses=losses, tried=tried)
    return retention("posterior", given)


def test_what_is_known_of_settled_states_is_kept_for_as_many_other_states() -> None:
    # Two new states (2/3), one learnable (12/13), a retired and a quarantined one. In turn: learnable, the more tried settled
    # one half a step above it; a new one at 2/3 - 1/10^4, the other settled one half a step above; a new one.
    found = settled([0, 5, 200, 0, 0], [0, 5, 0, 98, 0])
    assert found == [0.6666, 0.9231, 0.9231, 0.6666, 0.6665]
    order = np.argsort(-np.array(settled([0, 5, 200, 0, 0], [0, 5, 0, 98, 0])), kind="stable")
    assert set(order[:2].tolist()) == {1, 2}
    # all settled: nothing to keep them for; one new state keeps the one that was tried most
    assert settled([200, 100], [0, 0]) == [-1.0, -1.0]
    assert settled([100, 200, 0], [0, 0, 0]) == [-1.0, 0.6667, 0.6667]


def test_success_prefix_takes_own_successes_of_hard_problems() -> None:
    given = columns([10, 20, 30], [FAILED, SUCCESS, CANONICAL])
    assert success_prefix(given, SETTINGS).tolist() == [-INF, 0.0, -INF]
    solved = columns([20], [SUCCESS], root_wins=[3], root_losses=[1])  # 4 / 6 > 1/2
    assert success_prefix(solved, SETTINGS).tolist() == [-INF]


def test_canonical_goes_backwards_by_visits() -> None:
    lengths, provenance = [10, 20, 30, 40], [CANONICAL, CANONICAL, CANONICAL, FAILED]
    for tried, expected in (
        ([0, 0, 0, 0], 2),
        ([0, 0, 7, 0], 2),
        ([0, 0, 8, 0], 1),
        ([0, 8, 8, 0], 0),
        ([8, 8, 8, 0], None),
    ):
        found = np.isfinite(canonical(columns(lengths, provenance, tried=tried), SETTINGS))
        assert found.tolist() == [i == expected for i in range(4)]


@pytest.mark.parametrize("name", RANKINGS)
def test_every_ranking_depends_on_the_problem_alone(name: str) -> None:
    """Ranking two problems together is ranking each by itself, bit for bit."""
    rng = np.random.default_rng(3)

    def problem(number: int) -> StateColumns:
        given = {n: rng.random(12) * 5 for n in ("value", "wins", "losses")}
        return columns(
            rng.permutation(90)[:12].tolist(),
            rng.integers(0, 3, 12).tolist(),
            chain=rng.integers(0, 3, 12) + 10 * number,
            problem=[number] * 12,
            tried=rng.integers(0, 20, 12),
            **given,
        )

    parts = [problem(i) for i in range(3)]
    names = StateColumns.__dataclass_fields__
    joined = StateColumns(**{n: np.concatenate([getattr(p, n) for p in parts]) for n in names})
    settings = RankSettings(0.3, model=SuccessModel((1.0, -3.0, -1.0, 0.3, 0.2, 0.7, 0.4), 2.0, 2.5, 1.5))
    apart = np.concatenate([RANKINGS[name].priority(p, settings) for p in parts])
    np.testing.assert_array_equal(RANKINGS[name].priority(joined, settings), apart)
