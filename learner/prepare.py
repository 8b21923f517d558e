"""From scored trajectories to loss targets: rewards, advantages, returns, importance weights over the *global* batch.

Called by `learner.group` on the driver before the batch is cut, so that nothing here can depend on the cut. Plain torch and
numpy. Invariant: prompt and replayed prefix are context; every array is over continuation tokens only.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from core.config import AlgorithmConfig
from core.records import FloatArray, IntArray, Scored
from learner.advantages import ESTIMATORS, Episodes, adaptive_lambda, gae
from learner.calibration import Boundaries, auc, beside, brier, every_token, explained_variance, inner_places, varies
from learner.losses import Aggregation, aggregation_weights, kl, masked_importance, truncated_importance
from learner.packing.batch import IndexArray, Row, TokenTargets

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class BatchStats:
    """What can be said of the batch before the update."""

    explained_variance: float  # 1 - Var(R - V) / Var(R) over continuation tokens; 0 if the returns do not vary
    returns_vary: bool  # else the explained variance says nothing
    value_auc: (
        float  # of V at the starts and boundaries of the continuations against their outcomes; NaN if all are alike
    )
    value_auc_within: float  # between states of continuations of one start at the same depth: beyond problem difficulty
    value_brier: float  # at the places of `value_auc`
    importance_mean: float  # mean weight pi_prox / pi_behaviour, after the correction's bounds
    importance_truncated: float  # share of tokens whose weight was cut (truncate) or set to 0 (mask)
    reference_kl: float  # mean KL of pi_prox to the reference per token; 0 without a reference policy
    engine_gap_mean: float  # |log pi_prox - log pi_behaviour| over tokens of the current weight version
    engine_gap_max: float
    masked_share: float  # share of trajectories without loss (overlong: mask)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A batch ready to be cut. Tokens of trajectory i are [offsets[i], offsets[i + 1]) of the flat arrays."""

    rows: list[Row]
    offsets: IndexArray  # [n + 1]
    mask: BoolArray  # [n] whether the trajectory takes part in the loss
    targets: TokenTargets  # flat; weights are set per minibatch by `take`
    stats: BatchStats

    def index(self, rows: Sequence[int]) -> IndexArray:
        """Flat token positions of some trajectories, in order."""
        spans = [np.arange(self.offsets[row], self.offsets[row + 1]) for row in rows]
        return np.concatenate(spans) if spans else np.zeros(0, dtype=np.int64)

    def finite(self, rows: Sequence[int]) -> bool:
        """Whether no target of some trajectories is NaN or Inf and no squared error of V overflows: else no step is taken.

        Trajectories out of the loss count too: weight 0 times NaN is NaN.
        """
        part = self.targets.take(self.index(rows))
        with np.errstate(over="ignore", invalid="ignore"):
            squared = np.square(part.old_values - part.returns)
        columns = (part.proximal, part.advantages, part.importance, part.reference, squared)
        return all(bool(np.isfinite(column).all()) for column in columns)

    def weighted(self, rows: Sequence[int], how: Aggregation) -> TokenTargets:
        """Flat targets whose weights make a mean over `rows` (one optimizer step); tokens of other rows weigh 0."""
        counts = np.diff(self.offsets)[list(rows)]
        inside = torch.arange(int(counts.max(initial=1)))[None, :] < torch.from_numpy(counts)[:, None]
        taking_part = torch.from_numpy(self.mask[list(rows)])[:, None]
        weights = aggregation_weights(inside & taking_part, how)
        flat = np.zeros(int(self.offsets[-1]), dtype=np.float32)
        flat[self.index(rows)] = weights[inside].numpy()
        old = self.targets
        return TokenTargets(
            old.proximal, old.advantages, old.importance, old.old_values, old.returns, old.reference, weights=flat
        )


def prepare(
    scored: Sequence[Scored],
    config: AlgorithmConfig,
    version: int,
    kl_coefficient: float = 0.0,
    cut: Boundaries = every_token,
) -> Prepared:
    """Compute the targets of a batch of scored trajectories.

    Args:
        scored: the batch.
        config: the algorithm.
        version: the learner's weight version, to tell the engine's numerical gap from staleness.
        kl_coefficient: what the KL to the reference costs now (it may be adapted); used if it is taken from the reward.
        cut: the boundaries of a response, where the critic's calibration is measured.
    """
    counts = np.array([len(s.trajectory.tokens) for s in scored], dtype=np.int64)
    inside = torch.arange(int(counts.max()))[None, :] < torch.from_numpy(counts)[:, None]
    truncated = np.array([s.trajectory.finish.truncated for s in scored])
    mask = ~truncated if config.overlong == "mask" else np.ones(len(scored), dtype=np.bool_)
    proximal = _flat([s.proximal for s in scored])
    reference = _flat([s.proximal if s.reference is None else s.reference for s in scored])
    divergence = kl(proximal, reference, config.kl_estimator)
    penalty = kl_coefficient * divergence.double() if config.kl_placement == "reward" else None
    values = _padded(_flat([s.values for s in scored]).double(), inside)
    rewards = _rewards(scored, config, inside, penalty)
    importance = _importance(proximal, _flat([s.trajectory.logprobs for s in scored]), config)
    returns = gae(rewards, values, inside, config.gamma, config.value_lambda) + values
    advantages = _advantages(scored, config, rewards, values, inside & torch.from_numpy(mask)[:, None])
    targets = TokenTargets(
        proximal=proximal.numpy(),
        advantages=advantages[inside].float().numpy(),
        importance=importance.numpy(),
        old_values=_flat([s.values for s in scored]).numpy(),
        returns=returns[inside].float().numpy(),
        reference=reference.numpy(),
        weights=np.zeros(int(counts.sum()), dtype=np.float32),
    )
    rows = [Row(s.trajectory.sequence_ids, len(s.trajectory.start.context_ids)) for s in scored]
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    stats = _stats(scored, targets, mask, config, version, float(divergence.mean()), _calibration(scored, cut))
    return Prepared(rows, offsets, mask, targets, stats)


