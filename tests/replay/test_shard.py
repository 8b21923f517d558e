"""The shard as a plain object: merging, quota, bounds, draws."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from core.config import ReplayConfig
from core.errors import StoreError
from core.records import Candidate, Outcome, Provenance
from replay.arena import Arena
from replay.batch import pack, pack_outcomes
from replay.keys import GROUPS, owned_groups, state_keys
from replay.ops import apply
from replay.shard import Revaluation, Shard
from replay.snapshot import capture, restore
from tests.replay.crashes import least

TOKENS = np.arange(10, dtype=np.int32)


def candidate(problem: str, tokens: object, lengths: object, values: object, **fields: object) -> Candidate:
    made = Candidate(
        problem,
        np.array(tokens, np.int32),
        np.array(lengths, np.int32),
        np.array(values, np.float32),
        Provenance.OWN_FAILED,
        0.0,
        1,
    )
    return replace(made, **fields)  # type: ignore[arg-type]


def shard_of(*candidates: Candidate, **fields: object) -> Shard:
    shard = Shard(ReplayConfig.model_validate(fields), 100, "shard")
    if candidates:
        shard.add(pack(candidates, 100))
    return shard


def held(shard: Shard) -> dict[tuple[str, tuple[int, ...]], float]:
    rows = np.flatnonzero(shard.blocks.states.rows["key"])
    found = shard.select(rows)
    prefixes = [tuple(prefix.tolist()) for prefix in found.prefixes()]
    return {(p, t): v for p, t, v in zip(found.problem_ids, prefixes, found.values.tolist(), strict=True)}


def test_equal_prefixes_are_one_state_with_the_newer_value_and_the_proven_trajectory() -> None:
    failed = candidate("p", [1, 2, 3, 4], [2, 3], [0.1, 0.2])
    solved = candidate("p", [1, 2, 9, 9], [2, 3], [0.7, 0.8], provenance=Provenance.OWN_SUCCESSFUL, version=2)
    shard = shard_of(failed, solved, ranking="value")
    assert held(shard) == pytest.approx({("p", (1, 2)): 0.7, ("p", (1, 2, 3)): 0.2, ("p", (1, 2, 9)): 0.8})
    assert shard.counters.merged == 1
    assert drawn(shard, 0.0)["provenance"] == Provenance.OWN_SUCCESSFUL
    stale = candidate("p", [1, 2, 5, 5], [2], [0.3], version=1)
    shard.add(pack([stale], 100))
    assert held(shard)["p", (1, 2)] == pytest.approx(0.7)  # version 2 stays
    assert shard.arena.live == 8  # the stale trajectory's only state was there already: its tokens are not kept


def drawn(shard: Shard, fraction: float) -> Any:
    """The state at a fraction of the mass."""
    states, which = shard.draw(0, np.cumsum(shard.masses()[0]), np.array([fraction]), 1)
    assert which.tolist() == [0]
    return states.rows[0]


def test_the_quota_keeps_the_most_promising_of_a_problem() -> None:
    shard = shard_of(
        candidate("p", range(10), [1, 2, 3], [0.1, 0.9, 0.5]), candidate("q", range(10), [1], [0.0]), per_problem=2
    )
    assert sorted(held(shard).values()) == pytest.approx([0.0, 0.5, 0.9])
    shard.add(pack([candidate("p", range(10, 20), [4], [0.7])], 100))
    assert sorted(held(shard).values()) == pytest.approx([0.0, 0.7, 0.9])
    assert (shard.counters.rejected, shard.counters.evicted) == (1, 1)


def test_eviction_takes_the_least_promising_and_frees_their_tokens() -> None:
    shard = shard_of(candidate("p", range(10), [1, 2], [0.4, 0.3]), candidate("q", range(8), [1, 2], [0.1, 0.2]))
    apply(shard, least(shard, 3))
    assert list(held(shard).values()) == pytest.approx([0.4])
    assert (shard.states, shard.replayable().tolist(), shard.arena.live) == (1, [1], 10)


def test_a_snapshot_does_not_show_that_its_shard_was_restored() -> None:
    """The place of a trajectory that has gone is given to the next one, which a restored shard puts at the end."""
    straight = shard_of(candidate("p", [1, 2, 3], [2], [0.1]), candidate("q", [4, 5, 6], [2], [0.9]), ranking="value")
    apply(straight, least(straight, 1))
    resumed = shard_of(ranking="value")
    for part in capture(straight):
        restore(resumed, part)
    for shard in (straight, resumed):
        shard.add(pack([candidate("q", [4, 7, 8], [2], [0.5])], 100))
    (left,), (right,) = capture(straight), capture(resumed)
    assert left.trajectories.num_rows == 2
    assert left.trajectories.equals(right.trajectories)
    assert left.states.equals(right.states)


def test_outcomes_reach_their_state_and_lost_ones_are_counted() -> None:
    shard = shard_of(candidate("p", range(10), [1, 2], [0.25, 0.5]))
    key = int(shard.select(shard.top(1)[0]).keys[0])
    outcomes = [Outcome(key, "p", True, 3), Outcome(key, "p", False, 3), Outcome(key + 1, "p", True, 3)]
    shard.record(pack_outcomes(outcomes))
    row = shard.blocks.states.rows[shard.top(1)[0]][0]
    assert [float(row[name]) for name in ("tried", "solved", "wins", "losses")] == [2, 1, 1, 1]
    assert shard.counters.lost_outcomes == 1


def test_draws_are_proportional_to_exp_promise_over_temperature() -> None:
    """Values 0, 0.2, 0.4 at temperature 0.2: weights 1, e, e^2, shares 0.0900, 0.2447, 0.6652."""
    shard = shard_of(candidate("p", range(10), [1, 2, 3], [0.0, 0.2, 0.4]), temperature=0.2)
    lengths = [int(drawn(shard, fraction)["length"]) for fraction in (np.arange(20_000) + 0.5) / 20_000]
    shares = np.bincount(lengths, minlength=4)[1:] / 20_000
    np.testing.assert_allclose(shares, [0.0900, 0.2447, 0.6652], atol=1e-4)


def test_the_race_draws_without_replacement_in_the_same_proportions() -> None:
    shard = shard_of(candidate("p", range(10), [1, 2, 3], [0.0, 0.2, 0.4]), temperature=0.2)
    first = [int(shard.race(0, 1, seed, np.zeros(0, np.uint64))[0][0]) for seed in range(4000)]
    lengths = shard.blocks.states.rows["length"][first]
    shares = np.bincount(lengths, minlength=4)[1:] / 4000
    np.testing.assert_allclose(shares, [0.0900, 0.2447, 0.6652], atol=0.025)  # 3 sigma = 3 sqrt(0.22/4000) = 0.022


def test_groups_are_partitioned_by_any_number_of_shards() -> None:
    for shards in (1, 2, 3, 7, 256):
        assert [g for i in range(shards) for g in owned_groups(i, shards)] == list(range(GROUPS))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lengths": [0]}, "state of length 0 is not strictly inside its response of 10 tokens"),
        ({"lengths": [10]}, "state of length 10 is not strictly inside its response of 10 tokens"),
        ({"lengths": [12]}, "state of length 12 is not strictly inside its response of 10 tokens"),
        ({"values": [np.nan]}, "the value of the state of length 4 is nan"),
        ({"values": [0.1, 0.2]}, "1 states but 2 values"),
        ({"lengths": [4, 4], "values": [0.0, 0.0]}, "lengths 4, 4 do not increase"),
        ({"tokens": [1] * 9 + [100]}, "token 100 is outside the vocabulary of 100"),
        ({"tokens": [1] * 9 + [-1]}, "token -1 is outside the vocabulary of 100"),
        ({"version": -1}, "version -1 is negative"),
        ({"reward": np.inf}, "reward is inf"),
    ],
)
def test_bad_candidates_name_their_problem(fields: dict[str, object], message: str) -> None:
    known = {"tokens": range(10), "lengths": [4], "values": [0.0]} | fields
    columns = {name: known.pop(name) for name in ("tokens", "lengths", "values")}
    with pytest.raises(StoreError, match=f"^candidate of problem 'p': {message}"):
        pack([candidate("q", range(3), [1], [0.0]), candidate("p", **columns, **known)], 100)


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
    shard.record(pack_outcomes([Outcome(key_of(shard, problem), problem, won, version) for won, version in outcomes]))


def key_of(shard: Shard, problem: str) -> int:
    return int(first_state(shard, problem)["key"])


def first_state(shard: Shard, problem: str) -> Any:
    return shard.blocks.states.rows[shard.blocks.problems.rows["start"][shard.numbers[problem]]]


def counts(shard: Shard, problem: str) -> list[float]:
    """Wins and losses of the problem's first state, and of its root."""
    found = [first_state(shard, problem), shard.blocks.problems.rows[shard.numbers[problem]]]
    return [float(row[name]) for row in found for name in ("wins", "losses")]


