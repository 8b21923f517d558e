"""From scored trajectories to loss targets: rewards, advantages, returns, importance weights over the *global* batch.

Plain torch and numpy. Invariant: every array is over the tokens that the policy generated in this trajectory. Prompt
and replayed prefix are context. A tool's answer is left out, so everything is computed as if its gap were not there.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from core.config import AlgorithmConfig
from core.records import Boundaries, Flags, FloatArray, IntArray, Judged, Scored
from learner.advantages import adaptive_lambda, gae, normalised
from learner.calibration import critic_calibration, every_token, explained_variance
from learner.estimators import Episodes
from learner.losses import Aggregation, aggregation_weights, kl, masked_importance, of_sequences, truncated_importance
from learner.methods import find_estimator
from learner.packing.assign import Assignment
from learner.packing.batch import ArrayTargets, Row, TokenTargets, TrainBatch, micro_batch_of, row_of
from learner.packing.trees import IndexArray
from learner.stats import BatchStats


@dataclass(frozen=True, slots=True)
class TargetBatch:
    """A batch ready to train on. Tokens of trajectory i are [offsets[i], offsets[i + 1]) of the flat arrays."""

    rows: list[Row]
    offsets: IndexArray  # [n + 1]
    mask: Flags  # [n] whether the trajectory takes part in the loss
    counted: Flags  # [n] whether it counts in the mean of the surrogate: not if its group's rewards are all equal
    positive: Flags  # [n] whether the language-model loss takes the response: imitated, or correct where rewards differ
    targets: ArrayTargets  # flat; its weights are set per optimizer step by `weighted`
    stats: BatchStats

    def teaches(self, rows: Sequence[int], config: AlgorithmConfig) -> bool:
        """Whether the policy learns from some trajectories: from an advantage, a correct or imitated response, or the
        entropy bonus.

        A KL in the loss acts in every step of a batch that teaches. Alone it makes no step: Adam would enlarge rounding
        errors.
        """
        correct = config.positive_coefficient > 0 and bool(self.positive[list(rows)].any())
        return config.entropy_coefficient > 0 or correct or bool(self.targets.advantages[self.token_index(rows)].any())

    def token_index(self, rows: Sequence[int]) -> IndexArray:
        """Flat token positions of some trajectories, in order."""
        begins = self.offsets[:-1][list(rows)]
        counts = np.diff(self.offsets)[list(rows)]
        before = np.cumsum(counts) - counts  # tokens of the trajectories before each
        return np.repeat(begins - before, counts) + np.arange(counts.sum())

    def finite(self, rows: Sequence[int]) -> bool:
        """Whether all targets of some trajectories are finite and no squared error of V overflows. If not, no step is
        taken.

        Trajectories without loss count too, because weight 0 times NaN is NaN.
        """
        index = self.token_index(rows)
        part = self.targets.map(lambda column: column[index])
        with np.errstate(over="ignore", invalid="ignore"):
            squared = np.square(part.old_values - part.returns)
        columns = (part.proximal, part.advantages, part.importance, part.reference, squared)
        return all(bool(np.isfinite(column).all()) for column in columns)

    def weighted(self, rows: Sequence[int], how: Aggregation, longest: int = 0) -> ArrayTargets:
        """Flat targets whose weights give the means over `rows` (one optimizer step); other rows have weight 0.

        `longest`: tokens of the longest possible response, for the aggregation 'constant' of the surrogate.
        """
        members = list(rows)
        counts = np.diff(self.offsets)[members]
        inside = torch.arange(int(counts.max(initial=1)))[None, :] < torch.from_numpy(counts)[:, None]
        index = self.token_index(rows)

        def _flat_weights(chosen: Flags, kind: Aggregation) -> FloatArray:
            flat = np.zeros(int(self.offsets[-1]), dtype=np.float32)
            weights = aggregation_weights(inside & torch.from_numpy(chosen[members])[:, None], kind, longest)
            flat[index] = weights[inside].numpy()
            return flat

        return replace(
            self.targets,
            weights=_flat_weights(self.mask, "token-mean" if how == "constant" else how),
            policy_weights=_flat_weights(self.mask & self.counted, how),
            positive=_flat_weights(self.positive, "token-mean"),
        )


def with_imitated(batch: TargetBatch, imitated: Sequence[Judged]) -> TargetBatch:
    """The batch and, behind it, responses that only the language-model loss takes: no surrogate, no KL and no
    critic."""
    rows = [row_of(judged.trajectory) for judged in imitated]
    counts = np.array([row.scored for row in rows], np.int64)
    zeros = np.zeros(int(counts.sum()), np.float32)
    targets = batch.targets.map(lambda column: np.concatenate([column, zeros]))
    numbers = np.repeat(np.arange(len(rows)) + len(batch.rows), counts).astype(np.float32)
    no, yes = np.zeros(len(rows), np.bool_), np.ones(len(rows), np.bool_)
    return replace(
        batch,
        rows=[*batch.rows, *rows],
        offsets=np.concatenate([batch.offsets, batch.offsets[-1] + np.cumsum(counts)]),
        mask=np.concatenate([batch.mask, no]),
        counted=np.concatenate([batch.counted, no]),
        positive=np.concatenate([batch.positive, yes]),
        targets=replace(targets, sequence=np.concatenate([batch.targets.sequence, numbers])),
    )


def train_batches(
    assignment: Assignment, batch: TargetBatch, members: Sequence[int], how: Aggregation, longest: int = 0
) -> list[list[TrainBatch]]:
    """The micro-batches of one optimizer step over the trajectories `members`, per rank; `assignment` has positions in
    `members`."""
    rows = [batch.rows[i] for i in members]
    targets = batch.weighted(members, how, longest)

    def _train_batch(group: IntArray) -> TrainBatch:
        index = batch.token_index([members[i] for i in group])
        own = targets.map(lambda column: column[index] if len(group) else np.zeros(1, np.float32))
        return TrainBatch(micro_batch_of(group, rows), own)

    return [[_train_batch(group) for group in groups] for groups in assignment]


def compute_targets(
    scored: Sequence[Scored],
    config: AlgorithmConfig,
    version: int,
    kl_coefficient: float = 0.0,
    boundaries: Boundaries = every_token,
    longest: int = 0,
) -> TargetBatch:
    """The loss targets of a batch of scored trajectories, and its statistics.

    Args:
        version: the learner's weight version; the engine's numerical gap is measured on its tokens only, which are not
            stale.
        kl_coefficient: current weight of the KL to the reference; used if the KL is taken from the reward.
        boundaries: of a response; the critic's calibration is measured there.
        longest: tokens of the longest possible response; used if the penalty of overlong responses is soft.
    """
    rows = [row_of(s.trajectory) for s in scored]
    counts = np.array([row.scored for row in rows], dtype=np.int64)
    inside = torch.arange(int(counts.max()))[None, :] < torch.from_numpy(counts)[:, None]
    truncated = np.array([s.trajectory.finish.truncated for s in scored])
    mask = ~truncated if config.overlong == "mask" else np.ones(len(scored), dtype=np.bool_)
    proximal, old_values = _flat(scored, lambda s: s.proximal), _flat(scored, lambda s: s.values)
    reference = _flat(scored, lambda s: s.reference)
    penalty = None
    if config.kl_placement == "reward":
        penalty = kl_coefficient * kl(proximal, reference, config.chosen_kl).double()
    values = torch.zeros(inside.shape, dtype=torch.float64)
    values[inside] = old_values.double()
    rewards = _rewards(scored, config, inside, penalty, longest)
    behaviour = _flat(scored, lambda s: s.trajectory.logprobs)
    importance = _importance(proximal, behaviour, torch.from_numpy(counts), config)
    returns = gae(rewards, values, inside, config.gamma, config.value_lambda) + values
    in_loss = inside & torch.from_numpy(mask)[:, None]
    totals = torch.tensor([whole_reward(s.judged, config, longest) for s in scored], dtype=torch.float64)
    advantages, varied = _advantages(scored, config, rewards, totals, values, in_loss)
    unset = np.zeros(int(counts.sum()), dtype=np.float32)
    targets = TokenTargets(
        proximal=proximal.numpy(),
        advantages=advantages[inside].float().numpy(),
        importance=importance.numpy(),
        old_values=old_values.numpy(),
        returns=returns[inside].float().numpy(),
        reference=reference.numpy(),
        weights=unset,
        policy_weights=unset,
        positive=unset,
        sequence=np.repeat(np.arange(len(scored)), counts).astype(np.float32),
    )
    return TargetBatch(
        rows=rows,
        offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        mask=mask,
        counted=varied if find_estimator(config.estimator).needs_groups else np.ones_like(varied),
        positive=mask & varied & np.array([s.judged.verdict.correct for s in scored]),
        targets=targets,
        stats=_stats(scored, targets, behaviour.numpy(), config, version, boundaries),
    )


def _rewards(
    scored: Sequence[Scored], config: AlgorithmConfig, inside: Tensor, penalty: Tensor | None, longest: int
) -> Tensor:
    """[B, T] float64: the shaped reward at the last token, minus the KL penalty (flat [N]), plus the rewards of
    steps."""
    rewards = torch.zeros(inside.shape, dtype=torch.float64)
    if penalty is not None:
        rewards[inside] = -penalty
    for row, item in enumerate(scored):
        if (steps := item.judged.step_rewards) is not None:
            own = [judged_reward(float(step), config) for step in steps[item.trajectory.generated]]
            rewards[row, : len(own)] += torch.tensor(own).double()
    last = inside.sum(dim=1) - 1
    shaped = torch.tensor([shaped_reward(s.judged, s.final_value, config, longest) for s in scored]).double()
    rewards[torch.arange(len(scored)), last] += shaped
    return rewards


def _importance(proximal: Tensor, behaviour: Tensor, counts: Tensor, config: AlgorithmConfig) -> Tensor:
    if config.importance.startswith("sequence_"):
        proximal, behaviour = of_sequences(proximal - behaviour, counts), torch.zeros_like(behaviour)
    if config.importance.endswith("mask"):
        return masked_importance(proximal, behaviour, config.importance_floor, config.importance_cap)
    return truncated_importance(proximal, behaviour, config.importance_cap)


def _advantages(
    scored: Sequence[Scored], config: AlgorithmConfig, rewards: Tensor, totals: Tensor, values: Tensor, mask: Tensor
) -> tuple[Tensor, Flags]:
    """The policy's advantages [B, T], and whose task rewards differ in their group or source [B].

    Rows without loss take no part in baselines. Where rows are compared, in groups or by whitening, those whose task
    rewards `totals` [B] do not differ have no advantage, and whitening leaves them out.
    """
    numbers: dict[str, int] = {}
    groups = torch.tensor([numbers.setdefault(s.trajectory.start.id, len(numbers)) for s in scored])
    lam = torch.full((len(scored),), config.policy_lambda, dtype=torch.float64)
    if config.adaptive_lambda is not None:
        lam = adaptive_lambda(torch.tensor([s.trajectory.generated.sum() for s in scored]), config.adaptive_lambda)
    replayed = torch.tensor([s.trajectory.start.replayed for s in scored])
    steps, step_values = torch.zeros(mask.shape, dtype=torch.int64), torch.full(mask.shape, torch.nan).double()
    for row, item in enumerate(scored):
        if (continued := item.judged.continued) is not None:
            own = item.trajectory.generated
            steps[row, : own.sum()] = torch.from_numpy(continued.step[own]).long()
            step_values[row, : own.sum()] = torch.from_numpy(continued.values[own]).double()
    episodes = Episodes(rewards, values, mask, groups, replayed, steps, step_values, config.gamma, lam)
    estimator = find_estimator(config.estimator)
    advantages = torch.where(mask, estimator.advantages(episodes).double(), 0.0)
    sources = replayed.long() if config.normalise == "per_source" else torch.zeros_like(groups)
    varied = _rewards_vary(totals, mask.any(dim=1), groups if estimator.needs_groups else sources)
    if estimator.needs_groups or (estimator.whitened and config.normalise != "none"):
        mask = mask & varied[:, None]
    if estimator.whitened:
        advantages = normalised(advantages, mask, replayed, config.normalise)
    return torch.where(mask, advantages, 0.0), varied.numpy()


def _rewards_vary(totals: Tensor, in_loss: Tensor, sources: Tensor) -> Tensor:
    """[B] whether a row is of a source whose rewards [B] are not all equal.

    Where they are, the advantages are the critic's errors alone, and a KL that is taken from the reward. Whitened, they
    would make a step of full strength without any reward.
    """
    varied = torch.zeros_like(in_loss)
    for source in torch.unique(sources):
        members = (sources == source) & in_loss
        varied[members] = bool(members.any()) and bool((totals[members] != totals[members][0]).any())
    return varied


def whole_reward(judged: Judged, config: AlgorithmConfig, longest: int) -> float:
    """The sum of a continuation's rewards as PPO sees them, without KL and bootstrapping."""
    steps = judged.step_rewards
    of_steps = 0.0 if steps is None else sum(judged_reward(float(step), config) for step in steps)
    return shaped_reward(judged, None, config, longest) + of_steps


