"""GAE and whitening. Invariant: only positions with mask 1 (generated tokens) count. Shapes: B sequences, T tokens."""

import torch
from torch import Tensor

from core.config import Normalise

_WHITEN_EPS = 1e-8


def gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float | Tensor) -> Tensor:
    """Generalised advantage estimates [B, T] (Schulman et al. 1506.02438, eq. 11-16), 0 where the mask is 0.

        delta_t = r_t + gamma V(s_{t+1}) - V(s_t),    A_t = delta_t + gamma lambda A_{t+1}

    `rewards` [B, T] are received with each token, `values` [B, T] are of the state before it, `mask` is [B, T] bool.
    `lam` is one number, or one per sequence [B]. t + 1 is the next position *with mask 1*: positions with mask 0 in
    between are skipped without decay, as if they were removed. After the last position with mask 1, value and advantage
    are 0.
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


def whiten(advantages: Tensor, mask: Tensor) -> Tensor:
    """(A - mean) / std [B, T] over the masked positions of the batch (population variance); 0 where the mask is 0."""
    chosen = advantages[mask]
    if chosen.numel() == 0:
        return torch.zeros_like(advantages)
    centred = chosen - chosen.mean()
    out = torch.zeros_like(advantages)
    out[mask] = centred * torch.rsqrt(centred.square().mean() + _WHITEN_EPS)
    return out


def normalised(advantages: Tensor, mask: Tensor, replayed: Tensor, how: Normalise) -> Tensor:
    """Advantages [B, T] whitened over the batch, over fresh and `replayed` [B] rows apart, or unchanged."""
    if how == "none":
        return torch.where(mask, advantages, 0.0)
    if how == "global":
        return whiten(advantages, mask)
    rows = replayed[:, None]
    return torch.where(rows, whiten(advantages, mask & rows), whiten(advantages, mask & ~rows))
