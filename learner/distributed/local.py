"""The ranks' place when a run has one process and no Ray (`launch.py train --local`): one rank, called directly.

Made by `learner.group`. Invariant: what a rank raises reaches the caller as itself, so that a debugger stops where it arose.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

from core.weights import copied
from learner.distributed.ranks import R
from learner.distributed.worker import RankWorker


class LocalRanks:
    """One `RankWorker` in this process; the environment of `learner.ranks.rank_environment` must be set."""

    def __init__(self) -> None:
        self._worker = RankWorker(publish=copied)

    def __len__(self) -> int:
        return 1

    def call(self, method: Callable[..., R], *args: Sequence[Any]) -> list[R]:
        """Call a method of `RankWorker`, `args[k][0]` being its k-th argument."""
        return [method(self._worker, *(arg[0] for arg in args))]

    def begin(self, method: Callable[..., R], *args: Sequence[Any]) -> Callable[[], list[R]]:
        """Call it now: there is nothing beside which it could run."""
        results = self.call(method, *args)
        return lambda: results

    def call_first(self, method: Callable[..., R]) -> R:
        """Call a method of `RankWorker`."""
        return method(self._worker)

    def pids(self) -> list[int]:
        """This process's id, for measurements."""
        return [os.getpid()]

    def close(self) -> None:
        """The rank ends with the process."""