def shaped_reward(judged: Judged, final_value: float | None, config: AlgorithmConfig, longest: int) -> float:
    """The reward that PPO sees at the end of a response: the judge's, scaled and clipped, and what `overlong` makes of
    truncation.

    bootstrap: plus gamma V of the state in which the response was cut, as if it went on (Pardo et al. 1712.00378).
    soft: minus `overlong_penalty` x (DAPO, 2503.14476, equation 13) the share of the last `overlong_buffer` tokens
    before `longest` that the response uses, or the whole penalty if it is truncated.
    """
    reward, truncated = judged_reward(judged.verdict.reward, config), judged.trajectory.finish.truncated
    if config.overlong == "bootstrap" and final_value is not None:
        return reward + config.gamma * final_value
    if config.overlong == "penalise" and truncated:
        return reward - config.overlong_penalty
    if config.overlong == "soft":
        over = len(judged.trajectory.response_ids) - (longest - config.overlong_buffer)
        share = 1.0 if truncated else min(1.0, max(0.0, over / config.overlong_buffer))
        return reward - config.overlong_penalty * share
    return reward


def judged_reward(reward: float, config: AlgorithmConfig) -> float:
    """A reward of the judge, scaled by `reward_scale`, then clipped to +-`reward_clip`; NaN stays NaN."""
    scaled, bound = reward * config.reward_scale, config.reward_clip
    return scaled if bound is None or abs(scaled) <= bound or scaled != scaled else math.copysign(bound, scaled)


