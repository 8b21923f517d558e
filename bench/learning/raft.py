"""RAFT (2504.11343) as an estimator: no response has an advantage, so the policy learns from the language-model loss on
correct responses alone (`algorithm.positive_coefficient`)."""

import torch
from torch import Tensor

from learner.estimators import Episodes


def nothing(episodes: Episodes) -> Tensor:
    """[B, T] no advantages."""
    return torch.zeros_like(episodes.rewards)
