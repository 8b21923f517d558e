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
from core.parts.sources import Progress, root_start, state_start
from core.records import Finish, IntArray, Problem, Rollout, Start, Verdict
from replay.cutting import cut
from replay.store.store import ReplayStore
from replay.store.table import Table
from tests.replay.made import sample

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

    @property
    def at(self) -> Progress:
        return Progress(0, self.version, 10**6, SAMPLES, self.version)

    def rollout(self, start: Start, correct: bool) -> Rollout:
        tokens = self.rng.integers(0, 1000, self.size - start.prefix_ids.size).astype(np.int32)
        log_p, versions = np.full(tokens.size, -0.1, np.float32), np.full(tokens.size, self.version, np.int32)
        values = np.full(tokens.size, 0.5, np.float32)  # a critic that knows nothing
        verdict = Verdict(float(correct), correct)
        return Rollout(start, 0, tokens, log_p, versions, Finish.STOP, verdict=verdict, values=values)

    def offer(self, rollouts: list[Rollout]) -> None:
        """What `replay.source` does with what was scored."""
        self.store.record([rollout for rollout in rollouts if not rollout.start.from_root])
        self.store.add([cut(rollout, every_token, 1000) for rollout in rollouts], self.version)

    def roots(self, count: int) -> list[Start]:
        return [root_start(self.problem, self.at, index) for index in range(count)]

    def turn(self, chance: Chance, starts: int = 1, roots: int = 0) -> list[int]:
        """One iteration; the lengths of the states that were replayed."""
        self.version += 1
        drawn = sample(self.store, starts, self.version)
        begun = [
            state_start(self.problem, state.prefix_ids, state.key, self.at, index) for index, state in enumerate(drawn)
        ]
        rollouts = [
            self.rollout(start, bool(self.rng.random() < chance(start.prefix_ids.size, self.version)))
            for start in [*begun, *self.roots(roots)]
            for _ in range(1 if start.from_root else SAMPLES)
        ]
        self.offer(rollouts)
        return [len(state.prefix_ids) for state in drawn]

    def rows(self) -> Table:
        states: Table = self.store._actors[0]._shard.states
        return states


def every_token(response: IntArray) -> IntArray:
    return np.arange(1, len(response), dtype=np.int32)


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
