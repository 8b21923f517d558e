"""Advantages and returns: generalised advantage estimation, group estimators and whitening, in plain torch.

Called by `learner.targets` on the whole global batch. Invariant: only positions with mask 1 (tokens that the policy generated
in this trajectory) count; prompt, replayed prefix and tool output change nothing. Shapes: B sequences, T tokens.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Normalise = Literal["global", "per_source", "none"]
Estimator = Literal["gae", "grpo", "rloo", "reinforce++"]

_WHITEN_EPS = 1e-8
_GROUP_EPS = 1e-6


def gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float | Tensor) -> Tensor:
    """Generalised advantage estimates [B, T] (Schulman et al. 1506.02438, eq. 11-16), 0 where the mask is 0.

        delta_t = r_t + gamma V(s_{t+1}) - V(s_t),    A_t = delta_t + gamma lambda A_{t+1}

    t + 1 is the next position *with mask 1*: positions with mask 0 in between are skipped without decay, as if they were removed
    (docs/architecture.md, conventions). After the last position with mask 1, value and advantage are 0.

    Args:
        rewards: [B, T] reward received with each token.
        values: [B, T] V(s_t), the value of the state before token t.
        mask: [B, T] bool, generated tokens.
        gamma: discount.
        lam: lambda, one number or one per sequence [B].
    """
    advantages = torch.zeros_like(values)
    carry = torch.zeros_like(values[:, 0])
    following = torch.zeros_like(values[:, 0])
    for t in range(values.shape[1] - 1, -1, -1):
        here = mask[:, t]
        delta = rewards[:, t] + gamma * following - values[:, t]
        estimate = delta + gamma * lam * carry
        carry = torch.where(here, estimate, carry)
        following = torch.where(here, values[:, t], following)
        advantages[:, t] = torch.where(here, estimate, 0.0)
    return advantages


def adaptive_lambda(lengths: Tensor, alpha: float) -> Tensor:
    """Length-adaptive lambda 1 - 1 / (alpha l) of each sequence [B], at least 0 (VAPO, 2504.05118, section 4.2).

    With it the sum of the weights lambda^k does not saturate before the end of a long response.
    """
    return (1.0 - 1.0 / (alpha * lengths.clamp(min=1).to(torch.float64))).clamp(min=0.0)


@dataclass(frozen=True, slots=True)
class Episodes:
    """The inputs of the estimators of the policy's advantages."""

    rewards: Tensor  # [B, T]
    values: Tensor  # [B, T]
    mask: Tensor  # [B, T] bool
    groups: Tensor  # [B] continuations of the same start share a number
    replayed: Tensor  # [B] bool


def group_baseline(episodes: Episodes, *, leave_one_out: bool, scale: bool) -> Tensor:
    """Advantages [B, T]: the episode's total reward R compared with its group's, the same for every token.

    GRPO (2402.03300, section 4.1.2): (R - mean) / std of the group. RLOO (2402.14740, eq. 8): R - mean of the *others*. An
    episode alone in its group has no baseline and gets 0. An episode whose mask is all 0 (no loss) counts in no baseline.
    """
    totals = torch.where(episodes.mask, episodes.rewards, 0.0).sum(dim=1)
    out = torch.zeros_like(totals)
    taking_part = episodes.mask.any(dim=1)
    for group in torch.unique(episodes.groups[taking_part]):
        members = (episodes.groups == group) & taking_part
        own = totals[members]
        centred = own - own.mean()
        if leave_one_out and len(own) > 1:
            centred = centred * (len(own) / (len(own) - 1))  # R - (S - R) / (n - 1) = n / (n - 1) (R - S / n)
        if scale:
            centred = centred / (centred.square().mean().sqrt() + _GROUP_EPS)
        out[members] = centred
    return torch.where(episodes.mask, out[:, None], 0.0)


def policy_advantages(
    estimator: Estimator, episodes: Episodes, gamma: float, lam: float | Tensor, how: Normalise
) -> Tensor:
    """The policy's advantages [B, T] by one of the estimators.

    REINFORCE++ (2501.03262): the discounted return of every token, without a critic, whitened. GRPO and RLOO ignore `how`,
    because their groups normalise them.
    """
    if estimator == "grpo":
        return group_baseline(episodes, leave_one_out=False, scale=True)
    if estimator == "rloo":
        return group_baseline(episodes, leave_one_out=True, scale=False)
    if estimator == "reinforce++":
        raw = gae(episodes.rewards, torch.zeros_like(episodes.values), episodes.mask, gamma, 1.0)
    else:
        raw = gae(episodes.rewards, episodes.values, episodes.mask, gamma, lam)
    return normalised(raw, episodes.mask, episodes.replayed, how)


def whiten(advantages: Tensor, mask: Tensor) -> Tensor:
    """(A - mean) / std [B, T] over the masked positions of the whole batch (population variance); 0 where the mask is 0."""
    chosen = advantages[mask]
    if chosen.numel() == 0:
        return torch.zeros_like(advantages)
    centred = chosen - chosen.mean()
    out = torch.zeros_like(advantages)
    out[mask] = centred * torch.rsqrt(centred.square().mean() + _WHITEN_EPS)
    return out


def normalised(advantages: Tensor, mask: Tensor, replayed: Tensor, how: Normalise) -> Tensor:
    """Advantages [B, T] whitened over the batch, or over fresh and replayed rows apart (`replayed` [B] bool), or unchanged."""
    if how == "none":
        return torch.where(mask, advantages, 0.0)
    if how == "global":
        return whiten(advantages, mask)
    rows = replayed[:, None]
    return torch.where(rows, whiten(advantages, mask & rows), whiten(advantages, mask & ~rows))
