"""The objectives of one micro-batch: from outputs to a loss and its statistics. Invariant: results are weighted sums
over tokens, so adding them over micro-batches and ranks gives a mean over the rows of the optimizer step, by
`algorithm.aggregation`. What a token weighs is set by `learner.credit`."""

from dataclasses import dataclass

import torch
from torch import Tensor

from core.config import AlgorithmConfig, KlEstimator
from learner.losses import kl, ratio, value_loss
from learner.methods import find_policy_loss
from learner.packing.micro_batches import Components, TokenColumns
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


@dataclass(frozen=True, slots=True)
class LossSettings:
    """How the losses per token are computed: the same for a whole run."""

    policy_loss: str  # name or import path (`learner.methods.find_policy_loss`)
    clip_low: float
    clip_high: float
    dual_clip: float
    value_clip: float
    kl_estimator: KlEstimator
    temperature: float  # of the rollouts; log-probabilities are those of softmax(logits / temperature)


def loss_settings(algorithm: AlgorithmConfig, temperature: float) -> LossSettings:
    """Those of a configuration."""
    clips = (algorithm.clip_low, algorithm.clip_high, algorithm.dual_clip, algorithm.value_clip)
    return LossSettings(algorithm.policy_loss, *clips, algorithm.chosen_kl, temperature)


def policy_objective(
    logprobs: Tensor,
    entropy: Tensor,
    columns: TokenColumns[Tensor],
    weights: Components[Tensor],
    coefficients: Components[float],
    settings: LossSettings,
) -> tuple[Tensor, PolicySums]:
    """Loss (scalar) and statistics of the policy: of every component its coefficient x the weighted sum of its loss per
    token. These are the surrogate (rl), - entropy, the KL, and - min(pi / pi_prox, 1 + clip_high) (ce).

    The last has the gradient of a language-model loss (VAPO, 2504.05118, section 4.3) until the policy has moved by as
    much as PPO's clip allows for an advantage of 1.
    """
    sequence = torch.unique(columns.sequence, return_inverse=True)[1]
    bounds = (settings.clip_low, settings.clip_high, settings.dual_clip)
    tokens = PolicyTokens(logprobs, columns.proximal, columns.advantages, sequence, *bounds)
    surrogate, clipped = find_policy_loss(settings.policy_loss)(tokens)
    surrogate = (weights.rl * surrogate).sum()
    loss = coefficients.rl * surrogate
    if coefficients.entropy > 0:
        loss = loss - coefficients.entropy * (weights.entropy * entropy).sum()
    if coefficients.kl > 0:
        divergence = kl(logprobs, columns.reference, settings.kl_estimator)
        loss = loss + coefficients.kl * (weights.kl * divergence).sum()
    if coefficients.ce > 0:
        raised = ratio(logprobs, columns.proximal).clamp(max=1.0 + settings.clip_high)
        loss = loss - coefficients.ce * (weights.ce * raised).sum()
    with torch.no_grad():
        w = weights.entropy
        moved = (w * kl(columns.proximal, logprobs, "k3")).sum()
        numbers = torch.stack([surrogate, moved, (w * clipped).sum(), (w * entropy).sum()]).tolist()
    return loss, PolicySums(*numbers)


def value_objective(values: Tensor, columns: TokenColumns[Tensor], weights: Tensor, clip: float) -> Tensor:
    """Loss (scalar) of the critic on N tokens of these weights [N]."""
    return (weights * value_loss(values, columns.old_values, columns.returns, clip)).sum()
