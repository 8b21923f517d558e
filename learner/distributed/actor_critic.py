"""Policy and critic in their engines: as two models, or as two heads of one trunk. Passes, losses and optimizer steps.

Made and called by `learner.distributed.worker` (one of the two classes, by `learner.value_model`); every rank makes the same calls.
Invariants: passes of two engines never mix, each finishes all its forward and backward passes of a step before the other
begins; a step with `train_policy` off leaves every weight that the policy computes with as it was, bit for bit; a step is
dropped whole: where the gradient of either model holds a NaN or Inf, nothing of both changes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from learner.distributed.engine import TrainEngine
from learner.models.policy_value import PolicyModel, SharedModel, ValueModel
from learner.objective import (
    PolicyCoefficients,
    PolicySums,
    PolicyTargets,
    ValueTargets,
    policy_objective,
    value_objective,
)
from learner.packing.batch import MicroBatch, TrainBatch
from learner.stats import StepSums


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One optimizer step: this rank's micro-batches, the learning rates, and whether the policy learns."""

    batches: list[TrainBatch]
    policy_lr: float
    value_lr: float
    kl_coefficient: float  # of the KL term in the loss
    train_policy: bool


@dataclass(frozen=True, slots=True)
class LossSettings:
    """Numbers of both losses."""

    policy: PolicyCoefficients  # its `kl` is set for every step
    value_clip: float
    value_coefficient: float  # of the value loss where both share a trunk
    temperature: float


@dataclass(frozen=True, slots=True)
class CriticStep:
    """A step of a critic that is a model of its own; see `StepSums`."""

    loss: float
    norm: float
    applied: bool


class ActorCritic(Protocol):
    """What a rank trains and scores with."""

    policy: TrainEngine
    """The engine that holds the policy."""

    def engines(self) -> dict[str, TrainEngine]:
        """All engines, by the name of their checkpoint."""

    def score(self, batches: Sequence[MicroBatch]) -> list[tuple[Tensor, Tensor]]:
        """Log-probabilities and values [N] of every micro-batch."""

    def values(self, batches: Sequence[MicroBatch]) -> list[Tensor]:
        """Values [N] alone."""

    def logprobs(self, batch: MicroBatch, temperature: float) -> Tensor:
        """The policy's log-probabilities [N]."""

    def step(self, plan: StepPlan) -> StepSums:
        """One optimizer step."""


class SeparateModels:
    """Policy and critic with an engine each.

    A step: the policy's passes; once its gradient is known to be finite, the passes and the step of the critic; if that was
    applied, the policy's step. The policy's gradient is held meanwhile: its memory is the price of a step that is dropped whole.
    """

    def __init__(self, policy: PolicyModel, value: ValueModel, losses: LossSettings, **engine: Any) -> None:
        self.policy = TrainEngine(policy, [list(policy.parameters())], **engine)
        self._value = TrainEngine(value, [list(value.parameters())], **engine)
        self._losses = losses
        self._device = self.policy.device

    def engines(self) -> dict[str, TrainEngine]:
        """See `ActorCritic`."""
        return {"policy": self.policy, "value": self._value}

    def score(self, batches: Sequence[MicroBatch]) -> list[tuple[Tensor, Tensor]]:
        """See `ActorCritic`."""
        logprobs = [self.logprobs(batch, self._losses.temperature) for batch in batches]
        return list(zip(logprobs, self.values(batches), strict=True))

    def values(self, batches: Sequence[MicroBatch]) -> list[Tensor]:
        """See `ActorCritic`."""
        return [self._values(batch) for batch in batches]

    def logprobs(self, batch: MicroBatch, temperature: float) -> Tensor:
        """See `ActorCritic`."""
        logprobs: Tensor = self.policy(*model_inputs(batch, self._device), temperature, **places(batch, self._device))[
            0
        ]
        return logprobs

    def step(self, plan: StepPlan) -> StepSums:
        """See `ActorCritic`."""
        if not plan.train_policy:
            critic = self._critic_step(plan)
            return StepSums(PolicySums(), critic.loss, None, critic.norm, True, critic.applied)
        policy, critic = PolicySums(), CriticStep(0.0, 0.0, False)
        coefficients = replace(self._losses.policy, kl=plan.kl_coefficient)
        for batch in plan.batches:
            policy = policy + self._policy_pass(batch, coefficients)

        def critic_has_stepped() -> bool:
            nonlocal critic
            critic = self._critic_step(plan)
            return critic.applied

        norm, applied = self.policy.step([plan.policy_lr], critic_has_stepped)
        return StepSums(policy, critic.loss, norm, critic.norm, applied, critic.applied)

    def _critic_step(self, plan: StepPlan) -> CriticStep:
        loss = sum([self._value_pass(batch) for batch in plan.batches])
        return CriticStep(loss, *self._value.step([plan.value_lr]))

    def _policy_pass(self, batch: TrainBatch, c: PolicyCoefficients) -> PolicySums:
        inputs, where = model_inputs(batch.inputs, self._device), places(batch.inputs, self._device)
        logprobs, entropy = self.policy(*inputs, self._losses.temperature, **where)
        loss, sums = policy_objective(logprobs, entropy, policy_targets(batch, self._device), c)
        self.policy.backward(loss, logprobs)
        return sums

    def _value_pass(self, batch: TrainBatch) -> float:
        values = self._values(batch.inputs)
        loss = value_objective(values, value_targets(batch, self._device), self._losses.value_clip)
        self._value.backward(loss, values)
        return float(loss.detach())

    def _values(self, batch: MicroBatch) -> Tensor:
        tokens, positions, _ = model_inputs(batch, self._device)
        values: Tensor = self._value(tokens, positions, **places(batch, self._device))
        return values


