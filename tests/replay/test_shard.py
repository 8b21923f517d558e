"""The shard as a plain object: merging, quota, bounds, draws."""

from typing import Any

import numpy as np
import pytest

from core.config import ReplayConfig
from core.errors import StoreError
from core.records import FloatArray, Provenance, Start
from replay.cutting import States
from replay.rankings.base import Ranking, StateColumns, SuccessModel
from replay.store.keys import state_keys
from replay.store.shard import Shard
from replay.store.writes import pack_eviction, pack_outcomes, pack_removed, pack_states, pack_values
from tests.replay.made import of_kind, outcome, states, valued

TOKENS = np.arange(10, dtype=np.int32)


def shard_of(*candidates: States, version: int = 1, **fields: object) -> Shard:
    shard = Shard(ReplayConfig.model_validate({"ranking": "value", **fields}), 100)
    add(shard, *candidates, version=version)
    return shard


def add(shard: Shard, *candidates: States, version: int = 1) -> None:
    if candidates:
        shard.apply(pack_states(candidates, version, 100))


def evict(shard: Shard, count: int) -> None:
    orders, keys = shard.least(count)
    shard.apply(pack_eviction(int(orders[-1]), int(keys[-1])))


def stored(shard: Shard) -> dict[tuple[str, tuple[int, ...]], float]:
    """(Problem, prefix) -> value."""
    names = [shard.names[i] for i in shard.states["problem"].tolist()]
    prefixes = [tuple(shard.prefix(row).tolist()) for row in range(len(shard.states))]
    return dict(zip(zip(names, prefixes, strict=True), shard.states["value"].tolist(), strict=True))


def test_equal_prefixes_are_one_state_with_the_newer_value_and_the_proven_trajectory() -> None:
    failed = states("p", [1, 2, 3, 4], [2, 3], [0.1, 0.2])
    solved = states("p", [1, 2, 9, 9], [2, 3], [0.7, 0.8], Provenance.OWN_SUCCESSFUL)
    shard = shard_of(failed, ranking="value")
    add(shard, solved, version=2)
    assert stored(shard) == pytest.approx({("p", (1, 2)): 0.7, ("p", (1, 2, 3)): 0.2, ("p", (1, 2, 9)): 0.8})
    assert shard.counters.merged == 1
    assert shard.states["provenance"][0] == Provenance.OWN_SUCCESSFUL
    add(shard, states("p", [1, 2, 5, 5], [2], [0.3]))
    assert stored(shard)["p", (1, 2)] == pytest.approx(0.7)  # version 2 stays
    # the stale trajectory's only state was there already; the others keep the tokens of their longest state
    assert shard.trajectories["size"].tolist() == [4, 4]
    assert [len(tokens) for tokens in shard.trajectories["tokens"]] == [3, 3]  # one byte each: the vocabulary is 100


def test_of_equal_prefixes_the_most_promising_says_where_the_state_came_from() -> None:
    failed = states("p", [1, 2, 3, 4], [2], [0.1])
    partial, solved = (of_kind(failed, kind) for kind in (Provenance.OWN_PARTIAL, Provenance.OWN_SUCCESSFUL))
    shard = shard_of(partial, failed, ranking="value")
    assert shard.states["provenance"].tolist() == [Provenance.OWN_PARTIAL]
    assert shard.problems["solved"].tolist() == [0]
    add(shard, solved)
    add(shard, partial)
    assert shard.states["provenance"].tolist() == [Provenance.OWN_SUCCESSFUL]


def test_the_quota_keeps_the_states_of_the_highest_priority_of_a_problem() -> None:
    shard = shard_of(
        states("p", range(10), [1, 2, 3], [0.1, 0.9, 0.5]), states("q", range(10), [1], [0.0]), per_problem=2
    )
    assert sorted(stored(shard).values()) == pytest.approx([0.0, 0.5, 0.9])
    add(shard, states("p", range(10, 20), [4], [0.7]))
    assert sorted(stored(shard).values()) == pytest.approx([0.0, 0.7, 0.9])
    assert (shard.counters.rejected, shard.counters.evicted) == (1, 1)


def test_eviction_takes_the_lowest_priority_and_frees_the_tokens() -> None:
    shard = shard_of(states("p", range(10), [1, 2], [0.4, 0.3]), states("q", range(8), [1, 2], [0.1, 0.2]))
    evict(shard, 3)
    assert list(stored(shard).values()) == pytest.approx([0.4])
    assert (shard.replayable(), shard.trajectories["size"].tolist(), shard.token_bytes) == (1, [10], 1)


