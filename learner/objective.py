"""The PPO objectives of one micro-batch: outputs and targets to a loss and its statistics. Invariant: results are
weighted sums over tokens, so adding them over micro-batches and ranks gives the mean over the global batch."""

from dataclasses import dataclass

import torch
from torch import Tensor

from core.config import AlgorithmConfig
from learner.losses import kl, ratio, value_loss
from learner.methods import find_policy_loss
from learner.packing.batch import TokenTargets
from learner.policy_losses import PolicyTokens


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
    logprobs: Tensor, entropy: Tensor, targets: TokenTargets[Tensor], config: AlgorithmConfig, kl_coefficient: float
) -> tuple[Tensor, PolicySums]:
    """Loss (scalar) and statistics of the policy: surrogate x importance - c_ent entropy + c_kl KL x importance - c_pos
    min(pi / pi_prox, 1 + clip_high) over the responses of `TargetBatch.positive`.

    The last term has the gradient of a language-model loss on them (VAPO, 2504.05118, section 4.3) until the policy has
    moved by as much as PPO's clip allows for an advantage of 1.
    """
    w, bounds = targets.weights, (config.clip_low, config.clip_high, config.dual_clip)
    sequence = torch.unique(targets.sequence, return_inverse=True)[1]
    tokens = PolicyTokens(logprobs, targets.proximal, targets.advantages, sequence, *bounds)
    surrogate, clipped = find_policy_loss(config.policy_loss)(tokens)
    surrogate = (targets.policy_weights * targets.importance * surrogate).sum()
    loss = surrogate
    if config.entropy_coefficient > 0:
        loss = loss - config.entropy_coefficient * (w * entropy).sum()
    if kl_coefficient > 0:
        divergence = kl(logprobs, targets.reference, config.chosen_kl)
        loss = loss + kl_coefficient * (w * targets.importance * divergence).sum()
    if config.positive_coefficient > 0:
        raised = ratio(logprobs, targets.proximal).clamp(max=1.0 + config.clip_high)
        loss = loss - config.positive_coefficient * (targets.positive * raised).sum()
    with torch.no_grad():
        moved = (w * kl(targets.proximal, logprobs, "k3")).sum()
        numbers = torch.stack([surrogate, moved, (w * clipped).sum(), (w * entropy).sum()]).tolist()
    return loss, PolicySums(*numbers)


def value_objective(values: Tensor, targets: TokenTargets[Tensor], clip: float) -> Tensor:
    """Loss (scalar) of the critic on N tokens."""
    return (targets.weights * value_loss(values, targets.old_values, targets.returns, clip)).sum()