def test_outcomes_decay_by_what_is_written_of_their_own_problem() -> None:
    """Decay 1/2; p and q begin at version 1 with one failure of the root each."""
    shard = shard_of(
        candidate("p", range(10), [1], [0.5]),
        candidate("q", range(10), [1], [0.5]),
        decay=0.5,
        ranking="posterior",
    )
    record(shard, "p", [(True, 1)] * 3 + [(False, 1)])
    record(shard, "q", [(False, 1)] * 2)
    assert counts(shard, "p") == [3, 1, 0, 1]  # written at version 1 and counted at version 1: nothing decays
    record(shard, "p", [(False, 3)])
    assert counts(shard, "p") == [0.75, 1.25, 0, 0.25]  # 3 / 2^2; 1 / 2^2 and the new one; the root's 1 / 2^2
    # a = 1.75, b = 2.25: 4 * 1.75 * 2.25 / (4 * 5)
    assert float(first_state(shard, "p")["promise"]) == pytest.approx(0.7875)
    assert counts(shard, "q") == [0, 2, 0, 1]  # nothing was written of q
    assert float(first_state(shard, "q")["promise"]) == pytest.approx(4 * 1 * 3 / (4 * 5))
    shard.add(pack([candidate("q", range(20, 30), [2], [0.1], version=4)], 100))
    assert counts(shard, "q") == [0, 0.25, 0, 1.125]  # 2 / 2^3; 1 / 2^3 and the new failure
    assert float(first_state(shard, "q")["promise"]) == pytest.approx(4 * 1 * 1.25 / (2.25 * 3.25))
    assert counts(shard, "p") == [0.75, 1.25, 0, 0.25]  # version 4 of q is none of p's


