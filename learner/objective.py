"""The PPO objectives of one micro-batch: from model outputs and targets to a loss and its statistics. Plain torch.

Called by `learner.distributed.actor_critic` for every micro-batch. Invariant: all results are weighted sums over tokens, so
adding them over micro-batches and ranks gives the mean over the global batch.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from learner.losses import KlEstimator, kl, policy_loss, ratio, value_loss
from learner.packing.batch import TokenTargets


@dataclass(frozen=True, slots=True)
class LossSettings:
    """Settings of both losses (from `AlgorithmConfig` and `LearnerConfig`)."""

    clip_low: float
    clip_high: float
    dual_clip: float
    entropy: float  # weight of the entropy bonus
    kl_estimator: KlEstimator
    value_clip: float
    value_coefficient: float  # weight of the value loss where policy and critic share a trunk
    temperature: float  # of the rollouts


@dataclass(frozen=True, slots=True)
class PolicySums:
    """Weighted sums over tokens."""

    loss: float = 0.0  # the clipped surrogate alone
    kl: float = 0.0  # of pi_prox to pi_theta, k3: r - 1 - log r
    clipped: float = 0.0
    entropy: float = 0.0

    def __add__(self, other: "PolicySums") -> "PolicySums":
        return PolicySums(
            self.loss + other.loss, self.kl + other.kl, self.clipped + other.clipped, self.entropy + other.entropy
        )


def policy_objective(
    logprobs: Tensor, entropy: Tensor, targets: TokenTargets[Tensor], settings: LossSettings, kl_coefficient: float
) -> tuple[Tensor, PolicySums]:
    """Loss (scalar) and statistics of the policy on N tokens: surrogate x importance + c_kl KL - c_ent entropy."""
    s, w = settings, targets.weights
    ratios = ratio(logprobs, targets.proximal)
    surrogate, clipped = policy_loss(ratios, targets.advantages, s.clip_low, s.clip_high, s.dual_clip)
    surrogate = (w * targets.importance * surrogate).sum()
    loss = surrogate
    if s.entropy > 0:
        loss = loss - s.entropy * (w * entropy).sum()
    if kl_coefficient > 0:
        divergence = kl(logprobs, targets.reference, s.kl_estimator)
        loss = loss + kl_coefficient * (w * targets.importance * divergence).sum()
    with torch.no_grad():
        moved = (w * kl(targets.proximal, logprobs, "k3")).sum()
        numbers = torch.stack([surrogate, moved, (w * clipped).sum(), (w * entropy).sum()]).tolist()
    return loss, PolicySums(*numbers)


def value_objective(values: Tensor, targets: TokenTargets[Tensor], clip: float) -> Tensor:
    """Loss (scalar) of the critic on N tokens."""
    return (targets.weights * value_loss(values, targets.old_values, targets.returns, clip)).sum()
