"""Chooses the problems that an iteration replays: many of them, each now and then.

Without a bound the same few problems are drawn in every iteration, and replay can learn the ends of their responses by
heart. The bound counts draws, not successes. How often a state is drawn is bounded by the ranking `learnability`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from core.records import ReplayedState, Rollout

PAUSE = 4  # iterations in which a problem is replayed once at most


class Visits:
    """When each problem was replayed, and whether its root failed. Only `observe` changes it."""

    def __init__(self) -> None:
        self._replayed: dict[str, int] = {}  # problem -> the last iteration that replayed it
        self._root_failed: dict[str, bool] = {}  # problem -> whether its last visit from the root had no success

    def observe(self, roots: Mapping[str, Sequence[Rollout]], continued: Sequence[Rollout], iteration: int) -> None:
        """Note the rollouts of an iteration: the visits from the root, by problem, and the continuations of states."""
        for name, visit in roots.items():
            self._root_failed[name] = not any(rollout.verdict.correct for rollout in visit)
        self._replayed |= {rollout.start.problem_id: iteration for rollout in continued}

    def root_fails(self, problem_id: str) -> bool:
        """Whether the problem's last visit from the root had no success; True before there is one."""
        return self._root_failed.get(problem_id, True)

    def choose(self, drawn: Sequence[ReplayedState], count: int, iteration: int) -> list[int]:
        """The places in `drawn` of at most `count` states, one of each problem that has rested. First come problems
        whose root failed, of equals those that were replayed longest ago, of equals the order of `drawn`."""
        first: dict[str, int] = {}
        for place, state in enumerate(drawn):
            if self._replayed.get(state.problem_id, -PAUSE) <= iteration - PAUSE:
                first.setdefault(state.problem_id, place)
        order = sorted(first, key=lambda name: (not self.root_fails(name), self._replayed.get(name, 0)))
        return [first[name] for name in order[:count]]

    def to_json(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"replayed": self._replayed, "root_failed": self._root_failed}

    def from_json(self, saved: Mapping[str, Any]) -> None:
        """Set it to what `to_json` returned; of an empty mapping to a new one."""
        self._replayed, self._root_failed = dict(saved.get("replayed", {})), dict(saved.get("root_failed", {}))
