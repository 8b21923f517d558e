"""Supervised training over DeepSpeed ranks: next-token loss on chosen tokens, and Bradley-Terry on pairs of dialogues.

Driven by `trainer/supervised.py` through `SupervisedGroup`. Each rank is a Ray actor with one engine. Invariants: every loss is a mean
over the whole batch of a step, whatever the cut into micro-batches and the number of ranks; all ranks run the same number of
micro-batches.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from core.config import Device, LearnerConfig
from core.errors import CheckpointError
from core.records import FloatArray
from core.weights import NamedTensor
from learner.distributed.engine import TrainEngine
from learner.distributed.ranks import Ranks
from learner.distributed.worker import RankWorker
from learner.models.policy_value import load_policy
from learner.models.score import load_reward
from learner.packing.examples import PairBatch, TokenBatch


@dataclass(frozen=True, slots=True)
class SupervisedStep:
    """One optimizer step of one rank."""

    batches: Sequence[TokenBatch] | Sequence[PairBatch]
    rate: float


@dataclass(frozen=True, slots=True)
class SupervisedSums:
    """What one rank's part of a step came to."""

    loss: float  # this rank's part of the mean
    grad_norm: float
    applied: bool


class Objective(Protocol):
    """What is learned: a module, its loss, and the numbers it is judged by."""

    @property
    def module(self) -> nn.Module:
        """What the engine runs."""
        ...

    @property
    def pretrained(self) -> Any:
        """The `transformers` model to save."""
        ...

    def loss(self, forward: Any, batch: Any, device: torch.device) -> tuple[Tensor, Tensor]:
        """The batch's part of the mean loss, and the outputs it came from; `forward` runs the module in its engine."""
        ...

    def measure(self, forward: Any, batch: Any, device: torch.device) -> Tensor:
        """[N] one number per learned token or per pair."""
        ...


class NextToken:
    """Minus the log-probability of the chosen tokens."""

    def __init__(self, path: str, dtype: torch.dtype) -> None:
        self.module: nn.Module = load_policy(path, dtype)
        self.pretrained = self.module.model

    def loss(self, forward: Any, batch: TokenBatch, device: torch.device) -> tuple[Tensor, Tensor]:
        """Weighted sum of -log p."""
        logprobs = self.measure(forward, batch, device)
        return -(logprobs * on(batch.weights, device)).sum(), logprobs

    def measure(self, forward: Any, batch: TokenBatch, device: torch.device) -> Tensor:
        """Log-probabilities."""
        given = batch.inputs
        logprobs: Tensor = forward(
            on(given.tokens, device), on(given.positions, device), on(given.targets, device), 1.0
        )[0]
        return logprobs


class Preference:
    """Bradley-Terry: -log sigmoid(score of the chosen - score of the rejected dialogue)."""

    def __init__(self, path: str, dtype: torch.dtype) -> None:
        self.module: nn.Module = load_reward(path, dtype)
        self.pretrained = self.module.model

    def loss(self, forward: Any, batch: PairBatch, device: torch.device) -> tuple[Tensor, Tensor]:
        """Weighted sum over the pairs."""
        scores = self.measure(forward, batch, device)
        chosen, rejected = scores.chunk(2)
        return -(F.logsigmoid(chosen - rejected) * on(batch.weights, device)).sum(), scores

    def measure(self, forward: Any, batch: PairBatch, device: torch.device) -> Tensor:
        """[2 N] scores: of the chosen dialogues, then of the rejected ones."""
        scores: Tensor = forward(on(batch.tokens, device), on(batch.lengths, device))
        return scores


