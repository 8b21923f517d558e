"""The chances of the draw over several shards, against their exact values."""

from pathlib import Path

import numpy as np
import pytest

from core.records import Provenance
from replay.store.store import ReplayStore
from tests.replay.made import states
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
        (state,) = store.sample(1, seed)
        drawn[int(state.problem_id[1:])] += 1
    expected = 3000 * WEIGHTS / WEIGHTS.sum()
    assert ((drawn - expected) ** 2 / expected).sum() < 72.1  # 99.9 % quantile of chi-square with 39 degrees of freedom
    store.close()


def test_the_states_of_a_batch_are_those_of_successive_draws_without_replacement(tmp_path: Path) -> None:
    """How often each state is among 3 of 40, by the exact chances of successive draws."""
    store = forty(tmp_path)
    drawn, expected = np.zeros(40), np.zeros(40)
    for seed in range(2000):
        for state in store.sample(3, seed):
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
