"""Rollouts beyond the starts of an iteration: replacements of starts that teach nothing, and greedy baselines.

Called by `trainer/loop.py` in synchronous mode. Invariant: results depend only on the arguments and the state of the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from core.records import Judged, Start
from trainer.metrics import PhaseClock
from trainer.records import Components, IterationSettings

Choose = Callable[[IterationSettings, int], list[Start]]
"""The starts of a round of resampling, from settings with the numbers of starts and the number of the round (from 1)."""


def with_more_rollouts(
    parts: Components, settings: IterationSettings, judged: list[Judged], choose: Choose, clock: PhaseClock
) -> tuple[list[Judged], list[Judged], list[Judged]]:
    """The batch after resampling and with its baselines; the rollouts that were left out; the greedy ones."""
    dropped: list[Judged] = []
    greedy: list[Judged] = []
    if settings.resample:
        judged, dropped = resampled(parts, settings, judged, choose, clock)
    if settings.greedy:
        judged, greedy = with_baselines(parts, settings, judged, clock)
    return judged, dropped, greedy


def by_information(judged: Sequence[Judged]) -> tuple[list[Judged], list[Judged]]:
    """The rollouts of starts whose continuations differ in reward, and the others, each in order."""
    rewards: dict[str, set[float]] = {}
    for item in judged:
        rewards.setdefault(item.trajectory.start.id, set()).add(item.verdict.reward)
    split: tuple[list[Judged], list[Judged]] = ([], [])
    for item in judged:
        split[len(rewards[item.trajectory.start.id]) == 1].append(item)
    return split


def resampled(
    parts: Components, settings: IterationSettings, judged: Sequence[Judged], choose: Choose, clock: PhaseClock
) -> tuple[list[Judged], list[Judged]]:
    """Dynamic sampling (DAPO, 2503.14476, section 3.2): replace the starts whose continuations all have the same reward.

    At most `settings.resample` rounds; replayed starts are replaced by replayed ones, fresh by fresh ones. What is still missing
    then is filled with the first of those that teach nothing, so that the batch keeps its size. Returns the batch, and the rollouts
    that were left out.
    """
    kept, others = by_information(judged)
    for number in range(1, settings.resample + 1):
        missing = {item.trajectory.start.id: item.trajectory.start for item in others}
        lacking = settings.starts - len({item.trajectory.start.id for item in kept})
        if lacking <= 0:
            break
        again = sum(start.replayed for start in list(missing.values())[:lacking])
        with clock.phase("replay"):
            starts = choose(replace(settings, starts=lacking, replayed=again, share="constant"), number)
        with clock.phase("generate"):
            trajectories = parts.actors.generate(starts, settings.sampling)
        with clock.phase("reward"):
            good, bad = by_information(parts.task.judge(trajectories))
        kept, others = kept + good, others + bad
    size = settings.starts * settings.samples
    return (kept + others)[:size], (kept + others)[size:]


def with_baselines(
    parts: Components, settings: IterationSettings, judged: Sequence[Judged], clock: PhaseClock
) -> tuple[list[Judged], list[Judged]]:
    """Every rollout with the reward of the greedy continuation of its start (ReMax, 2310.10505), and these continuations.

    Rollouts of a start that no engine could continue greedily are left out.
    """
    starts = {item.trajectory.start.id: item.trajectory.start for item in judged}
    alone = [replace(start, id=f"{name}.greedy", samples=1) for name, start in starts.items()]
    with clock.phase("generate"):
        found = parts.actors.generate(alone, replace(settings.sampling, temperature=0.0, top_p=1.0))
    with clock.phase("reward"):
        greedy = parts.task.judge(found)
    rewards = {item.trajectory.start.id.removesuffix(".greedy"): item.verdict.reward for item in greedy}
    kept = [item for item in judged if item.trajectory.start.id in rewards]
    return [replace(item, baseline=rewards[item.trajectory.start.id]) for item in kept], greedy
