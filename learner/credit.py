"""From scored rollouts to what every token's loss terms weigh. The loss of an update is a sum of components (surrogate,
language-model loss, KL, entropy, value); aggregation, truncation, groups of equal rewards, imitation and its fading are
weights of their tokens. Pure: numpy and torch.

Invariant: every array is over the tokens that the policy generated in this rollout: prompt and replayed prefix are
context; an environment's answer is left out as if it were not there."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from core.config import Aggregation, AlgorithmConfig
from core.records import Boundaries, Flags, FloatArray, IntArray, Rollout, Use, unsolved_share, used
from learner.batch import Batch, Component
from learner.estimators import Episodes, Estimator, find_estimator, gae, normalised
from learner.losses import CORRECTIONS, aggregation, faded_coefficient, kl
from learner.packing.micro_batches import Components, TokenColumns
from learner.shaping import in_loss, shaped_rewards, whole_reward
from learner.state import LearnerState
from learner.stats import batch_stats

IMPORTANCE_FLOOR = 0.5  # smallest pi_prox / pi_behaviour that `algorithm.importance: mask` keeps


@dataclass(frozen=True, slots=True)
class Algorithm:
    """The algorithm of a run."""

    config: AlgorithmConfig
    longest: int  # tokens of the longest possible response
    boundaries: Boundaries  # where a step of a response ends: there the critic is calibrated
    value_coefficient: float = 1.0  # of the loss of a critic on the policy's trunk; 1 for a critic with its own model
    critic_warmup: int = 0  # updates at first in which only the critic learns


def credit(rollouts: Sequence[Rollout], algorithm: Algorithm, state: LearnerState) -> Batch:
    """The batch of an update: rollouts to train on, then those to imitate. `state`: of the learner, before the update.
    While the critic warms up only it learns, on Monte-Carlo returns (VC-PPO, 2503.01491)."""
    config, trained = algorithm.config, used(rollouts, Use.TRAIN)
    learns = not state.warms_up(algorithm.critic_warmup)
    imitated = used(rollouts, Use.IMITATE) if learns else []
    counts = np.array([rollout.generated.sum() for rollout in [*trained, *imitated]], np.int64)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    behaviour, proximal = (
        _flat(trained, lambda rollout: rollout.logprobs),
        _flat(trained, lambda rollout: rollout.proximal),
    )
    reference, values = (
        _flat(trained, lambda rollout: rollout.reference),
        _flat(trained, lambda rollout: rollout.values),
    )
    importance, bounded = CORRECTIONS[config.importance](
        proximal - behaviour, torch.from_numpy(counts[: len(trained)]), IMPORTANCE_FLOOR, config.importance_cap
    )
    coefficient, penalty = state.kl_coefficient, None
    if config.kl_fades:
        coefficient = faded_coefficient(coefficient, unsolved_share(rollouts))
    if config.kl_placement == "reward":
        penalty = coefficient * kl(proximal, reference, config.chosen_kl).double()
    advantages, returns, varied = _advantages_and_returns(trained, algorithm, learns, values, penalty)
    unread = torch.zeros(int(offsets[-1]) - len(proximal))  # of imitated tokens: their component reads no such column

    def _column(of_trained: Tensor) -> FloatArray:
        return torch.cat([of_trained, unread]).numpy()

    columns = TokenColumns(
        proximal=_flat([*trained, *imitated], lambda rollout: rollout.proximal).numpy(),
        advantages=_column(advantages),
        old_values=_column(values),
        returns=_column(returns),
        reference=_column(reference),
        sequence=np.repeat(np.arange(len(counts)), counts),
    )
    return Batch(
        rollouts=[*trained, *imitated],
        offsets=offsets,
        columns=columns,
        components=_components(trained, imitated, algorithm, learns, coefficient, _column(importance), varied),
        stats=batch_stats(
            trained,
            columns.map(lambda column: column[: len(proximal)]),
            behaviour.numpy(),
            importance.numpy(),
            bounded=bounded.numpy(),
            current=_flat(trained, lambda rollout: rollout.versions).numpy() == state.version,
            boundaries=algorithm.boundaries,
            kl_coefficient=coefficient,
        ),
    )


def _components(
    trained: Sequence[Rollout],
    imitated: Sequence[Rollout],
    algorithm: Algorithm,
    learns: bool,
    kl_coefficient: float,
    importance: FloatArray,
    varied: Flags,
) -> Components[Component]:
    """What each token weighs in each component. `learns`: whether the policy does. `importance`: [N], 0 of imitated
    ones. `varied`: whether the rewards of the rows that a row is compared with differ."""
    config, nobody = algorithm.config, np.zeros(len(imitated), np.bool_)
    counts = np.array([rollout.generated.sum() for rollout in [*trained, *imitated]], np.int64)
    lengths, ones = counts.astype(np.float64), np.ones(counts.sum(), np.float32)
    kept = np.array([in_loss(rollout, config) for rollout in trained], np.bool_)
    compared = kept & varied if find_estimator(config.estimator).needs_groups else kept
    correct = kept & varied & np.array([rollout.verdict.correct for rollout in trained])
    own = config.positive_coefficient * correct
    repeated = np.concatenate([own, [rollout.weight for rollout in imitated]]).astype(np.float32)

    def _component(coefficient: float, tokens: FloatArray, rows: Flags, how: Aggregation) -> Component:
        return Component(coefficient, tokens, *aggregation(lengths, rows, how, algorithm.longest))

    every = np.concatenate([kept, nobody])  # an imitated answer is in the language-model loss alone
    how: Aggregation = "token-mean" if config.aggregation == "constant" else config.aggregation
    of_kl = learns * kl_coefficient if config.kl_placement == "loss" else 0.0
    return Components(
        rl=_component(learns, importance, np.concatenate([compared, nobody]), config.aggregation),
        ce=_component(learns * bool(repeated.any()), np.repeat(repeated, counts), every | (repeated > 0), "token-mean"),
        kl=_component(of_kl, importance, every, how),
        entropy=_component(learns * config.entropy_coefficient, ones, every, how),
        value=_component(algorithm.value_coefficient, ones, every, how),
    )


def _advantages_and_returns(
    trained: Sequence[Rollout], algorithm: Algorithm, learns: bool, old_values: Tensor, penalty: Tensor | None
) -> tuple[Tensor, Tensor, Flags]:
    """The policy's advantages [N], the critic's targets [N], and whose task rewards vary [B]. `penalty`: [N] of a KL in
    the reward."""
    config, longest = algorithm.config, algorithm.longest
    counts = torch.tensor([rollout.generated.sum() for rollout in trained])
    inside = torch.arange(int(counts.max()))[None, :] < counts[:, None]
    values = torch.zeros(inside.shape, dtype=torch.float64)
    values[inside] = old_values.double()
    rewards = shaped_rewards(trained, config, inside, penalty, longest)
    value_lambda = config.value_lambda if learns else 1.0
    returns = gae(rewards, values, inside, config.gamma, value_lambda) + values
    numbers: dict[str, int] = {}
    episodes = Episodes(
        rewards=rewards,
        values=values,
        mask=inside & torch.tensor([in_loss(rollout, config) for rollout in trained])[:, None],
        groups=torch.tensor([numbers.setdefault(rollout.start.id, len(numbers)) for rollout in trained]),
        with_prefix=torch.tensor([not rollout.start.from_root for rollout in trained]),
        gamma=config.gamma,
        lam=config.policy_lambda,
    )
    totals = torch.tensor([whole_reward(rollout, config, longest) for rollout in trained], dtype=torch.float64)
    advantages, varied = _advantages(find_estimator(config.estimator), episodes, totals, config)
    return advantages[inside].float(), returns[inside].float(), varied


def _advantages(
    estimator: Estimator, episodes: Episodes, totals: Tensor, config: AlgorithmConfig
) -> tuple[Tensor, Flags]:
    """The policy's advantages [B, T], and whose task rewards `totals` [B] vary among the rows that they are compared
    with [B]. Rows without loss count in no baseline. Where rows are compared, those that do not vary have no
    advantage."""
    mask, groups, with_prefix = episodes.mask, episodes.groups, episodes.with_prefix
    advantages = torch.where(mask, estimator.advantages(episodes).double(), 0.0)
    if not estimator.needs_groups:
        groups = with_prefix.long() if config.normalise == "separate" else torch.zeros_like(groups)
    varied = _rewards_vary(totals, mask.any(dim=1), groups)
    if estimator.needs_groups or (estimator.whitened and config.normalise != "none"):
        mask = mask & varied[:, None]
    if estimator.whitened:
        advantages = normalised(advantages, mask, with_prefix, config.normalise)
    return torch.where(mask, advantages, 0.0), varied.numpy()


def _rewards_vary(totals: Tensor, kept: Tensor, groups: Tensor) -> Tensor:
    """[B] whether a row is of a group whose rewards [B] differ. Where they do not, advantages are the critic's errors
    and a KL from the reward alone; whitened, they would make a full step without any reward."""
    varied = torch.zeros_like(kept)
    for group in torch.unique(groups):
        members = (groups == group) & kept
        varied[members] = bool(members.any()) and bool((totals[members] != totals[members][0]).any())
    return varied


def _flat(scored: Sequence[Rollout], column: Callable[[Rollout], FloatArray | IntArray]) -> Tensor:
    """[N] float32: a column [C] of every rollout, of the tokens that the policy generated."""
    masks = [s.mask for s in scored]
    flat = np.concatenate(
        [column(s) if mask is None else column(s)[mask] for s, mask in zip(scored, masks, strict=True)]
    )
    return torch.from_numpy(flat.astype(np.float32))
