"""The algorithm: PPO whose rollouts start from prompts and from replayed prefix states (RRL, arXiv 2504.14363).

Invariant: in synchronous mode iteration i depends only on the run seed, i, and the content of a checkpoint (weights,
optimizers, problem cursor, replay store), so a resumed run repeats the uninterrupted one.

Where the pieces are: starts, rollouts and verdicts in `trainer/batches.py`, states and own successes in
`trainer/memory.py`, `replay/rankings` (the draw) and `replay/imitation.py`; advantages in `learner/estimators.py`,
losses in `learner/policy_losses.py` and `learner/objective.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.errors import ActorError, WeightError
from core.interruption import Interruption
from trainer.batches import Batches
from trainer.memory import Memory
from trainer.metrics import PhaseClock
from trainer.records import Components, IterationResult, IterationSettings

if TYPE_CHECKING:
    from learner.stats import BroadcastReport


def iterate(
    parts: Components, settings: IterationSettings, number: int, clock: PhaseClock, stop: Interruption
) -> IterationResult:
    """Iteration `number`. In asynchronous mode the starts that it chooses belong to later iterations, and the rollouts
    that it trains on were begun earlier.

    Raises:
        ActorError, WeightError: engines or judges failed, or there is nothing to learn from. The update has not begun:
            a failure after it is in the result.
        KeyboardInterrupt: `stop` was asked to end the run. The update has not begun.
        LearnerError: a learner rank failed.
    """
    batches, memory, learner = Batches(parts, settings, clock), Memory(parts, settings, clock), parts.learner
    starts = batches.choose(number)  # fresh problems, and states that are worth replaying
    memory.begin_refresh()  # the critic values old states anew while the engines generate
    with stop.interruptible():
        rollouts = batches.generate(starts, number)
        batch = batches.judge(rollouts, number)
        with clock.phase("score"):
            scored = learner.score(batch.judged)
    imitated = memory.remember(batch, scored, number)  # evidence and states go in, earlier own successes come out
    with clock.phase("update"):
        stats = learner.update(scored, parts.boundaries, batch.unsolved_share, imitated)
    with clock.phase("broadcast"):
        report, failure = broadcast(parts)
    return IterationResult(number, batch, scored, stats, report, imitated, failure)


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
