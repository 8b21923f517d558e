"""Losses of critic and KL per token, and the weights that turn them into a mean over the rows of one optimizer step, on
all ranks, by `algorithm.aggregation`. Invariant: no function reduces over tokens; a loss is `(weights *
per_token).sum()` however the batch is split."""

import math
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from core.config import Aggregation, KlEstimator
from core.records import Flags

Doubles = npt.NDArray[np.float64]

K3_RATIO = 10.0
"""Where the reference gives a token more than 10 times the policy's probability, k3 goes on as its tangent there."""
LOG_RATIO_BOUND = 20.0
"""Log-ratios are clamped to +-20 before exp: e^20 = 4.9e8 is far beyond every clip and cannot overflow."""
KL_HORIZON = 10_000  # trajectories over which the KL's coefficient changes by at most 20 %
LEAST_KL = 0.1
"""Share of the KL coefficient that stays: at 0 mastered tasks were lost again (docs/learner.md, Rare failures)."""


def ratio(log_ratios: Tensor) -> Tensor:
    """pi_new / pi_old [N] from log pi_new - log pi_old, clamped at +-20."""
    return torch.exp(torch.clamp(log_ratios, -LOG_RATIO_BOUND, LOG_RATIO_BOUND))


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, clip: float) -> Tensor:
    """Clipped squared error with factor 1/2 [N]: 1/2 max((V - R)^2, (V_old + clip(V - V_old, +-c) - R)^2). As in the
    PPO reference implementation (openai/baselines, ppo2); values may move by `clip` from the old ones."""
    near = old_values + torch.clamp(values - old_values, -clip, clip)
    return 0.5 * torch.maximum((values - returns).square(), (near - returns).square())


def kl(logprobs: Tensor, reference: Tensor, estimator: KlEstimator) -> Tensor:
    """Estimator of KL(pi || pi_ref) per token [N] (Schulman, "Approximating KL divergence", 2020).

    With d = log pi - log pi_ref: k1 = d, k2 = d^2 / 2, k3 = exp(-d) + d - 1. In the reward k1 gives the gradient of the
    reverse KL. As a loss term k2 does; k1 has no gradient on average, and k3 has that of the forward KL. Below d = -log
    10 k3 goes on as a straight line of slope -9, so one token cannot dominate the step, and exp cannot overflow.
    """
    d = logprobs - reference
    if estimator == "k1":
        return d
    if estimator == "k2":
        return 0.5 * d.square()
    near = torch.clamp(d, min=-math.log(K3_RATIO))
    return torch.exp(-near) + near - 1.0 + (K3_RATIO - 1.0) * (near - d)


def of_sequences(log_ratios: Tensor, counts: Tensor) -> Tensor:
    """[N] the sum of `log_ratios` [N] over each token's sequence of `counts[i]` tokens: whole sequences' weights are
    unbiased and vary more (TRL: `vllm_importance_sampling_mode`, `sequence_truncate` and `sequence_mask`)."""
    sums = torch.segment_reduce(log_ratios, "sum", lengths=counts)
    return torch.repeat_interleave(sums, counts)


Correction = Callable[[Tensor, Tensor, float, float], tuple[Tensor, Tensor]]
"""(log pi_prox - log pi_behaviour [N], tokens of each sequence, floor, cap) -> weights [N], and which are bounded."""


def _truncate(log_ratios: Tensor, counts: Tensor, floor: float, cap: float) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    """min(pi_prox / pi_behaviour, cap) (IMPALA, 1802.01561 section 4.1, per token)."""
    weights = torch.clamp(ratio(log_ratios), max=cap)
    return weights, weights >= cap


def _mask(log_ratios: Tensor, counts: Tensor, floor: float, cap: float) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    """pi_prox / pi_behaviour where it is in [floor, cap], else 0. IcePop (Ling team, "Small Leak Can Sink a Great
    Ship", 2025): tokens on which engine and learner disagree too much teach nothing, in either direction."""
    weights = ratio(log_ratios)
    weights = torch.where((weights >= floor) & (weights <= cap), weights, 0.0)
    return weights, weights == 0.0


def _whole(of_tokens: Correction) -> Correction:
    return lambda log_ratios, counts, *bounds: of_tokens(of_sequences(log_ratios, counts), counts, *bounds)


CORRECTIONS: Mapping[str, Correction] = {
    "truncate": _truncate,
    "mask": _mask,
    "sequence_truncate": _whole(_truncate),
    "sequence_mask": _whole(_mask),
}
"""By `algorithm.importance`."""


def adapted_coefficient(coefficient: float, measured: float, target: float, samples: int) -> float:
    """The KL coefficient after an update of `samples` trajectories (Ziegler et al. 1909.08593, section 2.2):
    c (1 + clip(KL / target - 1, +-0.2) samples / horizon), the horizon `KL_HORIZON`, at least `samples`."""
    error = min(0.2, max(-0.2, measured / target - 1.0))
    return coefficient * (1.0 + error * samples / max(KL_HORIZON, samples))


def faded_coefficient(coefficient: float, unsolved: float) -> float:
    """The KL coefficient where a share `unsolved` of the fresh problems has no success, at least `LEAST_KL` of it."""
    return coefficient * max(unsolved, LEAST_KL)


def aggregation(lengths: Doubles, counted: Flags, how: Aggregation, longest: int = 0) -> tuple[Doubles, Doubles]:
    """What a token of each row [n] counts, and what the row [n] adds to the divisor of its optimizer step: so that the
    weighted sum over a step is a mean over its `counted` rows. `lengths`: tokens of each row, at least 1.

    token-mean:     1 / (tokens of the step)
    sequence-mean:  1 / (tokens of the row) / (rows of the step)
    constant:       1 / (rows of the step x `longest`), so that its length does not change a response's weight per token
                    (Dr. GRPO, 2503.20783, section 3)
    """
    share = counted.astype(np.float64)
    if how == "token-mean":
        return share, share * lengths
    if how == "constant":
        return share, share * longest
    return share / lengths, share
