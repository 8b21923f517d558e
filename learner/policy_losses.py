"""The loss of the policy: `policy_objective` of a micro-batch, and the policy losses of its tokens. A user's own is a
`PolicyLoss`. Invariants: a policy loss does not reduce over tokens, so that a batch may be split between any two
sequences, never inside. The objective's results are weighted sums over tokens, so adding them over micro-batches and
ranks gives a mean over the rows of the optimizer step; what a token weighs is set by `learner.credit`. Shapes: N
tokens, sequence after sequence."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from core.config import AlgorithmConfig
from core.errors import ConfigError
from core.sections.registry import find
from learner.losses import LOG_RATIO_BOUND, kl, ratio
from learner.packing.micro_batches import Components, TokenColumns


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
class PolicyTokens:
    """The inputs of a policy loss: the generated tokens of a micro-batch."""

    logprobs: Tensor  # [N] log pi_theta, with gradient
    proximal: Tensor  # [N] log pi_prox, the policy before the update
    advantages: Tensor  # [N]
    sequence: Tensor  # [N] int64: number of the token's sequence in the micro-batch, from 0
    clip_low: float  # algorithm.clip_low
    clip_high: float
    dual_clip: float

    def sequence_mean(self, per_token: Tensor) -> Tensor:
        """[N] the mean of `per_token` [N] over each token's sequence."""
        count = int(self.sequence.max()) + 1
        sums = per_token.new_zeros(count).index_add(0, self.sequence, per_token)
        return (sums / torch.bincount(self.sequence, minlength=count))[self.sequence]

    def bounded(self, ratios: Tensor) -> Tensor:
        """`ratios` [N] clipped to [1 - clip_low, 1 + clip_high]."""
        return torch.clamp(ratios, 1.0 - self.clip_low, 1.0 + self.clip_high)


PolicyLoss = Callable[[PolicyTokens], tuple[Tensor, Tensor]]
"""The loss [N] of each token, and whether clipping changed it [N] bool."""


@cache
def find_policy_loss(name: str) -> PolicyLoss:
    """The loss of `algorithm.policy_loss`. Raises ConfigError."""
    loss: PolicyLoss = find("algorithm.policy_loss", name)
    if not callable(loss):
        raise ConfigError(f"algorithm.policy_loss {name!r}: {type(loss).__name__} cannot be called; name a function")
    return loss


def policy_objective(
    logprobs: Tensor,
    entropy: Tensor,
    columns: TokenColumns[Tensor],
    weights: Components[Tensor],
    coefficients: Components[float],
    algorithm: AlgorithmConfig,
) -> tuple[Tensor, PolicySums]:
    """Loss (scalar) and statistics of the policy: of every component its coefficient x the weighted sum of its loss per
    token. These are the surrogate (rl), - entropy, the KL, and - min(pi / pi_prox, 1 + clip_high) (ce).

    The last has the gradient of a language-model loss (VAPO, 2504.05118, section 4.3) until the policy has moved by as
    much as PPO's clip allows for an advantage of 1.
    """
    sequence = torch.unique(columns.sequence, return_inverse=True)[1]
    bounds = (algorithm.clip_low, algorithm.clip_high, algorithm.dual_clip)
    tokens = PolicyTokens(logprobs, columns.proximal, columns.advantages, sequence, *bounds)
    surrogate, clipped = find_policy_loss(algorithm.policy_loss)(tokens)
    surrogate = (weights.rl * surrogate).sum()
    loss = coefficients.rl * surrogate
    if coefficients.entropy > 0:
        loss = loss - coefficients.entropy * (weights.entropy * entropy).sum()
    if coefficients.kl > 0:
        divergence = kl(logprobs, columns.reference, algorithm.chosen_kl)
        loss = loss + coefficients.kl * (weights.kl * divergence).sum()
    if coefficients.ce > 0:
        raised = ratio(logprobs - columns.proximal).clamp(max=1.0 + algorithm.clip_high)
        loss = loss - coefficients.ce * (weights.ce * raised).sum()
    with torch.no_grad():
        w = weights.entropy
        moved = (w * kl(columns.proximal, logprobs, "k3")).sum()
        numbers = torch.stack([surrogate, moved, (w * clipped).sum(), (w * entropy).sum()]).tolist()
    return loss, PolicySums(*numbers)


def ppo(tokens: PolicyTokens) -> tuple[Tensor, Tensor]:
    """PPO: max(-A r, -A clip(r, 1 - low, 1 + high)) (1707.06347 eq. 7; separate bounds: DAPO, 2503.14476 eq. 10), and
    for A < 0 at most -A c (dual clip, 1912.09729 eq. 5)."""
    ratios = ratio(tokens.logprobs - tokens.proximal)
    plain, clipped = -tokens.advantages * ratios, -tokens.advantages * tokens.bounded(ratios)
    loss = torch.maximum(plain, clipped)
    bounded = torch.minimum(loss, -tokens.advantages * tokens.dual_clip)
    loss = torch.where(tokens.advantages < 0, bounded, loss)
    return loss, loss != plain


def gspo(tokens: PolicyTokens) -> tuple[Tensor, Tensor]:
    """GSPO (2507.18071): PPO's clip on the sequence's ratio s = (pi_theta(y) / pi_prox(y))^(1 / length), in its token
    form (equations 13 and 14): the value is s for all tokens, the gradient of token t is s A_t grad log pi(t)."""
    moved = tokens.logprobs - tokens.proximal
    own = tokens.logprobs - tokens.logprobs.detach()  # 0, with the token's gradient
    s = torch.exp(torch.clamp(own + tokens.sequence_mean(moved).detach(), -LOG_RATIO_BOUND, LOG_RATIO_BOUND))
    plain, clipped = -tokens.advantages * s, -tokens.advantages * tokens.bounded(s)
    return torch.maximum(plain, clipped), clipped > plain


def cispo(tokens: PolicyTokens) -> tuple[Tensor, Tensor]:
    """CISPO (MiniMax-M1, 2506.13585, equations 4 and 5): -sg(clip(r, 1 - low, 1 + high)) A log pi_theta. The clip
    bounds the weight, not the gradient, so every token teaches. The paper uses no lower bound (`clip_low` near 1)."""
    ratios = ratio(tokens.logprobs - tokens.proximal).detach()
    weights = tokens.bounded(ratios)
    return -weights * tokens.advantages * tokens.logprobs, weights != ratios


def gmpo(tokens: PolicyTokens) -> tuple[Tensor, Tensor]:
    """GMPO (2507.20673): -A times the geometric mean of the sequence's ratios, each clipped in logarithms on the side
    that would profit; A is the sequence's mean advantage. The paper clips to (e^-0.4, e^0.4), wider than PPO."""
    logs, sign = tokens.logprobs - tokens.proximal, torch.sign(tokens.advantages)
    near = torch.clamp(logs, math.log(1.0 - tokens.clip_low), math.log(1.0 + tokens.clip_high))
    kept = sign * torch.minimum(sign * logs, sign * near)
    kept = torch.clamp(kept, -LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    loss = -tokens.sequence_mean(tokens.advantages) * torch.exp(tokens.sequence_mean(kept))
    return loss, (kept != logs) & (sign != 0)
