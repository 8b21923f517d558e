"""What one update reports: typed numbers for the console and the metrics files. Pure.

`learner.distributed.worker` fills a `StepSums` per rank and optimizer step, `learner.group` adds them over ranks and summarises.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from learner.objective import PolicySums
from learner.prepare import BatchStats


@dataclass(frozen=True, slots=True)
class StepSums:
    """One optimizer step on one rank. Sums are shares of the global mean; norms and flags are the same on every rank."""

    policy: PolicySums
    value_loss: float
    policy_norm: float | None  # gradient norm before clipping; None: the policy was not trained
    value_norm: float
    policy_applied: bool  # True also where the policy was not trained
    value_applied: bool

    @property
    def skipped(self) -> bool:
        """Whether either engine dropped the step."""
        return not (self.policy_applied and self.value_applied)


DROPPED = StepSums(PolicySums(), 0.0, None, 0.0, policy_applied=False, value_applied=False)
"""A step that was not tried: its minibatch has a NaN or Inf."""


@dataclass(frozen=True, slots=True)
class UpdateStats:
    """One update (all epochs and minibatches). Losses and KLs are means over the applied optimizer steps."""

    policy_loss: float
    value_loss: float
    first_kl: float  # KL(pi_prox || pi_theta) at the first minibatch, before any step: must be ~0
    policy_kl: float  # the same, over all minibatches (nats per token)
    clip_fraction: float
    entropy: float  # nats per token
    reference_kl: float  # of pi_prox, mean per token (nats); 0 without a reference policy
    kl_coefficient: float  # its weight in this update
    explained_variance: float  # of the critic on this batch, before the update
    value_auc: (
        float  # of V at the starts and boundaries of the continuations against their outcomes; NaN if all are alike
    )
    value_auc_within: float  # between states of continuations of one start at the same depth (tokens)
    value_brier: float  # of V against outcomes; 0 is perfect
    policy_grad_norm: float  # before clipping, mean over steps
    value_grad_norm: float
    policy_lr: float  # of the last step
    value_lr: float
    importance_mean: float
    importance_truncated: float
    engine_gap_mean: float  # |log pi_learner - log pi_engine| of the tokens of this weight version (nats)
    engine_gap_max: float
    masked_share: float  # trajectories without loss (overlong: mask)
    tokens: int  # continuation tokens of the batch
    padding_share: float  # of what the models read in the update
    steps: int  # optimizer steps asked for
    skipped_steps: int  # of these, dropped whole for a NaN or Inf
    policy_trained: bool  # False during critic_warmup
    seconds: float


@dataclass(frozen=True, slots=True)
class UpdateFrame:
    """What the driver knows of an update beside the ranks' sums."""

    batch: BatchStats
    policy_lr: float
    value_lr: float
    kl_coefficient: float
    tokens: int
    padding_share: float
    policy_trained: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class BroadcastReport:
    """One broadcast."""

    version: int
    digest: str
    logprob_gap: float  # largest |log pi_learner - log pi_engine| of the probe, over all engines (nats)
    seconds: float


def add_ranks(ranks: Sequence[StepSums]) -> StepSums:
    """One optimizer step, over all ranks."""
    policy = ranks[0].policy
    for rank in ranks[1:]:
        policy = policy + rank.policy
    first = ranks[0]
    return StepSums(
        policy,
        sum(rank.value_loss for rank in ranks),
        first.policy_norm,
        first.value_norm,
        first.policy_applied,
        first.value_applied,
    )


def summarise(steps: Sequence[StepSums], frame: UpdateFrame) -> UpdateStats:
    """Statistics of an update from its optimizer steps (each already added over ranks); `steps` may be empty."""
    good = [step for step in steps if not step.skipped]
    count = max(1, len(good))
    policy = PolicySums()
    for step in good:
        policy = policy + step.policy
    return UpdateStats(
        policy_loss=policy.loss / count,
        value_loss=sum(step.value_loss for step in good) / count,
        first_kl=good[0].policy.kl if good else 0.0,
        policy_kl=policy.kl / count,
        clip_fraction=policy.clipped / count,
        entropy=policy.entropy / count,
        reference_kl=frame.batch.reference_kl,
        kl_coefficient=frame.kl_coefficient,
        explained_variance=frame.batch.explained_variance,
        value_auc=frame.batch.value_auc,
        value_auc_within=frame.batch.value_auc_within,
        value_brier=frame.batch.value_brier,
        policy_grad_norm=sum(step.policy_norm or 0.0 for step in good) / count,
        value_grad_norm=sum(step.value_norm for step in good) / count,
        policy_lr=frame.policy_lr,
        value_lr=frame.value_lr,
        importance_mean=frame.batch.importance_mean,
        importance_truncated=frame.batch.importance_truncated,
        engine_gap_mean=frame.batch.engine_gap_mean,
        engine_gap_max=frame.batch.engine_gap_max,
        masked_share=frame.batch.masked_share,
        tokens=frame.tokens,
        padding_share=frame.padding_share,
        steps=len(steps),
        skipped_steps=len(steps) - len(good),
        policy_trained=frame.policy_trained,
        seconds=frame.seconds,
    )