def test_a_late_outcome_counts_in_full_and_the_newest_of_a_write_decays_what_was_before() -> None:
    one, other = (shard_of(candidate("p", range(10), [1], [0.5]), decay=0.5) for _ in range(2))
    for shard, versions in ((one, (4, 5)), (other, (5, 4))):
        record(shard, "p", [(True, 3)] * 4)
        record(shard, "p", [(True, 2)])  # generated before version 3, heard of after it
        assert counts(shard, "p")[0] == 5
        record(shard, "p", [(False, version) for version in versions])
        assert counts(shard, "p")[:2] == [1.25, 2]  # 5 / 2^2, whichever came first
    shard = shard_of(candidate("p", range(10), [1], [0.5]), decay=1.0)
    record(shard, "p", [(True, 1), (False, 50)])
    assert counts(shard, "p")[:2] == [1, 1]


def news(shard: Shard, *given: tuple[str, int, float, int]) -> None:
    """Revalue by (problem, key, value, version)."""
    problems, keys, values, versions = zip(*given, strict=True)
    columns = np.array(keys, np.uint64), np.array(values, np.float32), np.array(versions, np.int32)
    shard.revalue(Revaluation(list(problems), *columns))


@pytest.mark.parametrize("ranking", ["value", "posterior"])
def test_new_values_are_taken_unless_they_are_older(ranking: str) -> None:
    shard = shard_of(
        candidate("p", range(10), [1, 2], [0.5, 0.25], version=3),
        candidate("q", range(10), [1], [0.75], version=3),
        ranking=ranking,
        temperature=0.5,
    )
    p, q = key_of(shard, "p"), key_of(shard, "q")
    news(shard, ("p", p, 0.9, 2))
    assert sorted(held(shard).values()) == [0.25, 0.5, 0.75]  # older than what is held
    news(shard, ("p", p, 1.0, 3))
    assert sorted(held(shard).values()) == [0.25, 0.75, 1.0]
    news(shard, ("p", p, 0.0, 4), ("p", p + 1, 9.0, 9), ("q", p, 9.0, 9), ("q", q, 0.5, 5))  # two are of no state
    assert sorted(held(shard).values()) == [0.0, 0.25, 0.5]
    assert (int(first_state(shard, "p")["version"]), int(first_state(shard, "q")["version"])) == (4, 5)
    if ranking == "value":  # e^(0 / 0.5) + e^(0.25 / 0.5) + e^(0.5 / 0.5)
        assert shard.masses().sum() == pytest.approx(1 + np.exp(0.5) + np.e)
        assert float(first_state(shard, "q")["worth"]) == 0.5
    with pytest.raises(StoreError, match="problem 'nowhere' is unknown"):
        news(shard, ("nowhere", p, 0.1, 9))


def test_prefixes_are_the_same_after_their_tokens_have_moved() -> None:
    """60 trajectories of 10 tokens, six to a chunk; two thirds of the states go, scattered over all chunks."""
    shard = shard_of()
    shard.arena = Arena(np.dtype(np.uint8), 64)
    made = [candidate(f"p{i}", [i, *range(1, 10)], [3, 7], [(i * 7 % 60) / 60] * 2) for i in range(60)]
    shard.add(pack(made, 100))
    apply(shard, least(shard, 80))
    kept = [c for i, c in enumerate(made) if i * 7 % 60 >= 40]
    assert held(shard) == {
        (c.problem_id, tuple(c.response_ids[:n].tolist())): c.values[0] for c in kept for n in (3, 7)
    }
    assert (shard.arena.live, shard.arena.wasteful) == (200, False)
    assert shard.arena.nbytes < 330  # 600 were written