def test_removed_states_free_their_tokens_and_count_as_evicted() -> None:
    shard = shard_of(states("p", range(10), [1, 2], [0.4, 0.3]), states("q", range(8), [1, 2], [0.1, 0.2]))
    removed = [Start("", "p", TOKENS, TOKENS[:2], 1, 0, int(shard.states["key"][1]))]
    shard.apply(pack_removed(removed))
    assert list(stored(shard).values()) == pytest.approx([0.4, 0.1, 0.2])
    assert (shard.token_bytes, shard.counters.evicted) == (3, 1)
    shard.apply(pack_removed(removed))
    assert (len(stored(shard)), shard.counters.evicted) == (3, 1)


def test_outcomes_reach_their_state_and_lost_ones_are_counted() -> None:
    shard = shard_of(states("p", range(10), [1, 2], [0.25, 0.5]))
    key = int(shard.states["key"][1])
    outcomes = [outcome(key, "p", True, 3), outcome(key, "p", False, 3), outcome(key + 1, "p", True, 3)]
    shard.apply(pack_outcomes(outcomes, SuccessModel()))
    assert [shard.states[name].tolist() for name in ("tried", "solved", "wins", "losses")] == [
        [0, 2],
        [0, 1],
        [0, 1],
        [0, 1],
    ]
    assert shard.counters.lost_outcomes == 1


def test_a_part_of_the_task_is_no_success() -> None:
    shard = shard_of(states("p", range(10), [1, 2], [0.25, 0.5]))
    key = int(shard.states["key"][1])
    shard.apply(pack_outcomes([outcome(key, "p", True, 3), outcome(key, "p", False, 3, 0.5)], SuccessModel()))
    found = {name: float(shard.states[name][1]) for name in ("tried", "solved", "wins", "losses")}
    assert found == {"tried": 2.0, "solved": 1.0, "wins": 1.0, "losses": 1.0}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lengths": [0]}, "a state of length 0 has value 0.0; lengths must increase inside the response"),
        ({"lengths": [4, 4], "values": [0.0, 0.5]}, "a state of length 4 has value 0.5; lengths must increase"),
        ({"values": [np.nan]}, "a state of length 4 has value nan; .* and values be finite"),
        ({"tokens": [100] * 10}, "token 100 is outside the vocabulary of 100"),
        ({"tokens": [-1] * 10}, "token -1 is outside the vocabulary of 100"),
    ],
)
def test_bad_candidates_name_their_problem(fields: dict[str, Any], message: str) -> None:
    columns: dict[str, Any] = {"tokens": range(10), "lengths": [4], "values": [0.0]} | fields
    with pytest.raises(StoreError, match=f"^problem 'p': {message}"):
        pack_states([states("q", range(3), [1], [0.0]), states("p", **columns)], 1, 100)


def test_keys_by_their_formula_in_plain_python() -> None:
    """f(hash + sum of f(x_i + 1 + i g)) modulo 2^64; two trajectories of two problems, the second without a state."""
    mask, golden = 2**64 - 1, 0x9E3779B97F4A7C15

    def f(x: int) -> int:
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
        return x ^ (x >> 31)

    def key(seed: int, tokens: list[int]) -> int:
        return f((seed + sum(f((x + 1 + i * golden) & mask) for i, x in enumerate(tokens, 1))) & mask)

    first, second, third = [3, 250, 0, 0, 7], [9, 9], [3, 250, 1]
    tokens = np.array([*first, *second, *third], np.uint8)
    sizes, counts, lengths = (np.array(column, np.int32) for column in ([5, 2, 3], [3, 0, 1], [1, 2, 4, 2]))
    found = state_keys(np.array([2**63 + 5, 1, 2**63 + 5], np.uint64), tokens, sizes, counts, lengths)
    expected = [key(2**63 + 5, first[:n]) for n in (1, 2, 4)] + [key(2**63 + 5, third[:2])]
    assert found.tolist() == expected
    assert found[1] == found[3]  # the same prefix of the same problem
    assert key(1, [3, 250]) != expected[1]


def record(shard: Shard, problem: str, outcomes: list[tuple[bool, int]]) -> None:
    """Outcomes (correct, version) of the first state of a problem."""
    made = [outcome(key_of(shard, problem), problem, won, version) for won, version in outcomes]
    shard.apply(pack_outcomes(made, SuccessModel()))


def key_of(shard: Shard, problem: str) -> int:
    return int(of_first(shard, problem, "key"))


def of_first(shard: Shard, problem: str, column: str) -> Any:
    """A column of the problem's oldest state."""
    return shard.states[column][shard.states["problem"] == shard.names.index(problem)][0]


