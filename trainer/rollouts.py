"""From generated to judged rollouts, and dynamic sampling.

Invariant: results depend only on the arguments and the state of the parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from core.errors import ActorError
from core.parts.sources import Progress
from core.records import Rollout, Use
from trainer.metrics import PhaseClock
from trainer.run import Run

if TYPE_CHECKING:
    from learner.credit import Algorithm


def judged(run: Run, rollouts: Sequence[Rollout], at: Progress) -> list[Rollout]:
    """The rollouts of an iteration with their verdicts. Raises ActorError when there are none, or when no response has
    a verdict: all rewards would be those of a failed judge."""
    if not rollouts:
        raise ActorError(
            f"no start of iteration {at.iteration} gave a rollout: see log.txt and quarantine/ in the run directory"
        )
    with_verdicts = run.task.judge(rollouts)
    if all(rollout.verdict.judge_failed for rollout in with_verdicts):
        raise ActorError(
            f"none of the {len(with_verdicts)} responses of iteration {at.iteration} has a verdict; the first: "
            f"{with_verdicts[0].verdict.detail}"
        )
    return with_verdicts


def resampled(run: Run, rollouts: Sequence[Rollout], at: Progress, clock: PhaseClock) -> list[Rollout]:
    """Dynamic sampling (DAPO, 2503.14476, section 3.2): replace the starts whose continuations all have the same
    reward, in at most `run.resample` rounds.

    If there are too few others then, the first of those that teach nothing fill the batch. What is left out has the
    use COUNT.
    """
    if not run.resample:
        return list(rollouts)
    starts = len({rollout.start.id for rollout in rollouts})
    kept, others = by_information(rollouts, run.algorithm)
    for number in range(1, run.resample + 1):
        lacking = starts - len({rollout.start.id for rollout in kept})
        if lacking <= 0:
            break
        more = clock.timed("replay", run.sources.propose, lacking, replace(at, round=number))
        more_rollouts = clock.timed("generate", run.engines.generate, more)
        informative, rest = by_information(clock.timed("reward", run.task.judge, more_rollouts), run.algorithm)
        kept, others = kept + informative, others + rest
    whole = kept + others
    trained = set(list(dict.fromkeys(rollout.start.id for rollout in whole))[:starts])
    return [one if one.start.id in trained else replace(one, use=Use.COUNT) for one in whole]


def by_information(rollouts: Sequence[Rollout], algorithm: Algorithm) -> tuple[list[Rollout], list[Rollout]]:
    """The rollouts of starts whose continuations differ in reward, as the learner sees it, and the others, each in
    order."""
    from learner.shaping import in_loss, whole_reward

    config = algorithm.config
    rewards: dict[str, set[float]] = {rollout.start.id: set() for rollout in rollouts}
    for rollout in rollouts:
        if in_loss(rollout, config):
            rewards[rollout.start.id].add(whole_reward(rollout, config, algorithm.longest))
    split: tuple[list[Rollout], list[Rollout]] = ([], [])
    for rollout in rollouts:
        split[len(rewards[rollout.start.id]) < 2].append(rollout)
    return split
