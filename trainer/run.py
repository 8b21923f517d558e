"""The parts of a run, and the report of an iteration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from core.errors import ActorError, DataError, WeightError
from core.parts.engines import Engines
from core.parts.sources import Progress, StartSource
from core.records import Problem, Rollout, Start, Use, used

if TYPE_CHECKING:
    from actors.local import LocalPool
    from actors.pool import RolloutPool
    from actors.stream import RolloutStream
    from learner.credit import Algorithm
    from learner.group import LearnerGroup
    from learner.stats import BroadcastReport, UpdateStats
    from tasks.task import Task

    Pool = RolloutPool | RolloutStream | LocalPool


class Sources(StartSource):
    """All start sources of a run, as one: fresh problems, and those that `trainer/build.py` names."""

    def __init__(
        self,
        fresh: StartSource,
        others: Mapping[str, StartSource],
        check: Callable[[Sequence[Start]], None] = lambda _: None,
        reserved: Callable[[int, Progress], int] | None = None,
    ) -> None:
        """`fresh`: takes the places that the `others` leave. `others`: by the name of their folder in a checkpoint.
        `check`: raises DataError for a start that must not be trained on. `reserved`: places that fresh problems may
        not take."""
        self._fresh, self._others, self._check, self._reserved = fresh, dict(others), check, reserved

    @property
    def _all(self) -> dict[str, StartSource]:
        return {"fresh": self._fresh, **self._others}

    def propose(self, most: int, at: Progress) -> list[Start]:
        """What each source wants; fresh problems take the rest. Fresh ones come first."""
        wanted: list[Start] = []
        for name, source in self._others.items():
            left = max(0, most - len(wanted))
            wanted += _checked(name, source.propose(left, at), left, at)
        reserved = self._reserved(most, at) if self._reserved else 0
        # reserved places leave one to a fresh problem, or the first iteration would have no start
        fresh = self._fresh.propose(most - max(len(wanted), min(reserved, most - 1)), at)
        starts = [*fresh, *wanted]
        _check_ids(starts)
        self._check(starts)
        return starts

    def extra(self, rollouts: Sequence[Rollout], at: Progress) -> list[Rollout]:
        """See `StartSource`."""
        return [rollout for source in self._all.values() for rollout in source.extra(rollouts, at)]

    def observe(self, rollouts: Sequence[Rollout], at: Progress) -> None:
        """See `StartSource`."""
        for source in self._all.values():
            source.observe(rollouts, at)

    def evaluated(self, rollouts: Sequence[Rollout]) -> None:
        """See `StartSource`."""
        for source in self._all.values():
            source.evaluated(rollouts)

    def save(self, folder: Path) -> None:
        """Each source into a folder of its name."""
        for name, source in self._all.items():
            (folder / name).mkdir()
            source.save(folder / name)

    def restore(self, folder: Path | None) -> None:
        """See `StartSource`. A source that was off when the checkpoint was written is as new."""
        for name, source in self._all.items():
            source.restore(None if folder is None or not (folder / name).is_dir() else folder / name)

    def metrics(self) -> dict[str, float]:
        """See `StartSource`."""
        return {name: value for source in self._all.values() for name, value in source.metrics().items()}

    def close(self) -> None:
        """See `StartSource`."""
        for source in self._all.values():
            source.close()


def _checked(name: str, starts: Sequence[Start], most: int, at: Progress) -> Sequence[Start]:
    """The starts of a source. Raises DataError for too many, and for one with another number of samples."""
    if len(starts) > most:
        raise DataError(f"rollout.sources {name}: propose(most={most}, ...) returned {len(starts)} starts")
    for start in starts:
        if start.samples != at.samples:
            raise DataError(
                f"rollout.sources {name}: the start {start.id} has {start.samples} samples, the run {at.samples} "
                "(rollout.samples); make starts by root_start or state_start"
            )
    return starts


def _check_ids(starts: Sequence[Start]) -> None:
    """A result is counted by the id of its start. Raises DataError for two of one id."""
    seen: set[str] = set()
    for start in starts:
        if start.id in seen:
            raise DataError(
                f"rollout.sources: two starts of an iteration have the id {start.id}, the first letter of their kind "
                "and their number; give root_start or state_start a kind with another first letter"
            )
        seen.add(start.id)


@dataclass(frozen=True, slots=True)
class Run:
    """The parts that an iteration uses."""

    begin: Progress  # before the first iteration
    task: Task  # problems and judges
    problems: Mapping[str, Problem]  # to train on, by id
    sources: Sources
    engines: Engines  # for the starts of training
    pool: Pool  # the same engines: for evaluation, weights and counts
    algorithm: Algorithm  # what the tokens of a batch weigh
    learner: LearnerGroup
    resample: int = 0  # most rounds of dynamic sampling in an iteration

    def at(self, iteration: int) -> Progress:
        """The run at the beginning of an iteration."""
        return replace(self.begin, iteration=iteration, version=self.learner.version)


@dataclass(frozen=True, slots=True)
class Report:
    """The result of one iteration; `trainer/collect.py` makes its metrics."""

    iteration: int
    rollouts: list[Rollout]  # of all uses
    stats: UpdateStats
    broadcast: BroadcastReport
    failure: ActorError | WeightError | None = None  # the engines failed in the broadcast; the update is complete

    @property
    def trained(self) -> list[Rollout]:
        """What policy and critic learnt from."""
        return used(self.rollouts, Use.TRAIN)

    @property
    def generated(self) -> list[Rollout]:
        """What the engines generated: also what dynamic sampling left out."""
        return used(self.rollouts, Use.TRAIN, Use.COUNT)

    @property
    def imitated(self) -> list[Rollout]:
        """Earlier answers that the policy repeated."""
        return used(self.rollouts, Use.IMITATE)