def _rewards(scored: Sequence[Scored], config: AlgorithmConfig, inside: Tensor, penalty: Tensor | None) -> Tensor:
    """[B, T] float64: the shaped reward at the last token, minus the KL penalty (flat [N]) at every token."""
    rewards = torch.zeros(inside.shape, dtype=torch.float64)
    if penalty is not None:
        rewards[inside] = -penalty
    last = inside.sum(dim=1) - 1
    rewards[torch.arange(len(scored)), last] += torch.tensor([shaped_reward(s, config) for s in scored]).double()
    return rewards


def _importance(proximal: Tensor, behaviour: Tensor, config: AlgorithmConfig) -> Tensor:
    if config.importance == "mask":
        return masked_importance(proximal, behaviour, config.importance_floor, config.importance_cap)
    return truncated_importance(proximal, behaviour, config.importance_cap)


def _advantages(
    scored: Sequence[Scored], config: AlgorithmConfig, rewards: Tensor, values: Tensor, mask: Tensor
) -> Tensor:
    """The policy's advantages [B, T]; rows out of the loss take no part in baselines and whitening."""
    numbers: dict[str, int] = {}
    groups = [numbers.setdefault(s.trajectory.start.id, len(numbers)) for s in scored]
    lam: float | Tensor = config.policy_lambda
    if config.adaptive_lambda is not None:
        lam = adaptive_lambda(torch.tensor([len(s.trajectory.tokens) for s in scored]), config.adaptive_lambda)
    replayed = torch.tensor([s.trajectory.start.replayed for s in scored])
    episodes = Episodes(rewards, values, mask, torch.tensor(groups), replayed)
    return ESTIMATORS[config.estimator](episodes, config.gamma, lam, config.normalise)


def shaped_reward(scored: Scored, config: AlgorithmConfig) -> float:
    """The reward that PPO sees: the verdict's, minus `overlong_penalty` if truncated and overlong is 'penalise'."""
    reward = scored.judged.verdict.reward
    if config.overlong == "penalise" and scored.trajectory.finish.truncated:
        return reward - config.overlong_penalty
    return reward


def spoilt(scored: Scored) -> bool:
    """Whether anything that a trajectory brings into the loss is NaN or Inf."""
    numbers = [scored.values, scored.proximal, scored.trajectory.logprobs, scored.reference]
    finite = all(bool(np.isfinite(array).all()) for array in numbers if array is not None)
    return not (finite and bool(np.isfinite(scored.judged.verdict.reward)))


def blamed(scored: Sequence[Scored], minibatches: Sequence[Sequence[int]], skipped: Sequence[bool]) -> list[str]:
    """Problems of the steps skipped since the last that was not: those of spoilt trajectories, if any are, else all."""
    first = len(skipped) - next((back for back, flag in enumerate(reversed(skipped)) if not flag), len(skipped))
    rows = {row for members in minibatches[first:] for row in members}
    guilty = {row for row in rows if spoilt(scored[row])} or rows
    return sorted({scored[row].trajectory.start.problem_id for row in guilty})


def _calibration(scored: Sequence[Scored], cut: Boundaries) -> tuple[float, float, float]:
    """AUC, AUC within start and depth, and Brier score of V against outcomes, at the starts and boundaries."""
    outcomes = np.array([s.judged.verdict.correct for s in scored])
    starts = [s.trajectory.start for s in scored]
    places = [inner_places(s.trajectory.response_ids, s.trajectory.start.prefix_ids.size, cut) for s in scored]

    def states(read: Sequence[IntArray]) -> tuple[FloatArray, BoolArray]:
        at = zip(scored, read, strict=True)
        return np.concatenate([s.values[p] for s, p in at]), np.repeat(outcomes, [p.size for p in read])

    values, succeed = states([np.append(0, own) for own in places])
    read, groups = beside([start.id for start in starts], [len(s.values) for s in scored], places)
    return auc(values, succeed), auc(*states(read), groups), brier(values, succeed)


def _stats(
    scored: Sequence[Scored],
    targets: TokenTargets,
    mask: BoolArray,
    config: AlgorithmConfig,
    version: int,
    kl_mean: float,
    calibration: tuple[float, float, float],
) -> BatchStats:
    gap = np.abs(targets.proximal - np.concatenate([s.trajectory.logprobs for s in scored]))
    gap = gap[np.concatenate([s.trajectory.versions for s in scored]) == version]
    weights = targets.importance
    bounded = weights == 0.0 if config.importance == "mask" else weights >= config.importance_cap
    overall, within, score = calibration
    return BatchStats(
        explained_variance=explained_variance(targets.old_values, targets.returns),
        returns_vary=varies(targets.returns),
        value_auc=overall,
        value_auc_within=within,
        value_brier=score,
        importance_mean=float(weights.mean()),
        importance_truncated=float(bounded.mean()),
        reference_kl=kl_mean,
        engine_gap_mean=float(gap.mean()) if gap.size else 0.0,
        engine_gap_max=float(gap.max()) if gap.size else 0.0,
        masked_share=float(1.0 - mask.mean()),
    )


def _flat(arrays: Sequence[npt.NDArray[np.float32]]) -> Tensor:
    return torch.from_numpy(np.concatenate(arrays).astype(np.float32))


def _padded(flat: Tensor, inside: Tensor) -> Tensor:
    """[B, T] with the flat values [N] where `inside`, 0 elsewhere."""
    out = torch.zeros(inside.shape, dtype=flat.dtype)
    out[inside] = flat
    return out
