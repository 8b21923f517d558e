"""Advantages without a critic: the reward of a continuation compared with the other continuations of its start.

In `ESTIMATORS` (`learner/estimators/__init__.py`). A sequence alone in its group has no baseline and gets 0. A sequence whose
mask is all 0 (no loss) counts in no baseline. Shapes: B sequences, G of them in a group.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from learner.estimators.base import Episodes, Estimator

_EPS = 1e-6


def _compared(episodes: Episodes, formula: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """[B, T] `formula(rewards [G], lengths [G])` of every group of at least two sequences; 0 for the others."""
    totals, lengths = episodes.totals(), episodes.mask.sum(dim=1)
    out = torch.zeros_like(totals)
    for group in torch.unique(episodes.groups[lengths > 0]):
        members = (episodes.groups == group) & (lengths > 0)
        if int(members.sum()) > 1:
            out[members] = formula(totals[members], lengths[members])
    return episodes.per_token(out)


def dr_grpo(episodes: Episodes) -> Tensor:
    """Dr. GRPO [B, T]: R - mean of the group (2503.20783, section 3).

    Without GRPO's deviation, which favours questions that are nearly always or nearly never solved. The paper's loss also divides
    by a constant instead of the response's length: `algorithm.aggregation: constant`.
    """
    return _compared(episodes, lambda rewards, _: rewards - rewards.mean())


def grpo(episodes: Episodes) -> Tensor:
    """GRPO [B, T]: (R - mean) / (deviation + 1e-6) of the group (2402.03300, section 4.1.2).

    The deviation is the sample's (divisor G - 1), as in verl and TRL.
    """
    return _compared(episodes, lambda rewards, _: (rewards - rewards.mean()) / (rewards.std() + _EPS))


def rloo(episodes: Episodes) -> Tensor:
    """RLOO [B, T]: R - mean of the *other* G - 1 (2402.14740, equation 8) = G / (G - 1) (R - mean)."""
    return _compared(episodes, lambda rewards, _: (rewards - rewards.mean()) * (len(rewards) / (len(rewards) - 1)))


def opo(episodes: Episodes) -> Tensor:
    """OPO [B, T]: R - sum(length R) / sum(length) of the group (2505.23585, section 3).

    This baseline has the least gradient variance if the squared gradient norm of a response grows with its length.
    """
    return _compared(episodes, lambda rewards, lengths: rewards - (lengths * rewards).sum() / lengths.sum())


GRPO = Estimator(grpo, needs_groups=True)
DR_GRPO = Estimator(dr_grpo, needs_groups=True)
RLOO = Estimator(rloo, needs_groups=True)
OPO = Estimator(opo, needs_groups=True)
REINFORCE_BASELINE = Estimator(dr_grpo, needs_groups=True, whitened=True)
"""The baseline form of REINFORCE++ (2501.03262): R - mean of the group, then whitened over the batch."""
