"""The rollouts of an iteration: choose starts, generate, judge; more of both where the settings ask for it.

Invariant: results depend only on the arguments and the state of the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from core.errors import ActorError
from core.records import Judged, Start, Trajectory
from core.seeds import derive
from trainer.metrics import PhaseClock
from trainer.records import Batch, Components, IterationSettings
from trainer.starts import fresh_starts, replayed_count, replayed_starts

RESAMPLED = 100_000
"""Starts of one round of resampling are numbered from a multiple of this."""


Choose = Callable[[IterationSettings, int], list[Start]]
"""The starts of a round of resampling, from settings with the numbers of starts and the number of the round (from 1).
"""


@dataclass(frozen=True, slots=True)
class Batches:
    """Makes the batch of an iteration, synchronously or from the pipeline of asynchronous mode."""

    parts: Components
    settings: IterationSettings
    clock: PhaseClock

    def choose(self, number: int) -> list[Start]:
        """The starts of iteration `number`. In asynchronous mode none: those of the iterations that may begin now are
        submitted."""
        parts, choose = self.parts, partial(choose_starts, self.parts, self.settings)
        with self.clock.phase("replay"):
            if parts.pipeline is None:
                return choose(number)
            parts.pipeline.feed(choose, number, parts.learner.version)
            return []

    def generate(self, starts: Sequence[Start], number: int) -> list[Trajectory]:
        """Rollouts from `starts`; in asynchronous mode those of the oldest complete batch. Raises ActorError if there
        are none."""
        parts = self.parts
        with self.clock.phase("generate"):
            if parts.pipeline is None:
                found = parts.actors.generate(starts, self.settings.sampling)
            else:
                found = parts.pipeline.take(parts.learner.version)
        if not found:
            raise ActorError(
                f"no start of iteration {number} gave a rollout: see log.txt and quarantine/ in the run directory"
            )
        return found

    def judge(self, rollouts: Sequence[Trajectory], number: int) -> Batch:
        """The judged batch, after resampling. Raises ActorError without a verdict."""
        parts, settings = self.parts, self.settings
        with self.clock.phase("reward"):
            judged = parts.task.judge(rollouts)
            check_verdicts(judged, number)
        dropped: list[Judged] = []
        if settings.resample:
            judged, dropped = resampled(
                parts, settings, judged, lambda fewer, again: choose_starts(parts, fewer, number, again), self.clock
            )
        return Batch(judged, dropped)


def check_verdicts(judged: Sequence[Judged], number: int) -> None:
    """Raises ActorError when no response of iteration `number` has a verdict: all rewards would be those of a failed
    judge."""
    if all(item.verdict.judge_failed for item in judged):
        first = judged[0].verdict.detail
        raise ActorError(f"none of the {len(judged)} responses of iteration {number} has a verdict; the first: {first}")


def choose_starts(parts: Components, settings: IterationSettings, number: int, again: int = 0) -> list[Start]:
    """Fresh problems, and replayed states once the store has `start_states` states; `again`: round of resampling."""
    progress = (number - 1) / settings.iterations
    wanted = replayed_count(settings.replayed, settings.schedule, progress, parts.replay.decayed_unsolved_share)
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


def by_information(judged: Sequence[Judged], settings: IterationSettings) -> tuple[list[Judged], list[Judged]]:
    """The rollouts of starts whose continuations differ in reward, as the learner sees it, and the others, each in
    order."""
    rewards: dict[str, set[float]] = {item.trajectory.start.id: set() for item in judged}
    for item in judged:
        if not (settings.mask_truncated and item.trajectory.finish.truncated):
            rewards[item.trajectory.start.id].add(settings.reward(item))
    split: tuple[list[Judged], list[Judged]] = ([], [])
    for item in judged:
        split[len(rewards[item.trajectory.start.id]) < 2].append(item)
    return split


def resampled(
    parts: Components, settings: IterationSettings, judged: Sequence[Judged], choose: Choose, clock: PhaseClock
) -> tuple[list[Judged], list[Judged]]:
    """Dynamic sampling (DAPO, 2503.14476, section 3.2): replace the starts whose continuations all have the same
    reward.

    At most `settings.resample` rounds; replayed starts are replaced by replayed ones, fresh by fresh ones. What is
    still missing then is filled with the first of those that teach nothing, of the source that lacks them, so that the
    batch keeps its size and its share of replay. Returns the batch, and the rollouts that were left out.
    """
    kept, others = by_information(judged, settings)
    replayed = len(_replayed(judged))
    for number in range(1, settings.resample + 1):
        lacking = settings.starts - len({item.trajectory.start.id for item in kept})
        if lacking <= 0:
            break
        again = min(lacking, replayed - len(_replayed(kept)))
        with clock.phase("replay"):
            starts = choose(replace(settings, starts=lacking, replayed=again, schedule="constant"), number)
        with clock.phase("generate"):
            trajectories = parts.actors.generate(starts, settings.sampling)
        with clock.phase("reward"):
            good, bad = by_information(parts.task.judge(trajectories), settings)
        kept, others = kept + good, others + bad
    size = settings.starts * settings.samples
    room = {True: replayed * settings.samples, False: size - replayed * settings.samples}
    for item in kept:
        room[item.trajectory.start.replayed] -= 1
    fill: list[Judged] = []
    rest: list[Judged] = []
    for item in others:
        source = item.trajectory.start.replayed
        (fill if room[source] > 0 else rest).append(item)
        room[source] -= 1
    whole = kept + fill + rest  # of a source that has too few, the other fills the rest
    return whole[:size], whole[size:]


def _replayed(judged: Sequence[Judged]) -> set[str]:
    return {item.trajectory.start.id for item in judged if item.trajectory.start.replayed}
