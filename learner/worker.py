"""One rank of the learner: two DeepSpeed engines (policy, critic) and an optional frozen reference policy in one process.

A Ray actor made by `learner.group`, which sends ready arrays and reads plain results. Invariants: every method is called on
all ranks in the same order with the same number of micro-batches (collectives inside); one engine finishes forward,
backward and step before the other is touched.
"""

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch

from core.config import AlgorithmConfig, Device, LearnerConfig
from core.errors import CheckpointError
from core.records import FloatArray
from core.weights import NamedTensor, WeightHandle, Weights, flatten
from learner.batch import MicroBatch, TokenTargets, TrainBatch
from learner.engine import TrainEngine, join_ranks
from learner.models import PolicyModel, load_policy, load_value, recompute_activations
from learner.objective import (
    PolicyCoefficients,
    PolicySums,
    PolicyTargets,
    ValueTargets,
    policy_objective,
    value_objective,
)
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
class ScoreColumns:
    """Scores of one micro-batch, flat over its continuation tokens [N]."""

    values: FloatArray
    proximal: FloatArray
    reference: FloatArray  # zeros without a reference policy


class RankWorker:
    """See the module. Lifecycle: `address` (rank 0) -> `join` -> `load` -> score / update / export_weights / save ..."""

    def __init__(self, publish: Callable[[Weights], WeightHandle]) -> None:
        """`publish` makes the handle by which engines get the weights: `ray.put`, or the weights themselves."""
        self._publish = publish

    def address(self) -> tuple[str, int]:
        """Where rank 0 listens: this node's address and a free port."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return ray.util.get_node_ip_address(), int(probe.getsockname()[1])

    def join(self, rank: int, ranks: int, address: tuple[str, int], device: Device, timeout: float) -> None:
        """Set the environment that DeepSpeed reads and enter the process group."""
        host, port = address
        os.environ.update(
            MASTER_ADDR=host, MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK="0"
        )
        if device == "cpu":
            os.environ.update(LOCAL_RANK=str(rank))
            torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        self._rank = rank
        self._device = torch.device(device)
        join_ranks(device, timeout)

    def load(
        self, path: str, learner: LearnerConfig, algorithm: AlgorithmConfig, dtype: str, temperature: float, seed: int
    ) -> None:
        """Build both engines from the policy's directory, and the reference policy if its KL has a weight."""
        torch.manual_seed(seed)
        kind: torch.dtype = getattr(torch, dtype)
        self._temperature = temperature
        self._coefficients = PolicyCoefficients(
            algorithm.clip_low,
            algorithm.clip_high,
            algorithm.dual_clip,
            algorithm.entropy_coefficient,
            kl=0.0,  # set for every step
            kl_estimator=algorithm.kl_estimator,
        )
        self._value_clip = algorithm.value_clip
        self._path = path
        self._module = load_policy(path, kind)
        options: dict[str, Any] = {
            "zero_stage": learner.zero_stage,
            "dtype": kind,
            "max_grad_norm": learner.max_grad_norm,
            "weight_decay": learner.weight_decay,
            "offload": learner.offload,
        }
        value = load_value(path, kind)
        if learner.gradient_checkpointing:
            recompute_activations(self._module)
            recompute_activations(value)
        self._policy = TrainEngine(self._module, **options)
        self._value = TrainEngine(value, **options)
        self._reference: PolicyModel | None = None
        if algorithm.kl_coefficient > 0:
            self._reference = load_policy(path, kind).to(self._device).requires_grad_(False)

    @torch.no_grad()
    def score(self, batches: Sequence[MicroBatch]) -> list[ScoreColumns]:
        """Values, proximal and reference log-probabilities of every micro-batch, one pass per model."""
        inputs = [self._inputs(batch) for batch in batches]
        proximal = [self._policy(*i, self._temperature)[0] for i in inputs]
        values = [self._value(*i[:2]) for i in inputs]
        references = [
            torch.zeros_like(p) if self._reference is None else self._reference(*i, self._temperature)[0]
            for i, p in zip(inputs, proximal, strict=True)
        ]
        return [
            ScoreColumns(_numpy(v), _numpy(p), _numpy(r)) for v, p, r in zip(values, proximal, references, strict=True)
        ]

    @torch.no_grad()
    def logprobs(self, batches: Sequence[MicroBatch]) -> list[FloatArray]:
        """The policy's log-probabilities at temperature 1 (for the probe after a broadcast)."""
        return [_numpy(self._policy(*self._inputs(batch), 1.0)[0]) for batch in batches]

    def update(self, steps: Sequence[StepPlan]) -> list[StepSums]:
        """Take the optimizer steps in order; the critic follows the policy within each."""
        return [self._step(step) for step in steps]

    def _step(self, plan: StepPlan) -> StepSums:
        policy, norm, applied = PolicySums(), None, True
        if plan.train_policy:
            coefficients = replace(self._coefficients, kl=plan.kl_coefficient)
            for batch in plan.batches:
                policy = policy + self._policy_pass(batch, coefficients)
            norm, applied = self._policy.step(plan.policy_lr)
        value_loss = sum([self._value_pass(batch) for batch in plan.batches])
        value_norm, value_applied = self._value.step(plan.value_lr)
        return StepSums(policy, value_loss, norm, value_norm, applied, value_applied)

    def _policy_pass(self, batch: TrainBatch, c: PolicyCoefficients) -> PolicySums:
        t = batch.targets
        logprobs, entropy = self._policy(*self._inputs(batch.inputs), self._temperature, c.entropy > 0)
        columns = [self._tensor(a) for a in (t.proximal, t.advantages, t.importance, t.reference, t.weights)]
        loss, sums = policy_objective(logprobs, entropy, PolicyTargets(*columns), c)
        self._policy.backward(loss, logprobs)
        return sums

    def _value_pass(self, batch: TrainBatch) -> float:
        t: TokenTargets = batch.targets
        values = self._value(*self._inputs(batch.inputs)[:2])
        columns = [self._tensor(a) for a in (t.old_values, t.returns, t.weights)]
        loss = value_objective(values, ValueTargets(*columns), self._value_clip)
        self._value.backward(loss, values)
        return float(loss)

    def export_weights(self, version: int) -> list[tuple[WeightHandle, str]]:
        """The published weights of the policy: handle and digest from rank 0, nothing from the others."""
        if self._device.type == "cuda":
            torch.cuda.empty_cache()  # an engine that slept on the same GPU wakes up for these weights
        if self._rank == 0:
            weights = flatten(self._hf_tensors(), version)
            return [(self._publish(weights), weights.manifest.digest)]
        for _ in self._policy.named_tensors():
            pass
        return []

    def save(self, directory: str) -> None:
        """Write both engines and this rank's random state."""
        self._policy.save(Path(directory), "policy")
        self._value.save(Path(directory), "value")
        torch.save(torch.get_rng_state(), Path(directory) / f"rng-{self._rank}.pt")

    def restore(self, directory: str) -> None:
        """Read what `save` wrote.

        Raises:
            CheckpointError: something is missing.
        """
        for engine, tag in ((self._policy, "policy"), (self._value, "value")):
            if not engine.restore(Path(directory), tag):
                raise CheckpointError(f"{directory}/{tag}: no complete DeepSpeed checkpoint; resume from another one")
        torch.set_rng_state(torch.load(Path(directory) / f"rng-{self._rank}.pt"))

    def export(self, directory: str) -> None:
        """Write the policy in Hugging Face format with its tokenizer (rank 0)."""
        tensors = {name: tensor.detach().cpu().clone() for name, tensor in self._hf_tensors()}
        if self._rank == 0:
            from transformers import AutoTokenizer

            self._module.model.save_pretrained(directory, state_dict=tensors)
            AutoTokenizer.from_pretrained(self._path).save_pretrained(directory)

    def _hf_tensors(self) -> Iterator[NamedTensor]:
        """The policy's parameters under their Hugging Face names, tied ones once."""
        return ((name.removeprefix("model."), tensor) for name, tensor in self._policy.named_tensors())

    def _inputs(self, batch: MicroBatch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self._tensor(batch.tokens), self._tensor(batch.positions), self._tensor(batch.targets)

    def _tensor(self, array: Any) -> torch.Tensor:
        """A tensor on this rank's device; copied, because arrays from the object store are read-only."""
        return torch.from_numpy(np.array(array)).to(self._device, non_blocking=True)


def _numpy(tensor: torch.Tensor) -> FloatArray:
    return tensor.float().cpu().numpy()
