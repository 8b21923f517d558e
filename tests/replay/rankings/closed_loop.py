"""A closed loop for rankings: a store, and a made-up policy whose results come back as the trainer's do.

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
    Start,
    Trajectory,
    Verdict,
)
from replay.store import ReplayStore
from replay.table import Table
from trainer.starts import cut_trajectories, fresh_starts, outcomes, replayed_starts

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
    version: int = 0

    def rollout(self, start: Start, correct: bool) -> Judged:
        tokens = self.rng.integers(0, 1000, self.size - start.prefix_ids.size).astype(np.int32)
        log_p, versions = np.full(tokens.size, -0.1, np.float32), np.full(tokens.size, self.version, np.int32)
        return Judged(Trajectory(start, 0, tokens, log_p, versions, Finish.STOP), Verdict(float(correct), correct))

    def offer(self, judged: list[Judged]) -> None:
        """What `trainer.memory` does with what was judged."""
        self.store.record(outcomes(judged))
        self.store.add(cut_trajectories(judged, halves(judged), every_token, self.version))

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


def every_token(response: IntArray) -> IntArray:
    return np.arange(1, len(response), dtype=np.int32)


def halves(judged: list[Judged]) -> list[FloatArray]:
    """A critic that knows nothing."""
    return [np.full(item.trajectory.tokens.size, 0.5, np.float32) for item in judged]


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Callable[..., Loop]]:
    stores: list[ReplayStore] = []

    def make(size: int = 11) -> Loop:
        config = ReplayConfig(ranking="learnability")
        where = str(tmp_path / str(len(stores)))
        stores.append(ReplayStore(config, vocabulary=1000, directory=Path(where), fingerprint="task", local=True))
        loop = Loop(stores[-1], np.random.default_rng(0), size, Problem("p", np.ones(1, np.int32), "gold"))
        loop.offer([loop.rollout(loop.roots(1)[0], True)])
        return loop

    yield make
    for store in stores:
        store.close()
