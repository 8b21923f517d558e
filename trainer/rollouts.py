"""Rollouts beyond the starts of an iteration: replacements of starts that teach nothing, continuations of states.

Invariant: results depend only on the arguments and the state of the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from core.records import Continued, Judged, Start, Trajectory
from core.seeds import derive
from trainer.metrics import PhaseClock
from trainer.records import Components, IterationSettings

Choose = Callable[[IterationSettings, int], list[Start]]
"""The starts of a round of resampling, from settings with the numbers of starts and the number of the round (from 1).
"""


def with_more_rollouts(
    parts: Components, settings: IterationSettings, judged: list[Judged], choose: Choose, clock: PhaseClock
) -> tuple[list[Judged], list[Judged], list[Judged]]:
    """The batch after resampling, with what its estimator needs; the rollouts that were left out; those made for the
    estimator."""
    dropped: list[Judged] = []
    if settings.resample:
        judged, dropped = resampled(parts, settings, judged, choose, clock)
    extra: list[Judged] = []
    if settings.continuations:
        judged, extra = with_continuations(parts, settings, judged, clock)
    return judged, dropped, extra


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
            starts = choose(replace(settings, starts=lacking, replayed=again, share="constant"), number)
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


def with_continuations(
    parts: Components, settings: IterationSettings, judged: Sequence[Judged], clock: PhaseClock
) -> tuple[list[Judged], list[Judged]]:
    """Every rollout with the worth of its own states, and the continuations that measured it (VinePPO, 2410.01679).

    The states are the boundaries inside the continuation; each is continued `settings.continuations` times. The worth
    of the start itself is the mean reward of its own rollouts. A state that no engine could continue is no boundary.
    """
    # of each rollout: the lengths of its continuation at which a step ends
    ends = [item.trajectory.states(parts.boundaries) - item.trajectory.start.prefix_ids.size for item in judged]
    states = [
        state_start(item.trajectory, number, int(end), settings.continuations)
        for number, (item, lengths) in enumerate(zip(judged, ends, strict=True))
        for end in lengths
    ]
    with clock.phase("generate"):
        found = parts.actors.generate(states, settings.sampling)
    with clock.phase("reward"):
        continuations = parts.task.judge(found)
    worth = mean_rewards(continuations, settings.reward)
    of_start = mean_rewards(judged, settings.reward)
    out = []
    for number, (item, lengths) in enumerate(zip(judged, ends, strict=True)):
        start = item.trajectory.start.id
        known = {int(end): worth[name] for end in lengths if (name := f"{start}.{number}.{end}") in worth}
        out.append(replace(item, continued=continued(item.trajectory.tokens.size, of_start[start], known)))
    return out, continuations


def state_start(trajectory: Trajectory, number: int, length: int, samples: int) -> Start:
    """The state after `length` tokens of a trajectory's continuation, as a start."""
    start = trajectory.start
    return replace(
        start,
        id=f"{start.id}.{number}.{length}",
        prefix_ids=trajectory.response_ids[: start.prefix_ids.size + length],
        samples=samples,
        seed=derive(start.seed, "continued", trajectory.sample, length),
    )


def mean_rewards(judged: Sequence[Judged], reward: Callable[[Judged], float]) -> dict[str, float]:
    """Mean `reward` of the rollouts of each start, by its id."""
    rewards: dict[str, list[float]] = {}
    for item in judged:
        rewards.setdefault(item.trajectory.start.id, []).append(reward(item))
    return {name: sum(found) / len(found) for name, found in rewards.items()}


def continued(size: int, of_start: float, worth: Mapping[int, float]) -> Continued:
    """Steps and values of a continuation of `size` tokens; `worth`: of the states after so many tokens.

    >>> continued(4, 0.5, {1: 0.75, 3: 0.25}).values.tolist()
    [0.5, 0.75, 0.75, 0.25]
    """
    step, values = np.zeros(size, np.int32), np.full(size, of_start, np.float32)
    for number, end in enumerate(sorted(worth), 1):
        step[end:], values[end:] = number, worth[end]
    return Continued(step, values)
