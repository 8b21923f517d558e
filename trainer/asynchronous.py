"""Asynchronous mode: engines never wait for the learner, and the staleness of every token is bounded.

    engines   | batch 1 .... | batch 2 .... | batch 3 .... |        never stop; weights change between two engine steps
    learner           wait   | update 1     | update 2     | ...    on the oldest complete batch

Batch N is submitted once the learner's version is at least N - 1 - `max_staleness`. Invariants: when the learner trains
at version v, no token is older than v - `max_staleness`; every submitted start is trained on once, with all samples; a
resumed run submits those of `state` again."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from core.errors import ConfigError
from core.records import Sampling, Start, Trajectory, World

if TYPE_CHECKING:
    from actors.stream import RolloutStream


class Pipeline:
    """Starts submitted and not yet trained on; tokens are at most `max_staleness` >= 1 versions behind the learner."""

    def __init__(
        self, stream: "RolloutStream", sampling: Sampling, *, starts: int, max_staleness: int, iterations: int
    ) -> None:
        self._stream = stream
        self._sampling = sampling
        self._starts = starts
        self._max_staleness = max_staleness
        self._iterations = iterations
        self._fed = 0  # number of the last batch that was submitted
        self._open: dict[str, Start] = {}
        self._submitted_at: dict[str, int] = {}  # start id -> learner's version at submission; no token is older
        self._complete: dict[str, list[Trajectory]] = {}  # in the order of completion

    @property
    def finished(self) -> int:
        """Starts that are complete and wait for the learner."""
        return len(self._complete)

    def feed(self, choose: Callable[[int], list[Start]], number: int, version: int) -> None:
        """Submit the batches that iteration `number` allows, chosen by `choose`."""
        while self._fed < min(number + self._max_staleness, self._iterations):
            self._fed += 1
            self._submit(choose(self._fed), version)

    def take(self, version: int) -> list[Trajectory]:
        """Wait for a batch for the learner at `version`: its samples, oldest starts first. Raises ActorError."""
        while (
            chosen := next_batch(self._submitted_at, self._complete, self._starts, version, self._max_staleness)
        ) is None:
            for start_id, trajectories in self._stream.finished():
                self._complete[start_id] = trajectories
        for start_id in chosen:
            del self._open[start_id], self._submitted_at[start_id]
        return [trajectory for start_id in chosen for trajectory in self._complete.pop(start_id)]

    def state(self) -> dict[str, Any]:
        """For a checkpoint (JSON): number of the last submitted batch, and the starts that are not yet trained on."""
        return {"fed": self._fed, "in_flight": [_as_json(start) for start in self._open.values()]}

    def restore(self, state: Mapping[str, Any] | None, number: int, version: int) -> None:
        """Continue after iteration `number`: submit the starts of `state` (None: synchronous) again, for the current
        weights. Raises ConfigError when the settings allow fewer starts, or these do not fill whole iterations."""
        starts = [_from_json(record) for record in state["in_flight"]] if state else []
        fed = state["fed"] if state else number
        ahead = fed - number
        if ahead > self._max_staleness:
            raise ConfigError(
                f"rollout.max_staleness = {self._max_staleness}: the checkpoint has starts in flight for {ahead} "
                f"iterations; set rollout.max_staleness to {ahead} or more"
            )
        if len(starts) != self._starts * ahead:
            raise ConfigError(
                f"rollout.starts = {self._starts}: the checkpoint has {len(starts)} starts in flight for {ahead} "
                f"iterations; set rollout.starts to {len(starts) // max(1, ahead)}"
            )
        self._stream.abandon()
        self._open, self._submitted_at, self._complete, self._fed = {}, {}, {}, fed
        self._submit(starts, version)

    def _submit(self, starts: Sequence[Start], version: int) -> None:
        self._open |= {start.id: start for start in starts}
        self._submitted_at |= {start.id: version for start in starts}
        self._stream.submit(starts, self._sampling)


def next_batch(
    submitted_at: Mapping[str, int], complete: Iterable[str], count: int, version: int, max_staleness: int
) -> list[str] | None:
    """The `count` oldest complete starts for the learner at `version`, if they leave a schedule of `count` per version
    that meets every later deadline (`submitted_at` + `max_staleness`; earliest first); None: wait."""
    chosen = sorted(complete, key=submitted_at.__getitem__)[:count]
    if len(chosen) < count:
        return None
    left = sorted(submitted_at[start_id] for start_id in submitted_at.keys() - set(chosen))
    for later in range(max_staleness + 1):
        due = int(np.searchsorted(left, version + later - max_staleness, side="right"))
        if due > count * later:
            return None
    return chosen


def _as_json(start: Start) -> dict[str, Any]:
    plain = asdict(start).items()
    return {name: value.tolist() if isinstance(value, np.ndarray | np.generic) else value for name, value in plain}


def _from_json(record: Mapping[str, Any]) -> Start:
    tokens = {name: np.array(record[name], dtype=np.int32) for name in ("prompt_ids", "prefix_ids")}
    world = None if record["world"] is None else World(**record["world"])
    return Start(**{**record, **tokens, "world": world})
