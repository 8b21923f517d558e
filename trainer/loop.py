"""The algorithm: PPO whose rollouts start from prompts and from replayed prefix states (RRL, arXiv 2504.14363).

Invariant: in synchronous mode iteration i depends only on the run seed, i, and the content of a checkpoint (weights,
optimizers, problem cursor, replay store), so a resumed run repeats the uninterrupted one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from core.errors import ActorError, WeightError
from core.records import CutTrajectory, Judged, Provenance, Start
from core.seeds import derive
from trainer.metrics import PhaseClock
from trainer.records import Components, IterationResult, IterationSettings, ValueRefresh
from trainer.rollouts import with_more_rollouts
from trainer.starts import (
    NO_VALUES,
    candidates,
    canonical_rollouts,
    fresh_starts,
    imitated_rollouts,
    outcomes,
    replayed_count,
    replayed_starts,
    unsolved_share,
    value_queries,
)

if TYPE_CHECKING:
    from learner.stats import BroadcastReport


RESAMPLED = 100_000
"""Starts of one round of resampling are numbered from a multiple of this."""


def iterate(parts: Components, settings: IterationSettings, number: int, clock: PhaseClock) -> IterationResult:
    """Iteration `number`: choose starts, generate, judge, score, store states, update, broadcast.

    In asynchronous mode it submits the starts of later iterations, and its trajectories come from starts submitted
    earlier.

    Raises:
        ActorError: engines or judges failed before the update, or there is nothing to learn from.
        LearnerError: a learner rank failed.
    """
    learner, replay, pipeline = parts.learner, parts.replay, parts.pipeline
    with clock.phase("replay"):
        if pipeline is None:
            chosen = choose_starts(parts, settings, number)
        else:
            pipeline.feed(partial(choose_starts, parts, settings), number, learner.version)
        refresh = begin_refresh(parts, settings)
    with clock.phase("generate"):
        if pipeline is None:
            trajectories = parts.actors.generate(chosen, settings.sampling)
        else:
            trajectories = pipeline.take(learner.version)
    if not trajectories:
        raise ActorError(
            f"no engine could generate any start of iteration {number}: see quarantine/ in the run directory"
        )
    with clock.phase("reward"):
        judged = parts.task.judge(trajectories)
        check_verdicts(judged, number)
    judged, dropped, extra = with_more_rollouts(
        parts, settings, judged, lambda few, again: choose_starts(parts, few, number, again), clock
    )
    starts = list({item.trajectory.start.id: item.trajectory.start for item in judged}.values())
    with clock.phase("score"):
        scored = learner.score(judged)
        canonical = canonical_rollouts(starts, parts.by_id, parts.tool) if settings.canonical else []
        canonical_values = learner.values(canonical) if canonical else []
    if refresh is not None:
        finish_refresh(parts, refresh, clock)
    with clock.phase("replay"):
        parts.problems.record([*judged, *dropped])
        replay.record(outcomes([*judged, *dropped]))
        successes = replay.successes(derive(settings.seed, "imitated", number))
        imitated = imitated_rollouts(successes, parts.by_id, parts.tool)
        offer = candidates_of(parts, settings)
        replay.add(
            [
                *offer(judged, [item.values for item in scored]),
                *offer(dropped, [NO_VALUES] * len(dropped)),  # their outcomes count
                *offer(canonical, canonical_values, provenance=lambda _: Provenance.CANONICAL),
            ]
        )
    with clock.phase("update"):
        stats = learner.update(scored, parts.boundaries, unsolved_share([*judged, *dropped]), imitated)
    with clock.phase("broadcast"):
        report, failure = broadcast(parts)
    return IterationResult(number, starts, scored, stats, report, dropped, imitated, extra, failure)


def check_verdicts(judged: Sequence[Judged], number: int) -> None:
    """Raises ActorError when no response of iteration `number` has a verdict: all rewards would be those of a failed
    judge."""
    if all(item.verdict.judge_failed for item in judged):
        first = judged[0].verdict.detail
        raise ActorError(f"none of the {len(judged)} responses of iteration {number} has a verdict; the first: {first}")


def choose_starts(parts: Components, settings: IterationSettings, number: int, again: int = 0) -> list[Start]:
    """Fresh problems, and replayed states once the store has `start_states` states; `again`: round of resampling."""
    progress = (number - 1) / settings.iterations
    wanted = replayed_count(settings.replayed, settings.share, progress, parts.replay.unsolved_share)
    ready = wanted and len(parts.replay) >= settings.start_states
    seed = derive(settings.seed, "replay", number, *([again] if again else []))
    states = parts.replay.sample(wanted, seed) if ready else []
    problems = parts.problems.sample(settings.starts - (len(states) if settings.fill else wanted))
    first = again * RESAMPLED  # ids and seeds of every round are its own
    starts = [
        *fresh_starts(problems, settings.samples, settings.seed, number, first),
        *replayed_starts(states, parts.by_id, settings.samples, settings.seed, number, first),
    ]
    parts.task.check_starts(starts)
    return starts


def candidates_of(parts: Components, settings: IterationSettings) -> Callable[..., list[CutTrajectory]]:
    """`candidates` with what is the same for all trajectories of an iteration."""
    version, budget = parts.learner.version, settings.sampling.max_response_tokens
    return partial(candidates, boundaries=parts.boundaries, version=version, chains=settings.chains, budget=budget)


def begin_refresh(parts: Components, settings: IterationSettings) -> ValueRefresh | None:
    """Start to compute new values of the highest-priority states whose value is from an earlier critic. None: no such
    state."""
    version = parts.learner.version
    states = parts.replay.top(settings.refresh_states, older_than=version) if settings.refresh_states else []
    if not states:
        return None
    queries = value_queries(states, parts.by_id)
    if settings.refresh_while_generating:
        return ValueRefresh(states, version, parts.learner.begin_values(queries))
    values = parts.learner.values(queries)
    return ValueRefresh(states, version, lambda: values)


def finish_refresh(parts: Components, refresh: ValueRefresh, clock: PhaseClock) -> None:
    """Store the values from `begin_refresh`. A state whose new value is not finite keeps its old one."""
    with clock.phase("score"):
        values = np.array([of_state[0] for of_state in refresh.values()], np.float32)
    finite = np.flatnonzero(np.isfinite(values))
    with clock.phase("replay"):
        parts.replay.revalue([refresh.states[at] for at in finite], values[finite], refresh.version)


def broadcast(parts: Components) -> tuple[BroadcastReport, ActorError | WeightError | None]:
    """Send the new weights to the engines.

    A failure of the engines is returned, not raised, because the update is complete and can be saved; the report then
    has no gap. Raises LearnerError.
    """
    from learner.stats import BroadcastReport

    try:
        return parts.learner.broadcast(parts.actors), None
    except (ActorError, WeightError) as error:
        return BroadcastReport(parts.learner.version, None), error