def counts(shard: Shard, problem: str) -> list[float]:
    """Wins and losses of the problem's first state, and of its root."""
    root = [float(shard.problems[name][shard.names.index(problem)]) for name in ("wins", "losses")]
    return [float(of_first(shard, problem, name)) for name in ("wins", "losses")] + root


class Mixed(Ranking):
    """A user's own ranking: E[4 p (1 - p)] of a state's Beta(1 + wins, 1 + losses)."""

    def priority(self, states: StateColumns) -> FloatArray:
        a, b = 1 + states.wins, 1 + states.losses
        return np.asarray(4 * a * b / ((a + b) * (a + b + 1)), np.float32)


@pytest.fixture
def halving(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outcomes of a problem count half after one more visit of it."""
    monkeypatch.setattr("replay.store.shard.DECAY", 0.5)


def test_outcomes_decay_by_what_is_written_of_their_own_problem(halving: None) -> None:
    """p and q begin at version 1 with one failure of the root each."""
    shard = shard_of(
        states("p", range(10), [1], [0.5]),
        states("q", range(10), [1], [0.5]),
        ranking="tests.replay.test_shard:Mixed",
    )
    record(shard, "p", [(True, 1)] * 3 + [(False, 1)])
    record(shard, "q", [(False, 1)] * 2)
    assert counts(shard, "p") == [3, 1, 0, 1]  # written at version 1 and counted at version 1: nothing decays
    record(shard, "p", [(False, 3)])
    assert counts(shard, "p") == [1.5, 1.5, 0, 0.5]  # one visit later: 3 / 2; 1 / 2 and the new one; the root's 1 / 2
    # a = b = 2.5: 4 * 2.5 * 2.5 / (5 * 6)
    assert of_first(shard, "p", "priority") == pytest.approx(5 / 6)
    assert counts(shard, "q") == [0, 2, 0, 1]  # nothing was written of q
    assert of_first(shard, "q", "priority") == pytest.approx(4 * 1 * 3 / (4 * 5))
    add(shard, states("q", range(20, 30), [2], [0.1]), version=4)
    assert counts(shard, "q") == [0, 1, 0, 1.5]  # 2 / 2; 1 / 2 and the new failure
    assert of_first(shard, "q", "priority") == pytest.approx(4 * 1 * 2 / (3 * 4))
    assert counts(shard, "p") == [1.5, 1.5, 0, 0.5]  # the visit of q is none of p's


def test_a_late_outcome_counts_in_full_and_the_newest_of_a_write_decays_what_was_before(halving: None) -> None:
    one, other = (shard_of(states("p", range(10), [1], [0.5])) for _ in range(2))
    for shard, versions in ((one, (4, 5)), (other, (5, 4))):
        record(shard, "p", [(True, 3)] * 4)
        record(shard, "p", [(True, 2)])  # generated before version 3, heard of after it
        assert counts(shard, "p")[0] == 5
        record(shard, "p", [(False, version) for version in versions])
        assert counts(shard, "p")[:2] == [2.5, 2]  # 5 / 2, whichever came first
    shard = shard_of(states("p", range(10), [1], [0.5]))
    record(shard, "p", [(True, 1), (False, 50)])
    assert counts(shard, "p")[:2] == [1, 1]


def revalue(shard: Shard, *given: tuple[str, int, float, int]) -> None:
    """New values by (problem, key, value, version)."""
    for problem, key, value, version in given:
        shard.apply(pack_values([valued(key, problem, value)], version))


@pytest.mark.parametrize("ranking", ["value", "uniform"])
def test_new_values_are_taken_unless_they_are_older(ranking: str) -> None:
    shard = shard_of(
        states("p", range(10), [1, 2], [0.5, 0.25]),
        states("q", range(10), [1], [0.75]),
        version=3,
        ranking=ranking,
    )
    p, q = key_of(shard, "p"), key_of(shard, "q")
    revalue(shard, ("p", p, 0.9, 2))
    assert sorted(stored(shard).values()) == [0.25, 0.5, 0.75]  # older than the stored one
    revalue(shard, ("p", p, 1.0, 3))
    assert sorted(stored(shard).values()) == [0.25, 0.75, 1.0]
    revalue(shard, ("p", p, 0.0, 4), ("p", p + 1, 9.0, 9), ("q", p, 9.0, 9), ("q", q, 0.5, 5))  # two are of no state
    assert sorted(stored(shard).values()) == [0.0, 0.25, 0.5]
    assert (of_first(shard, "p", "version"), of_first(shard, "q", "version")) == (4, 5)
    if ranking == "value":
        assert of_first(shard, "q", "priority") == of_first(shard, "q", "retention") == 0.5