def non_finite(scored: Scored) -> bool:
    """Whether any number of a trajectory that enters the loss is NaN or Inf."""
    numbers = [scored.values, scored.proximal, scored.trajectory.logprobs, scored.reference]
    finite = all(bool(np.isfinite(array).all()) for array in numbers)
    final = 0.0 if scored.final_value is None else scored.final_value
    return not (finite and math.isfinite(final) and math.isfinite(scored.judged.verdict.reward))


def skipped_problems(
    scored: Sequence[Scored], minibatches: Sequence[Sequence[int]], skipped: Sequence[bool]
) -> list[str]:
    """Problem ids of the skipped steps at the end of an update: only of trajectories with a NaN or Inf, if there are
    any."""
    first = len(skipped) - next((back for back, flag in enumerate(reversed(skipped)) if not flag), len(skipped))
    rows = {row for members in minibatches[first:] for row in members}
    suspects = {row for row in rows if non_finite(scored[row])} or rows
    return sorted({scored[row].trajectory.start.problem_id for row in suspects})


def _stats(
    scored: Sequence[Scored],
    targets: ArrayTargets,
    behaviour: FloatArray,
    config: AlgorithmConfig,
    version: int,
    boundaries: Boundaries,
) -> BatchStats:
    gap = np.abs(targets.proximal - behaviour)
    gap = gap[_flat(scored, lambda s: s.trajectory.versions).numpy() == version]
    weights = targets.importance
    bounded = weights == 0.0 if config.importance.endswith("mask") else weights >= config.importance_cap
    auc, auc_within, brier = critic_calibration(scored, boundaries)
    return BatchStats(
        explained_variance=explained_variance(targets.old_values, targets.returns),
        value_auc=auc,
        value_auc_within=auc_within,
        value_brier=brier,
        importance_mean=float(weights.mean()),
        importance_truncated=float(bounded.mean()),
        effective_samples=effective_share(weights),
        reference_kl=float((targets.proximal - targets.reference).mean()),  # k1: unbiased, whatever the loss uses
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


def _flat(scored: Sequence[Scored], column: Callable[[Scored], FloatArray | IntArray]) -> Tensor:
    """[N] float32: a column [C] of every trajectory, of the tokens that the policy generated."""
    masks = [s.trajectory.mask for s in scored]
    found = np.concatenate(
        [column(s) if mask is None else column(s)[mask] for s, mask in zip(scored, masks, strict=True)]
    )
    return torch.from_numpy(found.astype(np.float32))
