"""Policy and critic in their engines: as two models, as two heads of one trunk, or the policy alone. Invariants: two
engines never interleave, one finishes all its passes of a step before the other begins; a step without a rate of the
policy changes none of its weights, bit for bit; if the gradient of either model has a NaN or Inf, neither changes."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from core.config import AlgorithmConfig, LearnerConfig
from learner.distributed.engine import TrainEngine
from learner.losses import value_loss
from learner.models.attention import line_on, to_device
from learner.models.pretrained import PolicyModel, SharedModel, ValueModel
from learner.packing.micro_batches import Components, MicroBatch, TokenColumns, TrainBatch
from learner.policy_losses import PolicySums, policy_objective
from learner.stats import StepSums


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One optimizer step: this rank's micro-batches, what the components of the loss count, and the learning rates."""

    batches: list[TrainBatch]
    coefficients: Components[float]
    policy_lr: float | None  # None: the policy does not learn
    value_lr: float


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

    def __init__(self, engines: dict[str, TrainEngine], algorithm: AlgorithmConfig, temperature: float) -> None:
        """`temperature`: of the rollouts; log-probabilities are those of softmax(logits / temperature)."""
        self.engines, self.policy, self._algorithm, self._temperature = (
            engines,
            engines["policy"],
            algorithm,
            temperature,
        )
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

    def _value_objective(self, values: Tensor, columns: TokenColumns[Tensor], weights: Tensor) -> Tensor:
        """Loss (scalar) of the critic on N tokens of these weights [N]."""
        return (weights * value_loss(values, columns.old_values, columns.returns, self._algorithm.value_clip)).sum()

    def _on_device(self, batch: TrainBatch) -> tuple[TokenColumns[Tensor], Components[Tensor]]:
        def _moved(array: npt.NDArray[Any]) -> Tensor:
            return to_device(array, self._device)

        return batch.columns.map(_moved), batch.weights.map(_moved)


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
        if plan.policy_lr is None:
            loss, norm, applied = self._critic_step(plan)
            return StepSums(PolicySums(), loss, None, norm, skipped=not applied)
        critic: CriticStep = (0.0, None, False)
        sums = sum((self._policy_pass(batch, plan.coefficients) for batch in plan.batches), PolicySums())

        def _critic_has_stepped() -> bool:
            nonlocal critic
            critic = self._critic_step(plan)
            return critic[2]

        policy_norm, applied = self.policy.step([plan.policy_lr], _critic_has_stepped)
        value_loss, value_norm, _ = critic
        return StepSums(sums, value_loss, policy_norm, value_norm, skipped=not applied)

    def _critic_step(self, plan: StepPlan) -> CriticStep:
        loss = sum([self._value_pass(batch, plan.coefficients.value) for batch in plan.batches])
        return loss, *self.engines["value"].step([plan.value_lr])

    def _policy_pass(self, batch: TrainBatch, coefficients: Components[float]) -> PolicySums:
        line = line_on(batch.inputs, self._device)
        logprobs, entropy = self.policy(line=line, temperature=self._temperature)
        loss, sums = policy_objective(logprobs, entropy, *self._on_device(batch), coefficients, self._algorithm)
        self.policy.backward(loss, logprobs)
        return sums

    def _value_pass(self, batch: TrainBatch, coefficient: float) -> float:
        values: Tensor = self.engines["value"](line=line_on(batch.inputs, self._device))
        columns, weights = self._on_device(batch)
        loss = self._value_objective(values, columns, weights.value)
        self.engines["value"].backward(coefficient * loss, values)
        return float(loss.detach())


class PolicyAlone(SeparateModels):
    """The policy without a critic: all values are 0."""

    def values(self, batches: Sequence[MicroBatch]) -> list[Tensor]:
        """See `ActorCritic`."""
        return [torch.zeros(len(batch.copies)) for batch in batches]

    def _critic_step(self, plan: StepPlan) -> CriticStep:  # noqa: ARG002
        return 0.0, None, True


class SharedTrunk(ActorCritic):
    """One engine: the sum of all components of the loss, two learning rates, one gradient norm."""

    def score(self, batches: Sequence[MicroBatch]) -> tuple[list[Tensor], list[Tensor]]:
        """See `ActorCritic`."""
        temperature, device = self._temperature, self._device
        read = [self.policy(line=line_on(batch, device), temperature=temperature) for batch in batches]
        return [logprobs for logprobs, _, _ in read], [values for _, _, values in read]

    def values(self, batches: Sequence[MicroBatch]) -> list[Tensor]:
        """See `ActorCritic`."""
        return [self.policy(line=line_on(batch, self._device), temperature=None)[2] for batch in batches]

    def step(self, plan: StepPlan) -> StepSums:
        """See `ActorCritic`. Without a rate of the policy only the value head learns, and the language-model head is not
        read."""
        policy, value_loss, learns = PolicySums(), 0.0, plan.policy_lr is not None
        for batch in plan.batches:
            sums, loss = self._pass(batch, plan.coefficients, learns)
            policy, value_loss = policy + sums, value_loss + loss
        norm, applied = self.policy.step([plan.policy_lr, plan.value_lr])
        return StepSums(policy, value_loss, norm if learns else None, norm, skipped=not applied)

    def _pass(self, batch: TrainBatch, coefficients: Components[float], learns: bool) -> tuple[PolicySums, float]:
        line, (columns, weights) = line_on(batch.inputs, self._device), self._on_device(batch)
        logprobs, entropy, values = self.policy(line=line, temperature=self._temperature if learns else None)
        critic = self._value_objective(values, columns, weights.value)
        loss, sums = coefficients.value * critic, PolicySums()
        if learns:
            policy, sums = policy_objective(logprobs, entropy, columns, weights, coefficients, self._algorithm)
            loss = loss + policy
        self.policy.backward(loss, values)
        return sums, float(critic.detach())
