"""The store on real Ray actors: what goes in comes out, whatever the number of shards."""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

from core.config import ReplayConfig
from core.errors import LostShardError, StoreError
from core.records import EMPTY, Provenance, Start
from core.sections.registry import names
from monitor.store_table import store_summary
from replay.cutting import States
from replay.store.server import ShardServer
from replay.store.shard import Shard
from replay.store.store import ReplayStore
from tests.replay.made import of_kind, outcome, outcomes, sample, states, valued

VOCABULARY = 100
KINDS = (Provenance.OWN_FAILED, Provenance.OWN_SUCCESSFUL, Provenance.CANONICAL)
NEWEST = 2**31 - 1


def candidates(problems: int, per_problem: int = 2, seed: int = 0, size: int = 12) -> list[States]:
    rng = np.random.default_rng(seed)
    made = []
    for problem in range(problems):
        for _ in range(per_problem):
            tokens = rng.integers(0, VOCABULARY, size).astype(np.int32)
            lengths = np.array([3, 6, 9], np.int32)
            values = rng.random(3).astype(np.float32)
            provenance = KINDS[int(rng.integers(0, 3))]
            made.append(states(f"p{problem}", tokens, lengths, values, provenance))
    return made


def opened(directory: Path, shards: int = 2, local: bool = False, **fields: object) -> ReplayStore:
    config = ReplayConfig.model_validate({"ranking": "value", "start_states": 1, "shards": shards, **fields})
    return ReplayStore(config, vocabulary=VOCABULARY, directory=directory, fingerprint="task+tokenizer", local=local)


@pytest.fixture
def store(ray_cluster: None, tmp_path: Path) -> Iterator[ReplayStore]:
    made = opened(tmp_path / "live")
    yield made
    made.close()


def test_a_sampled_state_is_a_prefix_that_was_added(store: ReplayStore) -> None:
    added = candidates(20)
    store.add(added, 1)
    prefixes = {
        (c.problem_id, tuple(c.rollout.tokens[:k])): v for c in added for k, v in zip(c.lengths, c.values, strict=True)
    }
    assert len(store) == 120  # 20 problems x 2 trajectories x 3 boundaries
    states = sample(store, 50, seed=3)
    assert len({s.key for s in states}) == 50
    for state in states:
        assert state.value == pytest.approx(prefixes[state.problem_id, tuple(state.prefix_ids)])
    assert [s.key for s in sample(store, 50, seed=3)] == [s.key for s in states]
    assert [s.key for s in sample(store, 50, seed=4)] != [s.key for s in states]
    assert len(sample(store, 200, seed=4)) == 120
    store.count_draws(50, 50)
    store.count_draws(200, 120)
    assert store.stats().hit_rate == 170 / 250


def run_with(shards: int, directory: Path, local: bool, **fields: object) -> list[list[tuple[int, float]]]:
    """Samples after some iterations on a store that is too small for what is added."""
    store = opened(directory, shards, local, capacity=300, per_problem=5, **fields)
    for turn in range(3):
        store.add(candidates(60, seed=turn), 1)
        drawn = sample(store, 20, seed=turn)
        store.record([outcome(s.key, s.problem_id, s.value > 0.5, turn + 2) for s in drawn])
        stale = store.top(5, older_than=2)
        store.revalue([valued(s.key, s.problem_id, 0.5) for s in stale], 2)
        lost = [Start("", s.problem_id, EMPTY, s.prefix_ids, 1, 0, s.key) for s in drawn[:3]]
        before = len(store)
        store.remove(lost)
        assert len(store) == before - 3
        store.remove(lost)  # they are gone
        assert len(store) == before - 3
        assert {s.key for s in drawn[:3]}.isdisjoint(s.key for s in sample(store, 300, seed=turn))
    seen = [[(s.key, s.value) for s in sample(store, n, seed=9)] for n in (10, 200)]
    seen.append([(s.key, s.value) for s in store.top(30, NEWEST)])
    assert len(store) <= 300
    assert len(seen[0]) == 10
    store.close()
    return seen


@pytest.mark.parametrize("ranking", names("replay.ranking"))
def test_the_number_of_shards_changes_nothing(tmp_path: Path, ranking: str) -> None:
    one = run_with(1, tmp_path / "1", local=True, ranking=ranking)
    for shards in (2, 5):
        assert run_with(shards, tmp_path / str(shards), local=True, ranking=ranking) == one