class SupervisedRank(RankWorker):
    """One rank. Lifecycle: `address` (rank 0) -> `join` -> `prepare` -> steps / measure / save / export ..."""

    def prepare(
        self, objective: type[NextToken] | type[Preference], path: str, options: LearnerConfig, dtype: str
    ) -> None:
        """Build the engine from the model's directory."""
        torch.manual_seed(0)  # a new head: the same on every rank
        kind: torch.dtype = getattr(torch, dtype)
        self._path = path
        self._objective: Objective = objective(path, kind)
        if options.gradient_checkpointing:
            self._objective.pretrained.gradient_checkpointing_enable({"use_reentrant": False})
            self._objective.module.train()  # Hugging Face recomputes in training mode only; there is no dropout to wake
        self._engine = TrainEngine(
            self._objective.module,
            [list(self._objective.module.parameters())],
            zero_stage=options.zero_stage,
            dtype=kind,
            max_grad_norm=options.max_grad_norm,
            weight_decay=options.weight_decay,
            offload=options.offload,
        )

    def step(self, plan: SupervisedStep) -> SupervisedSums:
        """Accumulate the micro-batches and take one optimizer step."""
        loss = 0.0
        for batch in plan.batches:
            part, outputs = self._objective.loss(self._engine, batch, self._device)
            self._engine.backward(part, outputs)
            loss += float(part)
        norm, applied = self._engine.step([plan.rate])
        return SupervisedSums(loss, norm, applied)

    @torch.no_grad()
    def measure(self, batches: Sequence[TokenBatch] | Sequence[PairBatch]) -> list[FloatArray]:
        """The objective's numbers of every micro-batch."""
        found = [self._objective.measure(self._engine, batch, self._device) for batch in batches]
        return [tensor.float().cpu().numpy() for tensor in found]

    def save_engine(self, directory: str) -> None:
        """Write weights and optimizer."""
        self._engine.save(Path(directory), "engine")

    def restore_engine(self, directory: str) -> None:
        """Read what `save_engine` wrote. Raises CheckpointError when it is not there."""
        if not self._engine.restore(Path(directory), "engine"):
            raise CheckpointError(f"{directory}: no complete DeepSpeed checkpoint; resume from another one")

    def export(self, directory: str) -> None:
        """Write the model in Hugging Face format with its tokenizer (rank 0)."""
        tensors = {name: tensor.detach().cpu().clone() for name, tensor in self._named()}
        if self._rank == 0:
            from transformers import AutoTokenizer

            self._objective.pretrained.save_pretrained(directory, state_dict=tensors)
            AutoTokenizer.from_pretrained(self._path).save_pretrained(directory)

    def _named(self) -> Iterator[NamedTensor]:
        return ((name.removeprefix("model."), tensor) for name, tensor in self._engine.named_tensors())


class SupervisedGroup:
    """All ranks, seen from the driver."""

    def __init__(
        self,
        objective: type[NextToken] | type[Preference],
        path: str,
        config: LearnerConfig,
        *,
        dtype: str,
        device: Device,
        cpus: float,
        gpus: float,
    ) -> None:
        """Start the ranks and load the model. Raises ModelError when it cannot be used, ActorError when a rank fails."""
        self._ranks = Ranks(
            config.ranks,
            device=device,
            cpus=cpus,
            gpus=gpus,
            threads=config.threads,
            deadline=config.deadline,
            worker=SupervisedRank,
        )
        count = config.ranks
        address = self._ranks.call_first(SupervisedRank.address)
        self._ranks.call(
            SupervisedRank.join,
            range(count),
            [count] * count,
            [address] * count,
            [device] * count,
            [config.deadline] * count,
        )
        self._ranks.call(SupervisedRank.prepare, [objective] * count, [path] * count, [config] * count, [dtype] * count)

    def step(self, batches: Sequence[Sequence[Any]], rate: float) -> SupervisedSums:
        """One optimizer step on micro-batches [rank][...]: the mean loss, the gradient norm, and whether it was applied."""
        parts = self._ranks.call(SupervisedRank.step, [SupervisedStep(own, rate) for own in batches])
        return SupervisedSums(sum(part.loss for part in parts), parts[0].grad_norm, parts[0].applied)

    def measure(self, batches: Sequence[Sequence[Any]]) -> list[list[FloatArray]]:
        """The objective's numbers, [rank][micro-batch] -> [N]."""
        return self._ranks.call(SupervisedRank.measure, batches)

    def save(self, directory: Path) -> None:
        """Write weights and optimizer of all ranks."""
        self._ranks.call(SupervisedRank.save_engine, [str(directory)] * len(self._ranks))

    def restore(self, directory: Path) -> None:
        """Read what `save` wrote with the same number of ranks. Raises CheckpointError."""
        self._ranks.call(SupervisedRank.restore_engine, [str(directory)] * len(self._ranks))

    def export(self, directory: Path) -> None:
        """Write the model and its tokenizer in Hugging Face format."""
        self._ranks.call(SupervisedRank.export, [str(directory)] * len(self._ranks))

    def close(self) -> None:
        """End the ranks."""
        self._ranks.close()


def on(array: Any, device: torch.device) -> Tensor:
    """A tensor on the device; copied, because arrays from the object store are read-only."""
    return torch.tensor(array, device=device)
