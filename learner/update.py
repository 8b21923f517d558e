"""The optimizer steps of an update: what each rank is to do, what they add up to, and what the next update must know.
`LearnerGroup.update` takes them. Pure: the ranks are elsewhere."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from core.config import ResolvedLearner
from core.errors import DivergenceError
from core.records import Use
from learner.batch import Batch
from learner.distributed.actor_critic import StepPlan
from learner.losses import adapted_coefficient
from learner.packing.assign import Assignment
from learner.packing.micro_batches import Row, shared_share
from learner.policy_losses import PolicySums
from learner.state import LearnerState, learning_rate
from learner.stats import StepSums, UpdateStats

MOST_SKIPPED = 8  # optimizer steps in a row that are skipped for a NaN or Inf before the run stops


@dataclass(frozen=True, slots=True)
class Step:
    """One optimizer step of an update."""

    members: list[int]  # rows
    plans: list[StepPlan]  # per rank
    finite: bool  # False: it is not taken, for a NaN or Inf in its columns
    sums: StepSums | None = None  # over all ranks; None: not taken

    @property
    def trains_policy(self) -> bool:
        """Whether the policy is to learn."""
        return self.plans[0].policy_lr is not None

    @property
    def skipped(self) -> bool:
        """Whether no model has changed."""
        return self.sums is None or self.sums.skipped

    def taken(self, ranks: Sequence[StepSums]) -> "Step":
        """The step with what the ranks say of it."""
        policy = sum((rank.policy for rank in ranks[1:]), ranks[0].policy)
        return replace(self, sums=replace(ranks[0], policy=policy, value_loss=sum(rank.value_loss for rank in ranks)))


def planned(
    batch: Batch,
    minibatches: Sequence[list[int]],
    before: Sequence[Step],
    state: LearnerState,
    config: ResolvedLearner,
    total: int,
    assign: Callable[[Sequence[Row]], Assignment],
) -> list[Step]:
    """The steps of one pass over the batch, after the steps `before` of this update. `total`: optimizer steps of the
    whole run. `assign`: rows to micro-batches and ranks."""
    policy_step = state.policy_steps + sum(step.trains_policy for step in before)
    value_step = state.steps + len(before)
    late = state.steps - state.policy_steps  # steps of the critic alone: not in the policy's schedule

    def _rate(peak: float, step: int, total: int) -> float:
        return learning_rate(peak, step, config.warmup_steps, total, config.schedule)

    rows, steps = batch.rows, []
    for members in minibatches:
        learns = batch.policy_learns(members)
        policy_lr = _rate(config.policy_lr, policy_step, total - late) if learns else None
        value_lr = _rate(config.value_lr, value_step, total)
        by_rank = batch.micro_batches(assign([rows[i] for i in members]), members)
        plans = [StepPlan(batches, batch.coefficients, policy_lr, value_lr) for batches in by_rank]
        steps.append(Step(members, plans, batch.finite(members)))
        policy_step, value_step = policy_step + learns, value_step + 1
    return steps


def note(
    state: LearnerState, batch: Batch, steps: Sequence[Step], config: ResolvedLearner, target: float | None
) -> None:
    """Record in `state` what the next update must know. `target`: of the KL. Raises DivergenceError after too many
    skipped steps in a row."""
    skipped, measured = [step.skipped for step in steps], batch.stats.reference_kl
    state.note_steps(
        skipped,
        batch.skipped_problems([step.members for step in steps], skipped),
        steps=config.epochs * config.minibatches,
        policy_steps=sum(step.trains_policy for step in steps),
        warmup=config.critic_warmup,
    )
    if batch.policy_learns() and target is not None and math.isfinite(measured):
        samples = len(batch.starts(Use.TRAIN))
        state.kl_coefficient = adapted_coefficient(state.kl_coefficient, measured, target, samples)
    if state.skipped_in_row >= MOST_SKIPPED:
        ids = tuple(state.skipped_problems)
        raise DivergenceError(
            f"{state.skipped_in_row} optimizer steps in a row had a NaN or Inf, "
            f"last on {len(ids)} problems ({', '.join(ids[:3])}, ...); lower "
            f"learner.policy_lr or look at their rewards, then resume from the last checkpoint",
            ids,
        )


def summary(batch: Batch, steps: Sequence[Step], critic: bool) -> UpdateStats:
    """Statistics of an update. `critic`: whether there is one."""
    good = [step.sums for step in steps if step.sums is not None and not step.skipped]
    of_policy = [sums for sums in good if sums.policy_norm is not None]
    of_critic = [sums for sums in good if sums.value_norm is not None]
    count, critic_count = max(1, len(of_policy)), max(1, len(of_critic))
    policy = sum((sums.policy for sums in of_policy), PolicySums())
    rates = [rate for step in steps if (rate := step.plans[0].policy_lr) is not None]
    finite, rows = [step for step in steps if step.finite], batch.rows
    return UpdateStats(
        **asdict(batch.stats),
        policy_loss=policy.loss / count,
        value_loss=sum(sums.value_loss for sums in of_critic) / critic_count,
        first_kl=of_policy[0].policy.kl if of_policy else 0.0,
        kl=policy.kl / count,
        clip_fraction=policy.clipped / count,
        entropy=policy.entropy / count,
        policy_grad_norm=sum(sums.policy_norm or 0.0 for sums in of_policy) / count,
        value_grad_norm=sum(sums.value_norm or 0.0 for sums in of_critic) / critic_count,
        policy_lr=rates[-1] if rates else 0.0,
        value_lr=steps[-1].plans[0].value_lr,
        shared_share=shared_share(
            [micro.inputs for step in finite for plan in step.plans for micro in plan.batches],
            [rows[i] for step in finite for i in step.members],
        ),
        steps=len(steps),
        policy_steps=len(of_policy),
        skipped_steps=len(steps) - len(good),
        policy_trained=batch.policy_learns(),
        critic=critic,
    )