def test_a_bound_on_bytes_is_kept_alike_by_any_number_of_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replay.store.store.MOST_BYTES", 14_000)
    one = run_with(1, tmp_path / "1", local=True)
    assert run_with(5, tmp_path / "5", local=True) == one
    store = opened(tmp_path / "6", 3, local=True)
    store.add(candidates(60), 1)
    assert store.stats().memory_bytes <= 14e3 / 63 * 64
    assert 50 < len(store) < 150


def test_actors_do_what_shards_in_this_process_do(ray_cluster: None, tmp_path: Path) -> None:
    assert run_with(2, tmp_path / "actors", local=False) == run_with(1, tmp_path / "here", local=True)


def test_outcomes_that_follow_the_critic_raise_its_weight(tmp_path: Path) -> None:
    store = opened(tmp_path, 2, local=True, ranking="learnability")
    store.add(candidates(30), 1)
    for turn in range(6):
        drawn = sample(store, 60, seed=turn)
        store.record([outcome(s.key, s.problem_id, s.value > 0.5, turn) for s in drawn])
    assert store._model.weights[6] > 0.5  # of the critic's value within a problem: 0 without outcomes
    store.save(tmp_path / "checkpoint")
    expected = [s.key for s in sample(store, 20, seed=99)]
    other = opened(tmp_path / "other", 3, local=True, ranking="learnability")
    other.restore(tmp_path / "checkpoint")
    assert other._model == store._model
    assert [s.key for s in sample(other, 20, seed=99)] == expected


