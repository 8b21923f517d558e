"""Guards the root: replay may make the ends of responses better and their beginnings worse.

Each problem is compared with itself: the success of its latest visit from the root minus that of its first. Replay
costs the root something where the mean difference over problems is below 0 by more than two standard errors, while most
continuations of replayed states succeed. The share of replay is then halved, until that is no longer so. Invariant:
only `observe` changes the guard, so it depends on the rollouts alone.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from core.records import Rollout

LEAST = 16  # problems with two visits, below which nothing is said
ERRORS = 2.0  # standard errors below 0
MASTERED = 0.5  # recent success of replayed starts
DECAY = 0.9  # of that, per iteration: about the last ten


class RootGuard:
    """Compares the root of each problem with what it was at first."""

    def __init__(self) -> None:
        self._first: dict[str, float] = {}  # problem -> success of its first visit
        self._latest: dict[str, float] = {}  # the same of its latest, once there were two
        self._replayed = [0.0, 0.0]  # decayed successes of replayed starts, and their count

    def observe(self, roots: Mapping[str, Sequence[Rollout]], continued: Sequence[Rollout]) -> None:
        """Note the rollouts of an iteration: the visits from the root, by problem, and the continuations of states."""
        for name, visit in roots.items():
            known = self._latest if name in self._first else self._first
            known[name] = _success(visit)
        wins, tried = self._replayed
        successes = sum(rollout.verdict.success for rollout in continued)
        self._replayed = [DECAY * wins + successes, DECAY * tried + len(continued)]

    @property
    def halves(self) -> bool:
        """Whether the share of replay is halved."""
        wins, tried = self._replayed
        if len(self._latest) < LEAST or wins <= MASTERED * tried:
            return False
        change = np.array([after - self._first[name] for name, after in self._latest.items()])
        return bool(change.mean() < -ERRORS * change.std(ddof=1) / len(change) ** 0.5)

    def to_json(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"first": self._first, "latest": self._latest, "replayed": self._replayed}

    def from_json(self, saved: Mapping[str, Any]) -> None:
        """Set it to what `to_json` returned; of an empty mapping to a new one."""
        self._first, self._latest = dict(saved.get("first", {})), dict(saved.get("latest", {}))
        self._replayed = list(saved.get("replayed", (0.0, 0.0)))


def _success(visit: Sequence[Rollout]) -> float:
    return sum(rollout.verdict.success for rollout in visit) / len(visit)
