"""The PPO objectives of one micro-batch: from model outputs and targets to a loss and its statistics. Plain torch.

Called by `learner.distributed.actor_critic` for every micro-batch. Invariant: all results are weighted sums over tokens, so
adding them over micro-batches and ranks gives the mean over the global batch.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from learner.losses import KlEstimator, kl, value_loss
from learner.packing.batch import TokenTargets
from learner.policy_losses import PolicyLoss, PolicyTokens, ppo


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
    policy_loss: PolicyLoss = ppo
    positive: float = 0.0  # weight of the language-model loss on correct responses


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
    """Loss (scalar) and statistics of the policy on N tokens.

    surrogate x importance - c_ent entropy + c_kl KL x importance + c_pos (-log pi of correct responses). The last is VAPO's
    (2504.05118, section 4.3): a mean over the tokens of the correct responses of the step.
    """
    s, w = settings, targets.weights
    sequence = torch.unique(targets.sequence, return_inverse=True)[1]
    bounds = s.clip_low, s.clip_high, s.dual_clip
    surrogate, clipped = s.policy_loss(PolicyTokens(logprobs, targets.proximal, targets.advantages, sequence, *bounds))
    surrogate = (targets.policy_weights * targets.importance * surrogate).sum()
    loss = surrogate
    if s.entropy > 0:
        loss = loss - s.entropy * (w * entropy).sum()
    if kl_coefficient > 0:
        divergence = kl(logprobs, targets.reference, s.kl_estimator)
        loss = loss + kl_coefficient * (w * targets.importance * divergence).sum()
    if s.positive > 0:
        loss = loss - s.positive * (targets.positive * logprobs).sum()
    with torch.no_grad():
        moved = (w * kl(targets.proximal, logprobs, "k3")).sum()
        numbers = torch.stack([surrogate, moved, (w * clipped).sum(), (w * entropy).sum()]).tolist()
    return loss, PolicySums(*numbers)


def value_objective(values: Tensor, targets: TokenTargets[Tensor], clip: float) -> Tensor:
    """Loss (scalar) of the critic on N tokens."""
    return (targets.weights * value_loss(values, targets.old_values, targets.returns, clip)).sum()