def test_a_state_that_is_drawn_again_is_evidence_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In asynchronous mode before the first outcome comes; and it is then not the first to be forgotten."""
    store = opened(tmp_path, 1, local=True, ranking="learnability")
    one, value = np.array([6], np.int32), np.zeros(1, np.float32)  # one state of each problem
    made = candidates(3, per_problem=1)
    store.add([states(c.problem_id, c.rollout.tokens, one, value, Provenance.CANONICAL) for c in made], 1)
    drawn = [sample(store, 3, seed=turn) for turn in range(2)]
    for found in drawn:
        store.record([outcome(s.key, s.problem_id, won, 1) for s in found for won in (True, False)])
    assert len(store._evidence.features) == 6
    assert (store._evidence.fresh_before, store._evidence.unsolved_before) == (
        0.0,
        0.0,
    )  # a canonical solution is no rollout
    monkeypatch.setattr("replay.evidence.REMEMBERED", 2)
    again = [sample(store, 3, seed=turn) for turn in range(2, 4)]
    assert list(store._evidence.drawn) == [state.key for state in again[1][1:]]


@pytest.mark.parametrize("ranking", names("replay.ranking"))
def test_a_store_goes_on_from_a_checkpoint_exactly(tmp_path: Path, ranking: str) -> None:
    """On three shards instead of one: draws with their outcomes, new values, trust, evictions, counts."""

    def iteration(store: ReplayStore, number: int) -> list[int]:
        store.add(candidates(60, seed=number % 7), 1)
        drawn = sample(store, 20, seed=number)
        store.record([outcome(s.key, s.problem_id, s.value > 0.5, number + 2) for s in drawn])
        stale = store.top(5, older_than=number + 2)
        store.revalue([valued(s.key, s.problem_id, 0.5) for s in stale], number + 2)
        return [state.key for state in drawn]

    fields = {"capacity": 300, "per_problem": 5, "ranking": ranking}
    first = opened(tmp_path, shards=1, local=True, **fields)
    for number in range(5):
        iteration(first, number)
    first.save(tmp_path / "saved")
    expected = [iteration(first, number) for number in range(5, 12)]
    second = opened(tmp_path, shards=3, local=True, **fields)
    second.restore(tmp_path / "saved")
    assert [iteration(second, number) for number in range(5, 12)] == expected
    assert any(expected)
    assert (second._model, second._evidence.drawn) == (first._model, first._evidence.drawn)
    same = {"resident_bytes": 0}  # all shards are in this process, so each counts it
    assert asdict(second.stats()) | same == pytest.approx(asdict(first.stats()) | same)


def test_a_restored_store_samples_what_the_first_would_have(tmp_path: Path) -> None:
    first = opened(tmp_path / "a", 2, local=True)
    first.add(candidates(30), 1)
    first.record(outcomes(sample(first, 10, seed=0), True, 1))
    first.save(tmp_path / "checkpoint")
    first.add(candidates(30, seed=1), 1)
    expected = [s.key for s in sample(first, 40, seed=5)]
    stats = first.stats()
    first.close()
    second = opened(tmp_path / "b", 3, local=True)
    second.restore(tmp_path / "checkpoint")
    second.add(candidates(30, seed=1), 1)
    assert [s.key for s in sample(second, 40, seed=5)] == expected
    assert second.stats().outcomes == stats.outcomes == 10
    second.close()


def test_a_cleared_store_is_as_a_new_one(tmp_path: Path) -> None:
    cleared, new = (opened(tmp_path / name, 2, local=True, ranking="learnability") for name in ("a", "b"))
    cleared.add(candidates(30), 1)
    cleared.record(outcomes(sample(cleared, 10, seed=0), True, 1))
    cleared.clear()
    assert len(cleared) == 0
    assert cleared.stats() == new.stats()
    for store in (cleared, new):
        store.add(candidates(30, seed=1), 1)
    assert [s.key for s in sample(cleared, 40, seed=5)] == [s.key for s in sample(new, 40, seed=5)]
    cleared.close()
    new.close()


def test_a_snapshot_of_another_tokenizer_is_refused(store: ReplayStore, tmp_path: Path) -> None:
    store.add(candidates(3), 1)
    store.save(tmp_path / "checkpoint")
    message = {"another": r"fingerprint 'task\+tokenizer', but this run has 'another'"}
    message["task+tokenizer"] = "vocabulary 100, but this run has 101"
    for number, (fingerprint, line) in enumerate(message.items()):
        other = ReplayStore(
            ReplayConfig(ranking="value"),
            vocabulary=100 + number,
            directory=tmp_path / fingerprint,
            fingerprint=fingerprint,
            local=True,
        )
        with pytest.raises(StoreError, match=rf"/checkpoint: .*{line}"):
            other.restore(tmp_path / "checkpoint")


def test_ages_and_solve_rates_by_hand(tmp_path: Path) -> None:
    """Values of versions 1, 1 and 4; own trajectories from the root: one of two right; continuations: one of four."""
    store = opened(tmp_path, 2, local=True)
    tokens, one = np.arange(5, dtype=np.int32), np.array([2], np.int32)
    for problem, provenance, version in zip("pqr", KINDS, (1, 1, 4), strict=True):
        value = np.array([0.5], np.float32)
        store.add([states(problem, tokens, one, value, provenance)], version)
    state = sample(store, 1, seed=0)[0]
    store.record([outcome(state.key, state.problem_id, i == 2, 4) for i in range(4)])
    stats = store.stats()
    assert (stats.mean_age, stats.max_age) == (2.0, 3)
    assert (stats.root_solved, stats.root_outcomes, stats.solved, stats.outcomes) == (1, 2, 1, 4)
    assert "solved: of continuations 25.0% of 4, of rollouts from the root 50.0% of 2; 0 outcomes" in store_summary(
        stats
    )


@pytest.mark.parametrize("shards", [1, 4])
def test_ages_do_not_depend_on_the_number_of_shards(tmp_path: Path, shards: int) -> None:
    store = opened(tmp_path, shards, local=True)
    store.add(candidates(8), 1)
    for version in (5, 9):
        stale = store.top(3, older_than=version)
        store.revalue([valued(s.key, s.problem_id, 0.5) for s in stale], version)
    assert (store.stats().max_age, store.stats().newest) == (8, 9)


def test_the_decayed_unsolved_share_continues_from_a_checkpoint(tmp_path: Path) -> None:
    """Two problems that fail, then one that is solved in one of two rollouts and one that fails: (0.95 x 2 + 1) /
    (0.95 x 2 + 2)."""
    store, other = (opened(tmp_path / name, 2, local=True) for name in ("a", "b"))
    first, second = candidates(2, 1)
    failed, solved, _ = KINDS
    for kinds in (((first, failed), (second, failed)), ((first, failed), (first, solved), (second, failed))):
        store.add([of_kind(item, kind) for item, kind in kinds], 1)
        store.record([])
    assert store.decayed_unsolved_share == pytest.approx(2.9 / 3.9)
    store.save(tmp_path / "checkpoint")
    other.restore(tmp_path / "checkpoint")
    assert other.decayed_unsolved_share == store.decayed_unsolved_share


def test_an_empty_store_hands_out_nothing(store: ReplayStore) -> None:
    assert sample(store, 4, seed=0) == []
    assert store.top(4, NEWEST) == []
    assert store.stats().states == 0


def test_a_killed_shard_serves_again_with_everything_acknowledged(store: ReplayStore) -> None:
    store.add(candidates(20), 1)
    store.record(outcomes(sample(store, 10, seed=0), True, 1))
    expected = [(s.key, s.value) for s in sample(store, 30, seed=1)]
    kill_shards(store)
    assert [(s.key, s.value) for s in sample(store, 30, seed=1)] == expected
    store.add(candidates(20, seed=1), 1)
    assert store.stats().outcomes == 10
    assert len(store) == 240


def kill_shards(store: ReplayStore) -> None:
    for actor in store._actors:
        os.kill(ray.get(actor.__ray_call__.remote(lambda _: os.getpid())), signal.SIGKILL)


def test_a_shard_killed_after_a_checkpoint_has_the_checkpoint_and_what_came_after(
    store: ReplayStore, tmp_path: Path
) -> None:
    store.add(candidates(20), 1)
    store.save(tmp_path / "checkpoint")
    store.add(candidates(20, seed=1), 1)
    expected = [s.key for s in sample(store, 200, seed=1)]
    kill_shards(store)
    assert [s.key for s in sample(store, 200, seed=1)] == expected
    store.restore(tmp_path / "checkpoint")
    restored = [s.key for s in sample(store, 200, seed=1)]
    assert len(restored) == 120
    kill_shards(store)
    assert [s.key for s in sample(store, 200, seed=1)] == restored


def test_a_shard_that_lost_its_files_says_so_and_serves_again_after_a_restore(
    store: ReplayStore, tmp_path: Path
) -> None:
    store.add(candidates(20), 1)
    store.save(tmp_path / "checkpoint")
    expected = [s.key for s in sample(store, 200, seed=1)]
    for path in (tmp_path / "live").iterdir():
        path.unlink()
    kill_shards(store)
    with pytest.raises(LostShardError, match=r"^replay-shard-0: .*0 of 2 writes"):
        sample(store, 200, seed=1)
    store.restore(tmp_path / "checkpoint")
    assert [s.key for s in sample(store, 200, seed=1)] == expected


def test_the_calls_of_an_iteration_do_not_grow_with_its_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Counter[str] = Counter()

    def count(kind: type, name: str) -> None:
        method = getattr(kind, name)

        def call(*given: Any) -> Any:
            calls[name] += 1
            return method(*given)

        monkeypatch.setattr(kind, name, call)

    count(ShardServer, "write")
    for name in ("candidates", "fetch", "least"):
        count(Shard, name)
    store = opened(tmp_path, 1, local=True, capacity=100)
    store.add(candidates(10), 1)
    calls.clear()
    drawn, stale = sample(store, 20, seed=0), store.top(5, NEWEST)
    store.revalue([valued(s.key, s.problem_id, 0.0) for s in stale], 2)
    store.record(outcomes(drawn, True, 2))
    store.add(candidates(20, seed=1), 1)
    # the draw and the stale states; writes: new values, outcomes, states, eviction
    assert calls == {"candidates": 2, "fetch": 2, "least": 1, "write": 4}


def test_a_write_that_one_shard_refuses_counts_on_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the next write would have the number of this one there, and would be taken for its repetition."""
    store = opened(tmp_path, 2, local=True)

    def refuse(_: object) -> None:
        raise StoreError("no room")

    monkeypatch.setattr(store._actors[1]._shard, "apply", refuse)
    with pytest.raises(StoreError, match="no room"):
        store.add(candidates(20, seed=1), 1)
    monkeypatch.undo()
    store.add(candidates(20, seed=2), 1)
    stored = {(s.problem_id, tuple(s.prefix_ids)) for s in store.top(1000, NEWEST)}
    assert {(c.problem_id, tuple(c.rollout.tokens[:k])) for c in candidates(20, seed=2) for k in c.lengths} <= stored
