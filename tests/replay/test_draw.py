"""The order of the draw: its chances against their exact values, and which problems rest."""

from pathlib import Path

import numpy as np
import pytest

from core.records import Provenance, ReplayedState
from replay.source import PAUSE, race, rested
from replay.store.shard import Shard
from replay.store.store import ReplayStore
from tests.replay.made import sample, states
from tests.replay.test_coverage import observed, visit
from tests.replay.test_shard import shard_of
from tests.replay.test_store import opened


def forty(directory: Path) -> ReplayStore:
    """40 problems of one state each over 4 shards, values 0 to 0.39, temperature 1."""
    store = opened(directory, 4, local=True)
    tokens, lengths = np.arange(8, dtype=np.int32), np.array([4], np.int32)
    made = [states(f"p{i}", tokens, lengths, [i / 100], Provenance.CANONICAL) for i in range(40)]
    store.add(made, 0)
    return store


WEIGHTS = np.exp(np.arange(40) / 100)


def test_the_shares_over_four_shards_are_those_of_the_weights(tmp_path: Path) -> None:
    """Chi-square of 3,000 samples of one state."""
    store = forty(tmp_path)
    drawn = np.zeros(40)
    for seed in range(3000):
        (state,) = sample(store, 1, seed)
        drawn[int(state.problem_id[1:])] += 1
    expected = 3000 * WEIGHTS / WEIGHTS.sum()
    assert ((drawn - expected) ** 2 / expected).sum() < 72.1  # 99.9 % quantile of chi-square with 39 degrees of freedom
    store.close()


def test_the_states_of_a_batch_are_those_of_successive_draws_without_replacement(tmp_path: Path) -> None:
    """How often each state is among 3 of 40, by the exact chances of successive draws."""
    store = forty(tmp_path)
    drawn, expected = np.zeros(40), np.zeros(40)
    for seed in range(2000):
        for state in sample(store, 3, seed):
            drawn[int(state.problem_id[1:])] += 1
    first = WEIGHTS / WEIGHTS.sum()
    for i in range(40):  # exactly: i first, second or third
        without_i = np.delete(WEIGHTS, i)
        second = without_i / WEIGHTS.sum() * WEIGHTS[i] / (WEIGHTS.sum() - without_i)
        pairs = without_i[:, None] + without_i[None, :]
        chance = without_i[:, None] / WEIGHTS.sum() * without_i[None, :] / (WEIGHTS.sum() - without_i[:, None])
        third = chance * WEIGHTS[i] / (WEIGHTS.sum() - pairs)
        np.fill_diagonal(third, 0.0)
        expected[i] = 2000 * (first[i] + second.sum() + third.sum())
    assert expected.sum() == pytest.approx(6000)
    assert ((drawn - expected) ** 2 / expected).sum() < 72.1
    store.close()


def drawn(shard: Shard, seed: int) -> list[ReplayedState]:
    states, ranking = shard.candidates(), shard.ranking
    order = race(states, ranking, seed, one_of_each=ranking.one_per_problem)
    return shard.fetch(states.problem_ids(order), states.keys[order].tolist())


def test_draws_are_proportional_to_exp_priority_over_temperature() -> None:
    """Values 0, 1, 2 at temperature 1: weights 1, e, e^2, shares 0.0900, 0.2447, 0.6652."""
    shard = shard_of(states("p", range(10), [1, 2, 3], [0.0, 1.0, 2.0]))
    lengths = [len(drawn(shard, seed)[0].prefix_ids) for seed in range(4000)]
    shares = np.bincount(lengths, minlength=4)[1:] / 4000
    np.testing.assert_allclose(shares, [0.0900, 0.2447, 0.6652], atol=0.025)  # 3 sigma = 3 sqrt(0.22/4000) = 0.022


def test_learnability_draws_one_state_of_each_problem() -> None:
    """Worked example of learnability.py and a second problem: worth 4 * 0.378 * 0.622 = 0.940 at its only state.

    The first problem counts by its best state, so each comes first half of the time. Its states: 0.218, 0.406, 0.376 by
    worth.
    """
    shard = shard_of(
        states("p", [*range(100)], [25, 50, 75], [0.0] * 3, Provenance.CANONICAL),
        states("q", [*range(50)], [25], [0.0], Provenance.CANONICAL),
        ranking="learnability",
    )
    draws = [drawn(shard, seed) for seed in range(4000)]
    assert all(sorted(state.problem_id for state in each) == ["p", "q"] for each in draws)
    assert np.mean([each[0].problem_id == "p" for each in draws]) == pytest.approx(0.5, abs=0.024)  # 3 sigma
    lengths = [len(state.prefix_ids) for each in draws for state in each if state.problem_id == "p"]
    np.testing.assert_allclose(np.bincount(lengths)[[25, 50, 75]] / 4000, [0.218, 0.406, 0.376], atol=0.024)


def test_failed_roots_come_first_then_what_was_replayed_longest_ago() -> None:
    first = [*visit("a", True, False), *visit("b", False)]
    second, third = visit("b", False, replayed=True), visit("c", True, replayed=True)
    lives = observed(first).lives
    assert rested("abc", lives, {}, 2) == [1, 2, 0]  # of c nothing is known; the root of a succeeds
    assert rested("abc", observed(first, second).lives, {}, 1 + PAUSE) == [2, 0]  # b rests
    assert rested("abc", observed(first, second, third).lives, {}, 3 + PAUSE) == [1, 2, 0]  # b has rested longer


def test_a_problem_rests_from_its_draw_on_though_its_outcomes_are_not_known() -> None:
    """They are not in rounds of dynamic sampling, and in asynchronous mode."""
    lives = observed([*visit("a", False), *visit("b", False)]).lives
    assert rested("abc", lives, {"a": 2}, 2) == [1, 2]
    assert rested("abc", lives, {"a": 2, "b": 1, "c": 1}, 2 + PAUSE) == [1, 2, 0]  # a was drawn last