class SharedTrunk:
    """One engine: loss = policy's + value_coefficient x critic's, two learning rates, one gradient norm."""

    def __init__(self, model: SharedModel, losses: LossSettings, **engine: Any) -> None:
        head = list(model.head.parameters())
        self.policy = TrainEngine(model, [list(model.model.parameters()), head], **engine)
        self._losses = losses
        self._device = self.policy.device

    def engines(self) -> dict[str, TrainEngine]:
        """See `ActorCritic`."""
        return {"policy": self.policy}

    def score(self, batches: Sequence[MicroBatch]) -> list[tuple[Tensor, Tensor]]:
        """See `ActorCritic`."""
        temperature, device = self._losses.temperature, self._device
        read = [self.policy(*model_inputs(b, device), temperature, **places(b, device)) for b in batches]
        return [(logprobs, values) for logprobs, _, values in read]

    def values(self, batches: Sequence[MicroBatch]) -> list[Tensor]:
        """See `ActorCritic`. The trunk is most of the work."""
        return [values for _, values in self.score(batches)]

    def logprobs(self, batch: MicroBatch, temperature: float) -> Tensor:
        """See `ActorCritic`."""
        logprobs: Tensor = self.policy(*model_inputs(batch, self._device), temperature, **places(batch, self._device))[
            0
        ]
        return logprobs

    def step(self, plan: StepPlan) -> StepSums:
        """See `ActorCritic`. While the policy does not learn only the head does."""
        coefficients = replace(self._losses.policy, kl=plan.kl_coefficient)
        policy, value_loss = PolicySums(), 0.0
        for batch in plan.batches:
            sums, loss = self._pass(batch, coefficients, plan.train_policy)
            policy, value_loss = policy + sums, value_loss + loss
        norm, applied = self.policy.step([plan.policy_lr if plan.train_policy else None, plan.value_lr])
        return StepSums(policy, value_loss, norm if plan.train_policy else None, norm, applied, applied)

    def _pass(self, batch: TrainBatch, c: PolicyCoefficients, train_policy: bool) -> tuple[PolicySums, float]:
        inputs, where = model_inputs(batch.inputs, self._device), places(batch.inputs, self._device)
        logprobs, entropy, values = self.policy(*inputs, self._losses.temperature, train_policy, **where)
        critic = value_objective(values, value_targets(batch, self._device), self._losses.value_clip)
        loss, sums = self._losses.value_coefficient * critic, PolicySums()
        if train_policy:
            surrogate, sums = policy_objective(logprobs, entropy, policy_targets(batch, self._device), c)
            loss = loss + surrogate
        self.policy.backward(loss, values)
        return sums, float(critic.detach())


def model_inputs(batch: MicroBatch, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, positions and targets as tensors."""
    return _tensor(batch.tokens, device), _tensor(batch.positions, device), _tensor(batch.targets, device)


def places(batch: MicroBatch, device: torch.device) -> dict[str, Tensor]:
    """The places of packed tokens as a keyword argument of the models; none where rows are padded."""
    return {} if batch.places is None else {"places": _tensor(batch.places, device)}


def policy_targets(batch: TrainBatch, device: torch.device) -> PolicyTargets:
    """The policy's targets as tensors [N]."""
    t = batch.targets
    return PolicyTargets(*_tensors((t.proximal, t.advantages, t.importance, t.reference, t.weights), device))


def value_targets(batch: TrainBatch, device: torch.device) -> ValueTargets:
    """The critic's targets as tensors [N]."""
    t = batch.targets
    return ValueTargets(*_tensors((t.old_values, t.returns, t.weights), device))


def _tensors(arrays: Sequence[Any], device: torch.device) -> list[Tensor]:
    return [_tensor(array, device) for array in arrays]


def _tensor(array: Any, device: torch.device) -> Tensor:
    """A tensor on the device; copied, because arrays from the object store are read-only."""
    return torch.from_numpy(np.array(array)).to(device, non_blocking=True)
