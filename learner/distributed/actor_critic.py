"""Policy and critic in their engines: as two models, as two heads of one trunk, or the policy alone. Invariants: two
engines never interleave, one finishes all its passes of a step before the other begins; a step without `train_policy`
changes no weight of the policy, bit for bit; if the gradient of either model has a NaN or Inf, neither changes."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from core.config import AlgorithmConfig, LearnerConfig
from learner.distributed.engine import TrainEngine
from learner.models.attention import line_on, to_device
from learner.models.pretrained import PolicyModel, SharedModel, ValueModel
from learner.objective import PolicySums, policy_objective, value_objective
from learner.packing.batch import MicroBatch, TokenTargets, TrainBatch
from learner.stats import StepSums


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One optimizer step: this rank's micro-batches, the learning rates, and which models learn."""

    batches: list[TrainBatch]
    policy_lr: float
    value_lr: float
    kl_coefficient: float  # of the KL term in the loss
    train_policy: bool
    train_critic: bool


CriticStep = tuple[float, float | None, bool]
"""Loss, gradient norm (None: not trained), and whether the step was applied, or not asked for."""


def engines_of(
    policy: PolicyModel, value: ValueModel | None, learner: LearnerConfig, dtype: torch.dtype
) -> dict[str, TrainEngine]:
    """The engines by the name of their checkpoint: "policy", and "value" of a separate critic."""
    parts = [policy.model, policy.head] if isinstance(policy, SharedModel) else [policy]  # each with a learning rate
    engines = {"policy": TrainEngine(policy, [list(part.parameters()) for part in parts], learner, dtype)}
    if value is not None:
        engines["value"] = TrainEngine(value, [list(value.parameters())], learner, dtype)
    return engines


class ActorCritic(ABC):
    """The models that a rank trains and scores with: what both kinds have in common."""

    def __init__(
        self, engines: dict[str, TrainEngine], algorithm: AlgorithmConfig, learner: LearnerConfig, temperature: float
    ) -> None:
        self.engines, self.policy = engines, engines["policy"]
        self._algorithm, self._learner, self._temperature = algorithm, learner, temperature
        self._device = self.policy.device

    @abstractmethod
    def score(self, batches: Sequence[MicroBatch]) -> tuple[list[Tensor], list[Tensor]]:
        """Log-probabilities [N] of every micro-batch, and values [N]."""

    @abstractmethod
    def values(self, batches: Sequence[MicroBatch]) -> list[Tensor]:
        """Only the values [N]."""

    @abstractmethod
    def step(self, plan: StepPlan) -> StepSums:
        """One optimizer step."""

    def logprobs(self, batch: MicroBatch, temperature: float) -> Tensor:
        """The policy's log-probabilities [N]."""
        logprobs: Tensor = self.policy(line=line_on(batch, self._device), temperature=temperature)[0]
        return logprobs

    def _targets(self, batch: TrainBatch) -> TokenTargets[Tensor]:
        return batch.targets.map(lambda column: to_device(column, self._device))


class SeparateModels(ActorCritic):
    """Policy and critic with an engine each. Order of a step: the policy's passes; if its gradient is finite, the
    critic's passes and step; if that was applied, the policy's step. So both models skip a step or neither does."""

    def score(self, batches: Sequence[MicroBatch]) -> tuple[list[Tensor], list[Tensor]]:
        """See `ActorCritic`."""
        return [self.logprobs(batch, self._temperature) for batch in batches], self.values(batches)

    def values(self, batches: Sequence[MicroBatch]) -> list[Tensor]:
        """See `ActorCritic`."""
        return [self.engines["value"](line=line_on(batch, self._device)) for batch in batches]

    def step(self, plan: StepPlan) -> StepSums:
        """See `ActorCritic`."""
        if not plan.train_policy:
            loss, norm, applied = self._critic_step(plan)
            return StepSums(PolicySums(), loss, None, norm, skipped=not applied)
        critic: CriticStep = (0.0, None, False)
        sums = sum((self._policy_pass(batch, plan.kl_coefficient) for batch in plan.batches), PolicySums())

        def _critic_has_stepped() -> bool:
            nonlocal critic
            critic = self._critic_step(plan)
            return critic[2]

        policy_norm, applied = self.policy.step([plan.policy_lr], _critic_has_stepped)
        value_loss, value_norm, _ = critic
        return StepSums(sums, value_loss, policy_norm, value_norm, skipped=not applied)

    def _critic_step(self, plan: StepPlan) -> CriticStep:
        if not plan.train_critic:
            return 0.0, None, True
        loss = sum([self._value_pass(batch) for batch in plan.batches])
        return loss, *self.engines["value"].step([plan.value_lr])

    def _policy_pass(self, batch: TrainBatch, kl_coefficient: float) -> PolicySums:
        line = line_on(batch.inputs, self._device)
        logprobs, entropy = self.policy(line=line, temperature=self._temperature)
        loss, sums = policy_objective(logprobs, entropy, self._targets(batch), self._algorithm, kl_coefficient)
        self.policy.backward(loss, logprobs)
        return sums

    def _value_pass(self, batch: TrainBatch) -> float:
        values: Tensor = self.engines["value"](line=line_on(batch.inputs, self._device))
        loss = value_objective(values, self._targets(batch), self._algorithm.value_clip)
        self.engines["value"].backward(loss, values)
        return float(loss.detach())


class PolicyAlone(SeparateModels):
    """The policy without a critic: all values are 0."""

    def values(self, batches: Sequence[MicroBatch]) -> list[Tensor]:
        """See `ActorCritic`."""
        return [torch.zeros(len(batch.copies)) for batch in batches]


class SharedTrunk(ActorCritic):
    """One engine: loss = policy's + value_coefficient x critic's, two learning rates, one gradient norm."""

    def score(self, batches: Sequence[MicroBatch]) -> tuple[list[Tensor], list[Tensor]]:
        """See `ActorCritic`."""
        temperature, device = self._temperature, self._device
        read = [self.policy(line=line_on(batch, device), temperature=temperature) for batch in batches]
        return [logprobs for logprobs, _, _ in read], [values for _, _, values in read]

    def values(self, batches: Sequence[MicroBatch]) -> list[Tensor]:
        """See `ActorCritic`."""
        return [self.policy(line=line_on(batch, self._device), temperature=None)[2] for batch in batches]

    def step(self, plan: StepPlan) -> StepSums:
        """See `ActorCritic`. Without `train_policy` only the value head learns, and the language-model head is not read."""
        policy, value_loss = PolicySums(), 0.0
        for batch in plan.batches:
            sums, loss = self._pass(batch, plan.kl_coefficient, plan.train_policy)
            policy, value_loss = policy + sums, value_loss + loss
        norm, applied = self.policy.step([plan.policy_lr if plan.train_policy else None, plan.value_lr])
        return StepSums(policy, value_loss, norm if plan.train_policy else None, norm, skipped=not applied)

    def _pass(self, batch: TrainBatch, kl_coefficient: float, train_policy: bool) -> tuple[PolicySums, float]:
        line, targets = line_on(batch.inputs, self._device), self._targets(batch)
        logprobs, entropy, values = self.policy(line=line, temperature=self._temperature if train_policy else None)
        critic = value_objective(values, targets, self._algorithm.value_clip)
        loss, sums = self._learner.value_coefficient * critic, PolicySums()
        if train_policy:
            surrogate, sums = policy_objective(logprobs, entropy, targets, self._algorithm, kl_coefficient)
            loss = loss + surrogate
        self.policy.backward(loss, values)
        return sums, float(critic.detach())
