"""The algorithm: PPO whose rollouts start from prompts and from replayed prefix states (RRL, arXiv 2504.14363).

    starts        problems.sample(fresh) + replay.sample(replayed)
    trajectories  actors.generate(starts)            vLLM, token in, token out; beside it the critic values stale states
    judged        task.judge(trajectories)           verifiers, in processes of their own
    scored        learner.score(judged)              values, reference and proximal log-probabilities
                  replay.revalue(stale states)       by the present critic
                  replay.record(outcomes)            what became of the replayed states
                  replay.add(candidates)             boundaries of the trajectories (of canonical solutions, of what exploring found)
                  learner.update(scored)             PPO on policy and critic
                  learner.broadcast(actors)          acknowledged with a digest by every engine

Called by `trainer/session.py`; `trainer/asynchronous.py` runs the same functions as a pipeline. Invariant: in synchronous mode iteration i depends on nothing but the run seed, i, and the
state that a checkpoint holds (weights, optimizers, cursor, replay), so a resumed run repeats the uninterrupted one.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from core.errors import ActorError, LearnerError, WeightError
from core.records import FloatArray, IntArray, Problem, Provenance, ReplayedState, Scored, Start, Trajectory
from core.sampling import Sampling
from core.seeds import derive
from core.weights import WeightReceiver
from trainer.metrics import PhaseClock
from trainer.starts import (
    candidates,
    canonical_rollouts,
    discoveries,
    fresh_starts,
    outcomes,
    replayed_starts,
    value_queries,
)

if TYPE_CHECKING:
    from actors.ledger import Queues
    from learner.group import LearnerGroup
    from learner.stats import BroadcastReport, UpdateStats
    from replay.store import ReplayStore
    from tasks.sampling import ProblemSampler
    from tasks.task import Task
    from trainer.asynchronous import Pipeline


class Rollouts(WeightReceiver, Protocol):
    """The engines: a pool of Ray actors, the same on a thread of its own, or one engine in this process."""

    @property
    def restarts(self) -> int:
        """Restarts of rollout actors since the run began."""

    @property
    def quarantined(self) -> int:
        """Starts that no engine could generate since the run began."""

    def generate(self, starts: Sequence[Start], sampling: Sampling) -> list[Trajectory]:
        """All samples of all starts, ordered by start and sample; those of starts that no engine can generate are missing."""

    def make_room(self) -> None:
        """End the engines that need not be there, until the next weights come."""

    def queues(self) -> "Queues":
        """How things stand."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What an iteration works with."""

    task: "Task"
    problems: "ProblemSampler"
    by_id: Mapping[str, Problem]  # the training problems
    replay: "ReplayStore"
    actors: "Rollouts"
    learner: "LearnerGroup"
    cut: Callable[[IntArray], IntArray]  # boundaries of a response
    pipeline: "Pipeline | None" = None  # in asynchronous mode


@dataclass(frozen=True, slots=True)
class Settings:
    """The numbers an iteration works with."""

    seed: int
    starts: int  # per iteration
    replayed: int  # of these, once the store holds `start_states`
    start_states: int
    samples: int  # continuations per start
    sampling: Sampling
    canonical: bool  # whether canonical solutions are a source of states
    chains: bool  # whether the ranking follows chains: successes of replayed starts are offered whole or not at all
    refresh: int  # states whose stale values are renewed per iteration
    beside: bool  # whether the critic may do so while the engines generate: they do not take turns on one GPU
    probe_sequences: int


@dataclass(frozen=True, slots=True)
class Refresh:
    """States whose values are being renewed. What they become depends on when it was asked for alone, not on who is faster."""

    states: list[ReplayedState]
    version: int  # of the critic
    values: Callable[[], list[FloatArray]]  # one of each state; waits


@dataclass(frozen=True, slots=True)
class Iteration:
    """What one iteration produced; `trainer/measure.py` makes metrics of it."""

    number: int
    starts: list[Start]
    scored: list[Scored]
    stats: "UpdateStats"
    broadcast: "BroadcastReport"
    failure: ActorError | WeightError | None = None  # the engines are lost, or have other weights than the learner


