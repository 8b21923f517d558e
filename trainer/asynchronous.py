"""Asynchronous mode: engines never wait for the learner, and the staleness of every token is bounded.

    engines   | batch 1 .... | batch 2 .... | batch 3 .... |        never stop; weights change between two engine steps
    learner           wait   | update 1     | update 2     | ...    on the oldest complete batch

The starts of batch N are asked for once the learner's version is at least N - 1 - `max_staleness`. Invariants: when the
learner trains at version v, no token is older than v - `max_staleness`; every submitted start is trained on once, with
all samples; a resumed run submits those of `save` again."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from core.errors import ConfigError
from core.parts.sources import Progress
from core.records import Rollout, Sampling, Start, World

if TYPE_CHECKING:
    from actors.stream import RolloutStream


class AsynchronousEngines:
    """Engines that generate while the learner updates (`core.parts.engines.Engines`)."""

    def __init__(self, stream: "RolloutStream", sampling: Sampling, *, starts: int, max_staleness: int) -> None:
        """`starts`: of a batch. `max_staleness`: >= 1, weight versions that a token may be behind the learner."""
        self._stream, self._sampling = stream, sampling
        self._starts, self._max_staleness = starts, max_staleness
        self._version = 0  # of the learner
        self._open: dict[str, Start] = {}
        self._submitted_at: dict[str, int] = {}  # start id -> learner's version at submission; no token is older
        self._complete: dict[str, list[Rollout]] = {}  # in the order of completion

    @property
    def finished(self) -> int:
        """Starts that are complete and wait for the learner."""
        return len(self._complete)

    def room(self, at: Progress) -> int:
        """The starts of the iterations that may begin now, less those that are in flight."""
        self._version = at.version
        last = min(at.iteration + self._max_staleness, at.iterations)
        return (last - at.iteration + 1) * self._starts - len(self._open)

    def generate(self, starts: Sequence[Start]) -> list[Rollout]:
        """Submit `starts`, and wait for a batch: its samples, oldest starts first. Raises ActorError."""
        self._submit(starts)
        while (
            chosen := next_batch(self._submitted_at, self._complete, self._starts, self._version, self._max_staleness)
        ) is None:
            self._complete.update(self._stream.finished())
        for start_id in chosen:
            del self._open[start_id], self._submitted_at[start_id]
        return [rollout for start_id in chosen for rollout in self._complete.pop(start_id)]

    def save(self) -> dict[str, Any] | None:
        """The starts that are not yet trained on."""
        return {"in_flight": [_as_json(start) for start in self._open.values()]}

    def restore(self, saved: Mapping[str, Any] | None, at: Progress) -> None:
        """See `Engines`. `saved` None: of a synchronous run."""
        starts = [_from_json(record) for record in saved["in_flight"]] if saved else []
        if len(starts) > self._max_staleness * self._starts:
            raise ConfigError(
                f"rollout.max_staleness = {self._max_staleness}: the checkpoint has {len(starts)} starts in flight, "
                f"more than rollout.max_staleness x rollout.starts = {self._max_staleness * self._starts}; raise one"
            )
        self._stream.abandon()
        self._open, self._submitted_at, self._complete = {}, {}, {}
        self._version = at.version
        self._submit(starts)

    def _submit(self, starts: Sequence[Start]) -> None:
        self._open |= {start.id: start for start in starts}
        self._submitted_at |= {start.id: self._version for start in starts}
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
