"""The algorithm: PPO whose rollouts start from prompts and from replayed prefix states (RRL, arXiv 2504.14363).

Invariant: in synchronous mode iteration i depends only on the run seed, i, and the content of a checkpoint (weights,
optimizers, start sources), so a resumed run repeats the uninterrupted one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.errors import ActorError, WeightError
from core.interruption import Interruption
from core.parts.sources import Progress
from trainer.metrics import PhaseClock
from trainer.rollouts import judged, resampled
from trainer.run import Report, Run

if TYPE_CHECKING:
    from learner.stats import BroadcastReport


def iterate(run: Run, at: Progress, clock: PhaseClock, stop: Interruption) -> Report:
    """One iteration.

    Raises:
        ActorError, WeightError, StoreError: engines, judges or the replay store failed, or there is nothing to learn
            from. The update has not begun: a failure after it is in the report.
        DataError: starts of a user's source do not fit.
        KeyboardInterrupt: `stop` was asked to end the run. The update has not begun.
        DivergenceError, LearnerError: the update went wrong, or a learner rank failed.
    """
    from learner.credit import credit

    starts = clock.timed("replay", run.sources.propose, run.engines.room(at), at)  # states, and fresh problems
    with stop.interruptible():
        rollouts = clock.timed("generate", run.engines.generate, starts)
        rollouts = clock.timed("reward", judged, run, rollouts, at)
        rollouts = resampled(run, rollouts, at, clock)  # dynamic sampling, if it is on
        rollouts += clock.timed("replay", run.sources.extra, rollouts, at)  # answers to imitate, states to value
        rollouts = clock.timed("score", run.learner.score, rollouts)  # values and log-probabilities
    clock.timed("replay", run.sources.observe, rollouts, at)  # outcomes, new states, right answers
    batch = clock.timed("update", credit, rollouts, run.algorithm, run.learner.state)  # what every token weighs
    stats = clock.timed("update", run.learner.update, batch)  # sums weight x loss
    broadcasted, failure = clock.timed("broadcast", broadcast, run)
    return Report(at.iteration, rollouts, stats, broadcasted, failure)


def broadcast(run: Run) -> tuple[BroadcastReport, ActorError | WeightError | None]:
    """Send the new weights to the engines.

    A failure of the engines is returned, not raised, because the update is complete and can be saved; the report then
    has no gap. Raises LearnerError.
    """
    from learner.stats import BroadcastReport

    try:
        return run.learner.broadcast(run.pool), None
    except (ActorError, WeightError) as error:
        return BroadcastReport(run.learner.version, None), error
