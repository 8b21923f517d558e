"""The ranking `frontier` in closed loop: a store, and a made-up policy whose results come back as the trainer's do.

A trajectory has `size` tokens with a boundary after each, and the policy finishes from a prefix of k tokens with a
chance that each test states.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from core.config import ReplayConfig
from core.records import (
    Finish,
    FloatArray,
    IntArray,
    Judged,
    Problem,
    Provenance,
    Start,
    Trajectory,
    Verdict,
)
from replay.store import ReplayStore
from replay.table import Table
from trainer.starts import canonical_rollouts, cut_trajectories, fresh_starts, outcomes, replayed_starts

SAMPLES = 4
Chance = Callable[[int, int], float]
"""Of finishing from a prefix of so many tokens, at a version."""


@dataclass
class Loop:
    """One problem, its store, and the policy."""

    store: ReplayStore
    rng: np.random.Generator
    size: int
    problem: Problem
    canonical: bool = False
    version: int = 0

    def rollout(self, start: Start, correct: bool) -> Judged:
        tokens = self.rng.integers(0, 1000, self.size - start.prefix_ids.size).astype(np.int32)
        log_p, versions = np.full(tokens.size, -0.1, np.float32), np.full(tokens.size, self.version, np.int32)
        return Judged(Trajectory(start, 0, tokens, log_p, versions, Finish.STOP), Verdict(float(correct), correct))

    def offer(self, judged: list[Judged]) -> None:
        """What `trainer.memory` does with what was judged."""
        self.store.record(outcomes(judged))
        self.store.add(cut_trajectories(judged, halves(judged), every_token, self.version, chains=True))
        if self.canonical:
            golden = canonical_rollouts(self.roots(1), {"p": self.problem})
            self.store.add(
                cut_trajectories(golden, halves(golden), every_token, self.version, lambda _: Provenance.CANONICAL)
            )

    def roots(self, count: int) -> list[Start]:
        return fresh_starts([self.problem] * count, SAMPLES, 0, self.version)

    def turn(self, chance: Chance, starts: int = 1, roots: int = 0) -> list[int]:
        """One iteration; the lengths of the states that were replayed."""
        self.version += 1
        drawn = self.store.sample(starts, self.version)
        begun = replayed_starts(drawn, {"p": self.problem}, SAMPLES, 0, self.version)
        judged = [
            self.rollout(start, bool(self.rng.random() < chance(start.prefix_ids.size, self.version)))
            for start in [*begun, *self.roots(roots)]
            for _ in range(SAMPLES if start.replayed else 1)
        ]
        self.offer(judged)
        return [len(state.prefix_ids) for state in drawn]

    def rows(self) -> Table:
        states: Table = self.store._actors[0]._shard.states
        return states

    def chain(self, trajectory: int) -> list[int]:
        """Lengths of the proven states of a stored trajectory."""
        rows = self.rows()
        mine = (rows["trajectory"] == trajectory) & (rows["provenance"] != Provenance.OWN_FAILED)
        return sorted(rows["length"][mine].tolist())


def every_token(response: IntArray) -> IntArray:
    return np.arange(1, len(response), dtype=np.int32)


def halves(judged: list[Judged]) -> list[FloatArray]:
    """A critic that knows nothing."""
    return [np.full(item.trajectory.tokens.size, 0.5, np.float32) for item in judged]


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Callable[..., Loop]]:
    stores: list[ReplayStore] = []

    def make(
        size: int = 11, seed: int = 0, canonical: bool = False, first: bool | None = True, **fields: object
    ) -> Loop:
        config = ReplayConfig.model_validate({"shards": 1, "ranking": "frontier", **fields})
        where = str(tmp_path / str(len(stores)))
        stores.append(ReplayStore(config, vocabulary=1000, directory=Path(where), fingerprint="task", local=True))
        rng = np.random.default_rng(seed)
        golden = rng.integers(0, 1000, size).astype(np.int32)
        loop = Loop(stores[-1], rng, size, Problem("p", np.ones(1, np.int32), "gold", solution_ids=golden), canonical)
        loop.offer([loop.rollout(loop.roots(1)[0], first)] if first is not None else [])
        return loop

    yield make
    for store in stores:
        store.close()


def test_a_perfect_policy_moves_to_the_first_boundary_and_the_chain_rests(made: Callable[..., Loop]) -> None:
    loop = made(size=21, canonical=True, first=None)
    seen = [loop.turn(lambda _k, _v: 1.0) for _ in range(6)]
    # The middle first (x = 10/21); 4 wins there: h = 1 / (0.4 + 4 * 0.476) = 0.43, exp(-0.43 * 20/21) = 0.66.
    # Nine wins master it: 4, 4 + 3.8 and 4 + 3.8 + 3.61 decayed ones.
    assert seen == [[11], [1], [1], [1], [], []]
    for _ in range(12):  # while rollouts from the root fail, outcomes decay, and it is tried again
        loop.offer([loop.rollout(loop.roots(1)[0], False)])
        loop.version += 1
    assert loop.turn(lambda _k, _v: 1.0) == [1]


@pytest.mark.parametrize("seed", range(3))
def test_the_start_reaches_the_shallowest_state_within_reach_and_the_chain_stays(
    made: Callable[..., Loop], seed: int
) -> None:
    """q = 0.95 per step: 0.95^10 = 0.6 from the first boundary. What continues the chain must not displace it."""
    loop = made(seed=seed, canonical=True, first=None)
    (trajectory,) = set(loop.rows()["trajectory"].tolist())
    seen = []
    for _ in range(40):
        seen += loop.turn(lambda k, _v: 0.95 ** (11 - k))
        assert loop.chain(trajectory) == list(range(1, 11))
        assert len(loop.store.top(100, older_than=10**6)) == 1
    assert len(seen) == 40
    assert set(seen[16:]) <= {
        1,
        2,
    }  # seed 1 fails four times where it succeeds in 0.6 of all, and comes back after 10 versions


def test_successes_from_the_root_do_not_displace_the_chain_that_is_worked_on(made: Callable[..., Loop]) -> None:
    loop = made(seed=1)
    (trajectory,) = set(loop.rows()["trajectory"].tolist())
    for _ in range(40):
        drawn = loop.turn(lambda k, _v: 0.95 ** (11 - k), starts=2, roots=1)
        assert drawn
        assert loop.chain(trajectory) == list(range(1, 11))
    assert len(loop.rows()) == 32  # the quota is full of chains


def test_a_canonical_chain_that_is_offered_again_and_again_stays_one_chain(made: Callable[..., Loop]) -> None:
    """40 boundaries under a quota of 32: what was thinned out must not come back as chains of their own."""
    loop = made(size=41, canonical=True, first=None)
    (trajectory,) = set(loop.rows()["trajectory"].tolist())
    held = loop.chain(trajectory)
    assert len(held) == 32
    assert (held[0], max(np.diff(held)), held[-1]) == (1, 2, 40)  # from its beginning to its end
    seen = []
    for _ in range(30):
        seen += loop.turn(lambda k, _v: 0.97 ** (41 - k))
        assert loop.chain(trajectory) == held
        assert len(loop.store.top(100, older_than=10**6)) == 1
    assert len(seen) == 30
    assert seen[-1] < 20  # began at 21; 0.97^40 = 0.3


def test_a_policy_that_grows_takes_the_start_to_the_root_and_the_problem_retires(made: Callable[..., Loop]) -> None:
    loop = made(seed=3)
    seen = []
    for _ in range(80):
        drawn = loop.turn(lambda k, v: min(0.5 + 0.02 * v, 1.0) ** (11 - k), roots=4)
        seen += [drawn[0] if drawn else 0]
    assert np.mean(seen[4:10]) >= 8  # 0.6^2 = 0.36, 0.7^3 = 0.34
    assert np.mean(seen[34:44]) <= 2  # 1.0 from version 25 on
    assert seen[-1] == 0
    assert loop.store.top(10, older_than=10**6) == []  # solved from the root


def test_a_chain_longer_than_the_quota_has_exactly_one_replayable_state(made: Callable[..., Loop]) -> None:
    for ranking in ("frontier", "canonical"):
        loop = made(size=41, canonical=True, first=None, ranking=ranking, per_problem=6)
        for seed in range(20):
            problem = Problem(f"p{seed}", loop.problem.prompt_ids, "gold", solution_ids=loop.problem.solution_ids)
            golden = canonical_rollouts(fresh_starts([problem], 1, 0, 0), {problem.id: problem})
            loop.store.add(cut_trajectories(golden, halves(golden), every_token, 0, lambda _: Provenance.CANONICAL))
        found = [state.problem_id for state in loop.store.top(100, older_than=10**6)]
        assert sorted(found) == sorted(["p", *(f"p{seed}" for seed in range(20))])
