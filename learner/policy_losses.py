"""The policy losses. Invariants: a loss does not reduce over tokens, so that a batch may be split between any two
sequences, never inside. A user's own is a `PolicyLoss`. Shapes: N tokens, sequence after sequence."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from learner.losses import LOG_RATIO_BOUND, ratio


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


def ppo(tokens: PolicyTokens) -> tuple[Tensor, Tensor]:
    """PPO: max(-A r, -A clip(r, 1 - low, 1 + high)) (1707.06347 eq. 7; separate bounds: DAPO, 2503.14476 eq. 10), and
    for A < 0 at most -A c (dual clip, 1912.09729 eq. 5)."""
    ratios = ratio(tokens.logprobs, tokens.proximal)
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
    ratios = ratio(tokens.logprobs, tokens.proximal).detach()
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
