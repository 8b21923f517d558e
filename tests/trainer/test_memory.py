"""What an iteration keeps, with a real store."""

import math
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from core.config import Config
from core.load import override
from core.records import Finish, Judged, Problem, Scored, Trajectory, Verdict
from replay.store import ReplayStore
from tests.resolved import without_auto
from trainer import build
from trainer.memory import Memory
from trainer.metrics import PhaseClock
from trainer.records import Batch, Components
from trainer.starts import fresh_starts

PROBLEM = Problem("p", np.array([1], np.int32), "gold")


class Parts:
    """A store, and what `Memory` asks of the other parts."""

    version, by_id = 1, {"p": PROBLEM}

    def __init__(self, store: ReplayStore) -> None:
        self.replay = store
        self.learner = self.problems = self.actors = self.task = self

    boundaries = staticmethod(lambda response: np.arange(1, response.size, dtype=np.int32))
    prefix_is_wrong = None

    def record(self, _judged: Sequence[Judged]) -> None:
        """Nothing is drawn."""

    def take_lost(self) -> list[Any]:
        return []


def scored(item: Judged) -> Scored:
    zeros = np.zeros(item.trajectory.tokens.size, np.float32)
    return Scored(item, zeros, zeros, zeros)


@pytest.mark.parametrize(("ratio", "states"), [("0.5", 2 * 3), ("0", 0)])
def test_states_are_stored_if_some_are_replayed_and_own_successes_in_any_case(
    ratio: str, states: int, tmp_path: Path
) -> None:
    start, tokens, zeros = fresh_starts([PROBLEM], 4, 0, 1)[0], np.array([3, 4, 5, 6], np.int32), np.zeros(4, np.int32)
    judged = [
        Judged(
            Trajectory(start, sample, tokens + sample, np.full(4, math.log(0.5), np.float32), zeros, Finish.STOP),
            Verdict(float(sample == 0), sample == 0),
        )
        for sample in range(2)
    ]
    fields = ["--replay.ratio", ratio, "--replay.imitated", "4", "--algorithm.positive_coefficient", "1"]
    config = override(Config(), fields)
    with closing(ReplayStore(config.replay, vocabulary=10, directory=tmp_path, fingerprint="", local=True)) as store:
        memory = Memory(
            cast(Components, Parts(store)), build.iteration_settings(without_auto(config)), PhaseClock(lambda _: None)
        )
        memory.remember(Batch(judged, []), [scored(item) for item in judged], 1)
        assert store.stats().states == states
        assert [success.response_ids.tolist() for success in store.successes(seed=0, version=1)] == [[3, 4, 5, 6]]
