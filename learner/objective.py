"""The PPO objectives of one micro-batch: from model outputs and targets to a loss and its statistics. Plain torch.

Called by `learner.distributed.worker` for every micro-batch. Invariant: all results are weighted sums over tokens, so adding them over
micro-batches and ranks gives the mean over the global batch.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from learner.losses import KlEstimator, kl, policy_loss, ratio, value_loss


@dataclass(frozen=True, slots=True)
class PolicyTargets:
    """Tensors [N] for the policy's loss."""

    proximal: Tensor
    advantages: Tensor
    importance: Tensor
    reference: Tensor
    weights: Tensor


@dataclass(frozen=True, slots=True)
class ValueTargets:
    """Tensors [N] for the critic's loss."""

    old_values: Tensor
    returns: Tensor
    weights: Tensor


@dataclass(frozen=True, slots=True)
class PolicyCoefficients:
    """Numbers of the policy's loss (`AlgorithmConfig`)."""

    clip_low: float
    clip_high: float
    dual_clip: float
    entropy: float
    kl: float  # weight of the KL term in the loss; 0: none
    kl_estimator: KlEstimator


@dataclass(frozen=True, slots=True)
class PolicySums:
    """Weighted sums over tokens."""

    loss: float = 0.0  # the clipped surrogate alone
    kl: float = 0.0  # of pi_prox to pi_theta, k3: r - 1 - log r
    clipped: float = 0.0
    entropy: float = 0.0

    def __add__(self, other: "PolicySums") -> "PolicySums":
        return PolicySums(
            self.loss + other.loss,
            self.kl + other.kl,
            self.clipped + other.clipped,
            self.entropy + other.entropy,
        )


def policy_objective(
    logprobs: Tensor, entropy: Tensor, targets: PolicyTargets, coefficients: PolicyCoefficients
) -> tuple[Tensor, PolicySums]:
    """Loss (scalar) and statistics of the policy on N tokens: surrogate x importance + c_kl KL - c_ent entropy."""
    c, w = coefficients, targets.weights
    ratios = ratio(logprobs, targets.proximal)
    surrogate, clipped = policy_loss(ratios, targets.advantages, c.clip_low, c.clip_high, c.dual_clip)
    surrogate = (w * targets.importance * surrogate).sum()
    loss = surrogate
    if c.entropy > 0:
        loss = loss - c.entropy * (w * entropy).sum()
    if c.kl > 0:
        loss = loss + c.kl * (w * kl(logprobs, targets.reference, c.kl_estimator)).sum()
    with torch.no_grad():
        moved = (w * kl(targets.proximal, logprobs, "k3")).sum()
        numbers = torch.stack([surrogate, moved, (w * clipped).sum(), (w * entropy).sum()]).tolist()
    return loss, PolicySums(*numbers)


def value_objective(values: Tensor, targets: ValueTargets, clip: float) -> Tensor:
    """Loss (scalar) of the critic on N tokens."""
    return (targets.weights * value_loss(values, targets.old_values, targets.returns, clip)).sum()
