"""The rewards that PPO sees: the judge's, with those of steps, of truncation and of the KL.
Invariant: the reward of a response is at its last generated token. Shapes: B sequences, T tokens, N tokens in all."""

from collections.abc import Sequence

import torch
from torch import Tensor

from core.config import AlgorithmConfig
from core.records import Rollout

PENALTY = 0.5  # of a truncated response where `algorithm.overlong` is 'penalise' or 'soft'


def shaped_rewards(
    scored: Sequence[Rollout], config: AlgorithmConfig, inside: Tensor, penalty: Tensor | None, longest: int
) -> Tensor:
    """[B, T] float64: the shaped reward at the last token, minus the KL penalty (flat [N]), plus those of steps."""
    rewards = torch.zeros(inside.shape, dtype=torch.float64)
    if penalty is not None:
        rewards[inside] = -penalty
    for row, item in enumerate(scored):
        if (steps := item.step_rewards) is not None:
            own = torch.from_numpy(steps[item.generated]).double()
            rewards[row, : len(own)] += own
    last = inside.sum(dim=1) - 1
    shaped = torch.tensor([shaped_reward(s, config, longest) for s in scored]).double()
    rewards[torch.arange(len(scored)), last] += shaped
    return rewards


def in_loss(rollout: Rollout, config: AlgorithmConfig) -> bool:
    """Whether it takes part in the loss: not a truncated one where `overlong` masks them."""
    return not (config.overlong == "mask" and rollout.finish.truncated)


def whole_reward(judged: Rollout, config: AlgorithmConfig, longest: int) -> float:
    """The sum of a continuation's rewards as PPO sees them, without KL."""
    steps = judged.step_rewards
    of_steps = 0.0 if steps is None else sum(map(float, steps))
    return shaped_reward(judged, config, longest) + of_steps


def shaped_reward(judged: Rollout, config: AlgorithmConfig, longest: int) -> float:
    """The reward at the end of a response: the judge's, and what `overlong` makes of truncation.

    soft: minus `PENALTY` times the share of the last fifth of the `longest` tokens that the response uses, or the whole
    penalty if it is truncated (DAPO, 2503.14476, equation 13; its buffer is a fifth, too).
    """
    reward, truncated = judged.verdict.reward, judged.finish.truncated
    if config.overlong == "penalise" and truncated:
        return reward - PENALTY
    if config.overlong == "soft":
        buffer = longest / 5
        over = len(judged.response_ids) - (longest - buffer)
        share = 1.0 if truncated else min(1.0, max(0.0, over / buffer))
        return reward - PENALTY * share
    return reward