def iterate(parts: Parts, settings: Settings, number: int, clock: PhaseClock) -> Iteration:
    """One iteration, synchronous."""
    with clock.phase("replay"):
        starts = choose_starts(parts, settings, number)
        stale = begin_refresh(parts, settings)
    with clock.phase("generate"):
        trajectories = parts.actors.generate(starts, settings.sampling)
    return learn(parts, settings, number, trajectories, stale, clock)


def learn(
    parts: Parts,
    settings: Settings,
    number: int,
    trajectories: Sequence[Trajectory],
    stale: Refresh | None,
    clock: PhaseClock,
) -> Iteration:
    """What follows generation: judge, score, renew values, record, update, broadcast.

    Raises ActorError when there is nothing to learn from.
    """
    if not trajectories:
        raise ActorError(
            f"no engine could generate any start of iteration {number}: see quarantine/ in the run directory"
        )
    starts = list({item.start.id: item.start for item in trajectories}.values())
    with clock.phase("reward"):
        judged = parts.task.judge(trajectories)
    with clock.phase("score"):
        scored = parts.learner.score(judged)
        canonical = canonical_rollouts(starts, parts.by_id) if settings.canonical else []
        canonical_values = parts.learner.values(canonical) if canonical else []
        found = discoveries(judged) if settings.chains else []
        found_values = parts.learner.values(found) if found else []
    if stale is not None:
        finish_refresh(parts, stale, clock)
    with clock.phase("replay"):
        parts.problems.record(judged)
        parts.replay.record(outcomes(judged))
        version = parts.learner.version
        values = [item.values for item in scored]
        parts.replay.add(candidates(judged, values, parts.cut, version, chains=settings.chains))
        parts.replay.add(candidates(found, found_values, parts.cut, version))
        parts.replay.add(candidates(canonical, canonical_values, parts.cut, version, lambda _: Provenance.CANONICAL))
    with clock.phase("update"):
        stats = parts.learner.update(scored, parts.cut)
    probe = [item.sequence_ids for item in trajectories[: settings.probe_sequences]]
    report, failure = broadcast(parts, probe, clock)
    return Iteration(number, starts, scored, stats, report, failure)


def broadcast(
    parts: Parts, probe: Sequence[IntArray], clock: PhaseClock
) -> "tuple[BroadcastReport, ActorError | WeightError | None]":
    """Give the engines the new weights; when they are lost for good, or have others afterwards, what there is to report all the
    same, and the error: the learner is as good as before.
    """
    from learner.stats import BroadcastReport

    with clock.phase("broadcast"):
        try:
            return parts.learner.broadcast(parts.actors, probe), None
        except LearnerError:
            raise
        except (ActorError, WeightError) as error:
            return BroadcastReport(parts.learner.version, "", math.nan, 0.0), error


def choose_starts(parts: Parts, settings: Settings, number: int) -> list[Start]:
    """Fresh problems, and replayed states as soon as the store holds enough of them."""
    ready = settings.replayed and len(parts.replay) >= settings.start_states
    wanted = settings.replayed if ready else 0
    states = parts.replay.sample(wanted, derive(settings.seed, "replay", number)) if wanted else []
    problems = parts.problems.sample(settings.starts - len(states))
    starts = [
        *fresh_starts(problems, settings.samples, settings.seed, number),
        *replayed_starts(states, parts.by_id, settings.samples, settings.seed, number),
    ]
    parts.task.check_starts(starts)
    return starts


def begin_refresh(parts: Parts, settings: Settings) -> Refresh | None:
    """Have the critic value the most promising states that an earlier one valued, while the engines generate."""
    version = parts.learner.version
    states = parts.replay.top(settings.refresh, older_than=version) if settings.refresh else []
    if not states:
        return None
    queries = value_queries(states, parts.by_id)
    if settings.beside:
        return Refresh(states, version, parts.learner.begin_values(queries))
    values = parts.learner.values(queries)
    return Refresh(states, version, lambda: values)


def finish_refresh(parts: Parts, stale: Refresh, clock: PhaseClock) -> None:
    """Give the store the values that `begin_refresh` asked for; not finite ones are left as they were."""
    with clock.phase("score"):
        values = np.array([of_state[0] for of_state in stale.values()], np.float32)
    known = np.flatnonzero(np.isfinite(values))
    with clock.phase("replay"):
        parts.replay.revalue([stale.states[at] for at in known], values[known], stale.version)
