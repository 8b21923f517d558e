"""What one update reports: typed numbers for the console and the metrics files."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from core.machine import UNKNOWN, Memory
from core.records import Boundaries, Flags, FloatArray, Rollout
from learner.calibration import critic_calibration, explained_variance
from learner.packing.micro_batches import Columns
from learner.policy_losses import PolicySums
from learner.probe import Gap


@dataclass(frozen=True, slots=True)
class StepSums:
    """One optimizer step on one rank: shares of the global mean; norms and the flag are the same on every rank."""

    policy: PolicySums
    value_loss: float
    policy_norm: float | None  # gradient norm before clipping; None: the policy was not trained
    value_norm: float | None  # None: the critic was not trained
    skipped: bool  # for a NaN or Inf, by both models


@dataclass(frozen=True, slots=True)
class BatchStats:
    """Statistics of the batch before the update."""

    explained_variance: float  # 1 - Var(R - V) / Var(R) over continuation tokens; 0 if the returns do not vary
    value_auc: float  # of V at starts and boundaries against the outcomes; NaN if all are alike
    value_auc_within: float  # the same between continuations of one start, at the same depth
    value_brier: float  # of V at starts and boundaries against the outcomes; 0 is perfect
    importance_mean: float  # mean weight pi_prox / pi_behaviour, after the correction's bounds
    importance_truncated: float  # share of tokens whose weight was cut (truncate) or set to 0 (mask)
    effective_samples: float  # share of the tokens that these weights leave, (sum w)^2 / (n sum w^2); 1: all are equal
    reference_kl: float  # mean KL of pi_prox to the reference per token, by k1; 0 without a reference policy
    kl_coefficient: float  # weight of that KL in this update, in the loss or in the reward
    behaviour_gap_mean: float  # |log pi_prox - log pi_behaviour| over tokens of the current weight version
    behaviour_gap_max: float


@dataclass(frozen=True, slots=True)
class UpdateStats(BatchStats):
    """One update. Losses and KLs are means over the applied optimizer steps of their model."""

    policy_loss: float
    value_loss: float
    first_kl: float  # KL(pi_prox || pi_theta) at the first minibatch, before any step: must be ~0
    kl: float  # the same, over all minibatches (nats per token)
    clip_fraction: float
    entropy: float  # nats per token
    policy_grad_norm: float  # before clipping, mean over steps
    value_grad_norm: float
    policy_lr: float  # of the last step
    value_lr: float
    shared_share: float  # of the tokens of the update that the models need not read again
    steps: int  # optimizer steps asked for
    policy_steps: int  # of these, applied to the policy
    skipped_steps: int  # of these, skipped by both models for a NaN or Inf
    policy_trained: bool  # False during critic_warmup
    critic: bool  # whether there is one


@dataclass(frozen=True, slots=True)
class BroadcastReport:
    """One broadcast."""

    version: int
    gap: Gap | None  # between engines and learner on the probe; None: not probed
    engine: Memory = UNKNOWN  # the most that an engine has had, and a learner rank
    learner: Memory = UNKNOWN


def batch_stats(
    scored: Sequence[Rollout],
    columns: Columns,
    behaviour: FloatArray,
    importance: FloatArray,
    *,
    bounded: Flags,
    current: Flags,
    boundaries: Boundaries,
    kl_coefficient: float,
) -> BatchStats:
    """Statistics of a batch. Of each token [N]: its log-probability in the engine, its importance weight, whether that
    was `bounded`, and whether the token is of the `current` weight version."""
    gap = np.abs(columns.proximal - behaviour)[current]
    auc, auc_within, brier = critic_calibration(scored, boundaries)
    return BatchStats(
        explained_variance=explained_variance(columns.old_values, columns.returns),
        value_auc=auc,
        value_auc_within=auc_within,
        value_brier=brier,
        importance_mean=float(importance.mean()),
        importance_truncated=float(bounded.mean()),
        effective_samples=effective_share(importance),
        reference_kl=float((columns.proximal - columns.reference).mean()),  # k1: unbiased, whatever the loss uses
        kl_coefficient=kl_coefficient,
        behaviour_gap_mean=float(gap.mean()) if gap.size else 0.0,
        behaviour_gap_max=float(gap.max()) if gap.size else 0.0,
    )


def effective_share(weights: FloatArray) -> float:
    """Kish's effective sample size of importance weights [N], as a share of N: (sum w)^2 / (N sum w^2). 0 if all are 0.

    >>> effective_share(np.array([2.0, 2.0, 0.0, 0.0]))
    0.5
    """
    exact = weights.astype(np.float64)
    return float(exact.sum() ** 2 / max(len(exact) * np.square(exact).sum(), 1e-300))
