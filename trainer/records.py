"""The records of an iteration: its components, its settings and its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.config import ReplaySchedule
from core.errors import ActorError, WeightError
from core.records import FloatArray, Imitated, IntArray, Judged, Problem, ReplayedState, Sampling, Scored, Start
from trainer.starts import unsolved_share

if TYPE_CHECKING:
    from actors.local import LocalPool
    from actors.pool import RolloutPool
    from actors.stream import RolloutStream
    from learner.group import LearnerGroup
    from learner.stats import BroadcastReport, UpdateStats
    from replay.store import ReplayStore
    from tasks.sampling import ProblemSampler
    from tasks.task import Task
    from trainer.asynchronous import Pipeline

    Rollouts = RolloutPool | RolloutStream | LocalPool


@dataclass(frozen=True, slots=True)
class Components:
    """The components of a run that an iteration uses."""

    task: Task
    problems: ProblemSampler
    by_id: Mapping[str, Problem]  # the training problems
    replay: ReplayStore
    actors: Rollouts
    learner: LearnerGroup
    boundaries: Callable[[IntArray], IntArray]  # response tokens [T] -> ascending lengths at which a step ends
    pipeline: Pipeline | None = None  # in asynchronous mode


@dataclass(frozen=True, slots=True)
class IterationSettings:
    """The settings of an iteration."""

    seed: int
    starts: int  # per iteration
    iterations: int  # of the run
    replayed: int  # of these starts at most, once the store has `start_states` states
    schedule: ReplaySchedule  # how the number of replayed starts changes over the run
    fill: bool  # whether fresh problems take the places of states that are not worth replaying
    start_states: int
    samples: int  # continuations per start
    sampling: Sampling
    resample: int  # most rounds in which starts of equal rewards are replaced
    reward: Callable[[Judged], float]  # of a whole continuation, as the learner sees it
    mask_truncated: bool  # the learner leaves truncated continuations out
    exclude_wrong: bool  # what is wrong by its text is neither a state nor imitated
    canonical: bool  # canonical solutions are a source of states
    refresh_states: int  # states per iteration that get a new value
    refresh_while_generating: bool  # False if engines and critic share one GPU


@dataclass(frozen=True, slots=True)
class ValueRefresh:
    """States that get new values from the critic. The values are those of the critic at the time of the request."""

    states: list[ReplayedState]
    version: int  # of the critic
    values: Callable[[], list[FloatArray]]  # waits; one array per state, whose first number is its value


@dataclass(frozen=True, slots=True)
class Batch:
    """The judged rollouts of an iteration."""

    judged: list[Judged]  # what is trained on
    dropped: list[Judged]  # rollouts of starts that were replaced

    @property
    def starts(self) -> list[Start]:
        """The starts that are trained on, in order."""
        return list({item.trajectory.start.id: item.trajectory.start for item in self.judged}.values())

    @property
    def all_judged(self) -> list[Judged]:
        """All rollouts from chosen starts."""
        return [*self.judged, *self.dropped]

    @property
    def unsolved_share(self) -> float:
        """Share of the fresh problems of which every sample failed."""
        return unsolved_share(self.all_judged)


@dataclass(frozen=True, slots=True)
class IterationResult:
    """The result of one iteration; `trainer/collect.py` makes its metrics."""

    number: int
    batch: Batch
    scored: list[Scored]
    stats: UpdateStats
    broadcast: BroadcastReport
    imitated: list[Imitated]  # earlier own successes that the policy repeated
    failure: ActorError | WeightError | None = None  # the engines failed in the broadcast; the update is complete
