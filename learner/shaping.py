"""The rewards that PPO sees: the judge's, scaled and clipped, with those of steps, of truncation and of the KL.
Invariant: the reward of a response is at its last generated token. Shapes: B sequences, T tokens, N tokens in all."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from core.config import AlgorithmConfig
from core.records import Judged, Scored


def shaped_rewards(
    scored: Sequence[Scored], config: AlgorithmConfig, inside: Tensor, penalty: Tensor | None, longest: int
) -> Tensor:
    """[B, T] float64: the shaped reward at the last token, minus the KL penalty (flat [N]), plus those of steps."""
    rewards = torch.zeros(inside.shape, dtype=torch.float64)
    if penalty is not None:
        rewards[inside] = -penalty
    for row, item in enumerate(scored):
        if (steps := item.judged.step_rewards) is not None:
            own = [judged_reward(float(step), config) for step in steps[item.trajectory.generated]]
            rewards[row, : len(own)] += torch.tensor(own).double()
    last = inside.sum(dim=1) - 1
    shaped = torch.tensor([shaped_reward(s.judged, config, longest) for s in scored]).double()
    rewards[torch.arange(len(scored)), last] += shaped
    return rewards


def whole_reward(judged: Judged, config: AlgorithmConfig, longest: int) -> float:
    """The sum of a continuation's rewards as PPO sees them, without KL."""
    steps = judged.step_rewards
    of_steps = 0.0 if steps is None else sum(judged_reward(float(step), config) for step in steps)
    return shaped_reward(judged, config, longest) + of_steps


def shaped_reward(judged: Judged, config: AlgorithmConfig, longest: int) -> float:
    """The reward at the end of a response: the judge's, scaled and clipped, and what `overlong` makes of truncation.

    soft: minus `overlong_penalty` times the share of the last `overlong_buffer` tokens before `longest` that the
    response uses, or the whole penalty if it is truncated (DAPO, 2503.14476, equation 13).
    """
    reward, truncated = judged_reward(judged.verdict.reward, config), judged.trajectory.finish.truncated
    if config.overlong == "penalise" and truncated:
        return reward - config.overlong_penalty
    if config.overlong == "soft":
        over = len(judged.trajectory.response_ids) - (longest - config.overlong_buffer)
        share = 1.0 if truncated else min(1.0, max(0.0, over / config.overlong_buffer))
        return reward - config.overlong_penalty * share
    return reward


def judged_reward(reward: float, config: AlgorithmConfig) -> float:
    """A reward of the judge, scaled by `reward_scale`, then clipped to +-`reward_clip`; NaN stays NaN."""
    scaled, bound = reward * config.reward_scale, config.reward_clip
    return scaled if bound is None or abs(scaled) <= bound or scaled != scaled else math.copysign(bound, scaled)
