"""What an estimator of the policy's advantages is: its inputs, its signature, and what it needs.

`learner.targets` calls estimators on the whole global batch. Invariant: an estimator is a pure function of `Episodes`; only
positions with mask 1 count. Shapes: B sequences, T tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Episodes:
    """The inputs of an estimator, for a whole batch. An estimator must not change them."""

    rewards: Tensor  # [B, T] float64: the reward received with each token
    values: Tensor  # [B, T] float64: V(s_t), of the state before token t; 0 without a critic
    mask: Tensor  # [B, T] bool: generated tokens that take part in the loss
    groups: Tensor  # [B] int64: continuations of the same start share a number
    replayed: Tensor  # [B] bool: the start is a replayed state
    baselines: Tensor  # [B] float64: reward of the greedy continuation of the start; NaN unless `needs_greedy`
    steps: Tensor  # [B, T] int64: number of the token's step; 0 unless `needs_continuations`
    step_values: Tensor  # [B, T] float64: mean reward of continuations from where that step begins; NaN likewise
    gamma: float  # discount
    lam: Tensor  # [B] float64: GAE's lambda of each sequence

    def totals(self) -> Tensor:
        """[B] the sum of the rewards of each sequence."""
        return torch.where(self.mask, self.rewards, 0.0).sum(dim=1)

    def per_token(self, advantages: Tensor) -> Tensor:
        """[B, T] one advantage per sequence [B], the same for all its tokens; 0 where the mask is 0."""
        return torch.where(self.mask, advantages[:, None], 0.0)


Advantages = Callable[[Episodes], Tensor]
"""Advantages [B, T] of a batch, finite; positions with mask 0 are ignored. A user's own estimator has this signature, too."""


@dataclass(frozen=True, slots=True)
class Estimator:
    """An estimator and what it needs. A plain function stands for an `Estimator` of it with the defaults."""

    advantages: Advantages
    needs_values: bool = False
    """Whether it reads `Episodes.values`: then there must be a critic."""
    needs_groups: bool = False
    """Whether it compares the continuations of a start: then there must be at least two. A group of equal rewards has no
    advantage; its tokens do not count in the mean of the policy's loss."""
    needs_greedy: bool = False
    """Whether it reads `Episodes.baselines`: then every start is also continued greedily."""
    needs_continuations: bool = False
    """Whether it reads `Episodes.steps` and `step_values`: then the states of every trajectory are continued, too."""
    whitened: bool = False
    """Whether `algorithm.normalise` applies to its result."""
