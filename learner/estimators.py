"""The estimators of the policy's advantages, and their whitening. A new one is a pure function of `Episodes`, an
`Estimator` of it, a line in `core/sections/registry.py` and a row in docs/learner.md. Invariant: only positions with
mask 1 (generated tokens) count. Shapes: B sequences, T tokens, G sequences in a group."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from core.config import Normalise
from core.errors import ConfigError
from core.sections.registry import find

_EPS = 1e-6
_WHITEN_EPS = 1e-8


@dataclass(frozen=True, slots=True)
class Episodes:
    """The inputs of an estimator, for a whole batch. An estimator must not change them."""

    rewards: Tensor  # [B, T] float64: the reward received with each token
    values: Tensor  # [B, T] float64: V(s_t), of the state before token t; 0 without a critic
    mask: Tensor  # [B, T] bool: generated tokens that take part in the loss
    groups: Tensor  # [B] int64: continuations of the same start share a number
    with_prefix: Tensor  # [B] bool: the start is a replayed state, or a prefix of another source
    gamma: float  # discount
    lam: float  # GAE's lambda

    def totals(self) -> Tensor:
        """[B] the sum of the rewards of each sequence."""
        return torch.where(self.mask, self.rewards, 0.0).sum(dim=1)

    def per_token(self, advantages: Tensor) -> Tensor:
        """[B, T] one advantage per sequence [B], the same for all its tokens; 0 where the mask is 0."""
        return torch.where(self.mask, advantages[:, None], 0.0)


Advantages = Callable[[Episodes], Tensor]
"""Finite advantages [B, T]; positions with mask 0 are ignored. A user's own estimator has this signature, too."""


@dataclass(frozen=True, slots=True)
class Estimator:
    """An estimator and what it needs. A user's plain function stands for an `Estimator` of it that needs values."""

    advantages: Advantages
    needs_values: bool = False  # whether it reads `Episodes.values`: then there must be a critic
    needs_groups: bool = False
    """Compares a start's two or more continuations. Of equal rewards: no advantage, no tokens in the loss's mean."""
    whitened: bool = False  # whether `algorithm.normalise` applies to its result


def find_estimator(name: str) -> Estimator:
    """The estimator of `algorithm.estimator`; a plain function counts as one that needs values. Raises ConfigError."""
    estimator = find("algorithm.estimator", name)
    if isinstance(estimator, Estimator):
        return estimator
    if not callable(estimator):
        raise ConfigError(f"algorithm.estimator {name!r}: {type(estimator).__name__} cannot be called; name a function")
    return Estimator(estimator, needs_values=True)


def gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> Tensor:
    """Generalised advantage estimates [B, T] (Schulman et al. 1506.02438, eq. 11-16), 0 where the mask is 0.

        delta_t = r_t + gamma V(s_{t+1}) - V(s_t),    A_t = delta_t + gamma lambda A_{t+1}

    `rewards` [B, T] are received with each token, `values` [B, T] are of the state before it, `mask` is [B, T] bool. t
    + 1 is the next position *with mask 1*: positions with mask 0 in between are skipped without decay, as if they were
    removed. After the last position with mask 1, value and advantage are 0.
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


def advantages_by_critic(episodes: Episodes) -> Tensor:
    """GAE [B, T] (1506.02438), its lambda apart from the critic's (VC-PPO, 2503.01491)."""
    return gae(episodes.rewards, episodes.values, episodes.mask, episodes.gamma, episodes.lam)


def returns(episodes: Episodes) -> Tensor:
    """REINFORCE++ [B, T]: the discounted return of every token (2501.03262), without a critic."""
    return gae(episodes.rewards, torch.zeros_like(episodes.rewards), episodes.mask, episodes.gamma, 1.0)


def _compared(episodes: Episodes, formula: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """[B, T] `formula(rewards [G], lengths [G])` of groups of two or more with loss (mask not all 0); else 0."""
    totals, lengths = episodes.totals(), episodes.mask.sum(dim=1)
    out = torch.zeros_like(totals)
    for group in torch.unique(episodes.groups[lengths > 0]):
        members = (episodes.groups == group) & (lengths > 0)
        if int(members.sum()) > 1:
            out[members] = formula(totals[members], lengths[members])
    return episodes.per_token(out)


def dr_grpo(episodes: Episodes) -> Tensor:
    """Dr. GRPO [B, T]: R - mean of the group (2503.20783, section 3), without a deviation, which favours questions
    nearly always or never solved. The paper's loss divides by a constant: `algorithm.aggregation: constant`."""
    return _compared(episodes, lambda rewards, _: rewards - rewards.mean())


def grpo(episodes: Episodes) -> Tensor:
    """GRPO [B, T]: (R - mean) / (deviation + 1e-6) of the group, divisor G - 1 as in TRL (2402.03300, 4.1.2)."""
    return _compared(episodes, lambda rewards, _: (rewards - rewards.mean()) / (rewards.std() + _EPS))


def rloo(episodes: Episodes) -> Tensor:
    """RLOO [B, T]: R - mean of the *other* G - 1 (2402.14740, equation 8) = G / (G - 1) (R - mean)."""
    return _compared(episodes, lambda rewards, _: (rewards - rewards.mean()) * (len(rewards) / (len(rewards) - 1)))


def opo(episodes: Episodes) -> Tensor:
    """OPO [B, T]: R - sum(length R) / sum(length) of the group (2505.23585, section 3). This baseline has the least
    gradient variance if the squared gradient norm of a response grows with its length."""
    return _compared(episodes, lambda rewards, lengths: rewards - (lengths * rewards).sum() / lengths.sum())


def whiten(advantages: Tensor, mask: Tensor) -> Tensor:
    """(A - mean) / std [B, T] over the masked positions of the batch (population variance); 0 where the mask is 0."""
    chosen = advantages[mask]
    if chosen.numel() == 0:
        return torch.zeros_like(advantages)
    centred = chosen - chosen.mean()
    out = torch.zeros_like(advantages)
    out[mask] = centred * torch.rsqrt(centred.square().mean() + _WHITEN_EPS)
    return out


def normalised(advantages: Tensor, mask: Tensor, with_prefix: Tensor, how: Normalise) -> Tensor:
    """Advantages [B, T] whitened over the batch, over rows from the root and `with_prefix` [B] apart, or unchanged."""
    if how == "none":
        return torch.where(mask, advantages, 0.0)
    if how == "global":
        return whiten(advantages, mask)
    rows = with_prefix[:, None]
    return torch.where(rows, whiten(advantages, mask & rows), whiten(advantages, mask & ~rows))


GAE = Estimator(advantages_by_critic, needs_values=True, whitened=True)
GRPO = Estimator(grpo, needs_groups=True)
DR_GRPO = Estimator(dr_grpo, needs_groups=True)
RLOO = Estimator(rloo, needs_groups=True)
OPO = Estimator(opo, needs_groups=True)
REINFORCE = Estimator(returns, whitened=True)  # REINFORCE++
REINFORCE_BASELINE = Estimator(dr_grpo, needs_groups=True, whitened=True)  # 2501.03262
