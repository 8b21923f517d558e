"""Loss targets over the *global* batch. Invariant: every array is over the tokens that the policy generated in this
trajectory: prompt and replayed prefix are context; an environment's answer is left out as if it were not there."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from core.config import Aggregation, AlgorithmConfig
from core.records import Boundaries, Flags, FloatArray, IntArray, Rollout
from learner.advantages import gae, normalised
from learner.calibration import every_token
from learner.estimators import Episodes, Estimator
from learner.losses import CORRECTIONS, aggregation_weights, kl
from learner.methods import find_estimator
from learner.packing.assign import Assignment
from learner.packing.batch import ArrayTargets, Row, TokenTargets, TrainBatch, micro_batch_of, row_of
from learner.packing.trees import IndexArray
from learner.shaping import shaped_rewards, whole_reward
from learner.stats import BatchStats, batch_stats

IMPORTANCE_FLOOR = 0.5  # smallest pi_prox / pi_behaviour that `algorithm.importance: mask` keeps


@dataclass(frozen=True, slots=True)
class TargetBatch:
    """A batch ready to train on. Tokens of trajectory i are [offsets[i], offsets[i + 1]) of the flat arrays."""

    rows: list[Row]
    offsets: IndexArray  # [n + 1]
    mask: Flags  # [n] whether the trajectory takes part in the loss
    counted: Flags  # [n] whether it counts in the mean of the surrogate: not if its group's rewards are all equal
    positive: FloatArray  # [n] weight in the language-model loss: of imitated ones, 1 if correct where rewards differ
    targets: ArrayTargets  # flat; its weights are set per optimizer step by `weighted`
    stats: BatchStats

    def teaches(self, rows: Sequence[int], config: AlgorithmConfig) -> bool:
        """Whether the policy learns from some trajectories: from an advantage, a correct or imitated response, or the
        entropy bonus. A KL in the loss alone makes no step: Adam would enlarge rounding errors."""
        correct = config.positive_coefficient > 0 and bool(self.positive[list(rows)].any())
        return config.entropy_coefficient > 0 or correct or bool(self.targets.advantages[self.token_index(rows)].any())

    def token_index(self, rows: Sequence[int]) -> IndexArray:
        """Flat token positions of some trajectories, in order."""
        begins = self.offsets[:-1][list(rows)]
        counts = np.diff(self.offsets)[list(rows)]
        before = np.cumsum(counts) - counts  # tokens of the trajectories before each
        return np.repeat(begins - before, counts) + np.arange(counts.sum())

    def finite(self, rows: Sequence[int]) -> bool:
        """Whether all targets are finite and no squared error of V overflows, also in rows without loss (0 x NaN)."""
        index = self.token_index(rows)
        part = self.targets.map(lambda column: column[index])
        with np.errstate(over="ignore", invalid="ignore"):
            squared = np.square(part.old_values - part.returns)
        columns = (part.proximal, part.advantages, part.importance, part.reference, squared)
        return all(bool(np.isfinite(column).all()) for column in columns)

    def weighted(self, rows: Sequence[int], how: Aggregation, longest: int = 0) -> ArrayTargets:
        """Targets weighted as means over `rows`, 0 for others. `longest`: for the aggregation 'constant'."""
        members = list(rows)
        counts = np.diff(self.offsets)[members]
        inside = torch.arange(int(counts.max(initial=1)))[None, :] < torch.from_numpy(counts)[:, None]
        index = self.token_index(rows)

        def _flat_weights(chosen: Flags, kind: Aggregation) -> FloatArray:
            flat = np.zeros(int(self.offsets[-1]), dtype=np.float32)
            weights = aggregation_weights(inside & torch.from_numpy(chosen[members])[:, None], kind, longest)
            flat[index] = weights[inside].numpy()
            return flat

        per_token = _flat_weights(self.mask | (self.positive > 0), "token-mean")
        return replace(
            self.targets,
            weights=_flat_weights(self.mask, "token-mean" if how == "constant" else how),
            policy_weights=_flat_weights(self.mask & self.counted, how),
            positive=per_token * np.repeat(self.positive, np.diff(self.offsets)),
        )


def with_imitated(batch: TargetBatch, imitated: Sequence[Rollout]) -> TargetBatch:
    """The batch and, behind it, responses that the language-model loss alone takes."""
    rows = [row_of(rollout) for rollout in imitated]
    counts = np.array([row.scored for row in rows], np.int64)
    zeros = np.zeros(int(counts.sum()), np.float32)
    targets = batch.targets.map(lambda column: np.concatenate([column, zeros]))
    numbers = np.repeat(np.arange(len(rows)) + len(batch.rows), counts).astype(np.float32)
    no, proximal = np.zeros(len(rows), np.bool_), _flat(imitated, lambda rollout: rollout.proximal).numpy()
    return replace(
        batch,
        rows=[*batch.rows, *rows],
        offsets=np.concatenate([batch.offsets, batch.offsets[-1] + np.cumsum(counts)]),
        mask=np.concatenate([batch.mask, no]),
        counted=np.concatenate([batch.counted, no]),
        positive=np.concatenate([batch.positive, np.array([item.weight for item in imitated], np.float32)]),
        targets=replace(
            targets,
            proximal=np.concatenate([batch.targets.proximal, proximal]),
            sequence=np.concatenate([batch.targets.sequence, numbers]),
        ),
    )


def train_batches(
    assignment: Assignment, batch: TargetBatch, members: Sequence[int], how: Aggregation, longest: int = 0
) -> list[list[TrainBatch]]:
    """The micro-batches [rank][...] of an optimizer step; `assignment` has positions in `members`."""
    rows = [batch.rows[i] for i in members]
    targets = batch.weighted(members, how, longest)

    def _train_batch(group: IntArray) -> TrainBatch:
        index = batch.token_index([members[i] for i in group])
        own = targets.map(lambda column: column[index] if len(group) else np.zeros(1, np.float32))
        return TrainBatch(micro_batch_of(group, rows), own)

    return [[_train_batch(group) for group in groups] for groups in assignment]


def compute_targets(
    scored: Sequence[Rollout],
    config: AlgorithmConfig,
    version: int,
    kl_coefficient: float = 0.0,
    boundaries: Boundaries = every_token,
    longest: int = 0,
) -> TargetBatch:
    """The loss targets of a batch of scored trajectories, and its statistics. `version`: the learner's, on whose tokens
    the numerical gap is measured. `kl_coefficient`: of a KL in the reward. `boundaries`: where the critic is
    calibrated. `longest`: tokens of the longest possible response, for a soft overlong penalty."""
    rows = [row_of(s) for s in scored]
    counts = np.array([row.scored for row in rows], dtype=np.int64)
    inside = torch.arange(int(counts.max()))[None, :] < torch.from_numpy(counts)[:, None]
    truncated = np.array([s.finish.truncated for s in scored])
    mask = ~truncated if config.overlong == "mask" else np.ones(len(scored), dtype=np.bool_)
    proximal, old_values = _flat(scored, lambda s: s.proximal), _flat(scored, lambda s: s.values)
    reference, behaviour = _flat(scored, lambda s: s.reference), _flat(scored, lambda s: s.logprobs)
    estimator, penalty = find_estimator(config.estimator), None
    if config.kl_placement == "reward":
        penalty = kl_coefficient * kl(proximal, reference, config.chosen_kl).double()
    values = torch.zeros(inside.shape, dtype=torch.float64)
    values[inside] = old_values.double()
    rewards = shaped_rewards(scored, config, inside, penalty, longest)
    importance, bounded = CORRECTIONS[config.importance](
        proximal - behaviour, torch.from_numpy(counts), IMPORTANCE_FLOOR, config.importance_cap
    )
    returns = gae(rewards, values, inside, config.gamma, config.value_lambda) + values
    in_loss = inside & torch.from_numpy(mask)[:, None]
    totals = torch.tensor([whole_reward(s, config, longest) for s in scored], dtype=torch.float64)
    advantages, varied = _advantages(estimator, _episodes(scored, config, rewards, values, in_loss), totals, config)
    fresh = _flat(scored, lambda s: s.versions).numpy() == version
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
        counted=varied if estimator.needs_groups else np.ones_like(varied),
        positive=(mask & varied & np.array([s.verdict.correct for s in scored])).astype(np.float32),
        targets=targets,
        stats=batch_stats(scored, targets, behaviour.numpy(), bounded.numpy(), fresh, boundaries),
    )


def _episodes(
    scored: Sequence[Rollout], config: AlgorithmConfig, rewards: Tensor, values: Tensor, mask: Tensor
) -> Episodes:
    numbers: dict[str, int] = {}
    groups = torch.tensor([numbers.setdefault(s.start.id, len(numbers)) for s in scored])
    lam = torch.full((len(scored),), config.policy_lambda, dtype=torch.float64)
    replayed = torch.tensor([s.start.replayed for s in scored])
    return Episodes(rewards, values, mask, groups, replayed, config.gamma, lam)


def _advantages(
    estimator: Estimator, episodes: Episodes, totals: Tensor, config: AlgorithmConfig
) -> tuple[Tensor, Flags]:
    """The policy's advantages [B, T], and whose task rewards `totals` [B] vary in their group or source [B]. Rows
    without loss count in no baseline. Where rows are compared, those that do not vary have no advantage."""
    mask, groups, replayed = episodes.mask, episodes.groups, episodes.replayed
    advantages = torch.where(mask, estimator.advantages(episodes).double(), 0.0)
    sources = replayed.long() if config.normalise == "separate" else torch.zeros_like(groups)
    varied = _rewards_vary(totals, mask.any(dim=1), groups if estimator.needs_groups else sources)
    if estimator.needs_groups or (estimator.whitened and config.normalise != "none"):
        mask = mask & varied[:, None]
    if estimator.whitened:
        advantages = normalised(advantages, mask, replayed, config.normalise)
    return torch.where(mask, advantages, 0.0), varied.numpy()


def _rewards_vary(totals: Tensor, in_loss: Tensor, sources: Tensor) -> Tensor:
    """[B] whether a row is of a source whose rewards [B] differ. Where they do not, advantages are the critic's errors
    and a KL from the reward alone; whitened, they would make a full step without any reward."""
    varied = torch.zeros_like(in_loss)
    for source in torch.unique(sources):
        members = (sources == source) & in_loss
        varied[members] = bool(members.any()) and bool((totals[members] != totals[members][0]).any())
    return varied


def non_finite(scored: Rollout) -> bool:
    """Whether any number of a trajectory that enters the loss is NaN or Inf."""
    numbers = [scored.values, scored.proximal, scored.logprobs, scored.reference]
    finite = all(bool(np.isfinite(array).all()) for array in numbers)
    return not (finite and math.isfinite(scored.verdict.reward))


def skipped_problems(
    scored: Sequence[Rollout], minibatches: Sequence[Sequence[int]], skipped: Sequence[bool]
) -> list[str]:
    """Problem ids of the skipped steps at the end of an update, of trajectories with a NaN or Inf if there are any."""
    first = len(skipped) - next((back for back, flag in enumerate(reversed(skipped)) if not flag), len(skipped))
    rows = {row for members in minibatches[first:] for row in members}
    suspects = {row for row in rows if non_finite(scored[row])} or rows
    return sorted({scored[row].start.problem_id for row in suspects})


def _flat(scored: Sequence[Rollout], column: Callable[[Rollout], FloatArray | IntArray]) -> Tensor:
    """[N] float32: a column [C] of every trajectory, of the tokens that the policy generated."""
    masks = [s.mask for s in scored]
    found = np.concatenate(
        [column(s) if mask is None else column(s)[mask] for s, mask in zip(scored, masks, strict=True)]
    )
    return torch.from_numpy(found.astype(np.float32))
