"""Supervised training over DeepSpeed ranks: next-token loss on chosen tokens, and Bradley-Terry on pairs. Invariant: a
loss is a mean over the whole batch of a step, however it is split into micro-batches and over ranks."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from core.config import Device, LearnerConfig
from core.records import FloatArray
from learner.distributed.engine import TrainEngine
from learner.distributed.ranks import Ranks
from learner.distributed.worker import RankWorker
from learner.models.attention import line_on, to_device
from learner.models.pretrained import load_policy, load_reward, recompute_activations
from learner.packing.examples import PairBatch, TokenBatch


@dataclass(frozen=True, slots=True)
class SupervisedSums:
    """One optimizer step: of a rank, or of all."""

    loss: float  # of a rank: its part of the mean
    grad_norm: float
    applied: bool


class NextToken:
    """Next-token loss: minus the log-probability of the tokens to learn."""

    def __init__(self, path: str, dtype: torch.dtype) -> None:
        self.module = load_policy(path, dtype)

    def measure(self, forward: Any, batch: TokenBatch, device: torch.device) -> Tensor:
        """[N] log-probabilities; `forward` runs the module in its engine."""
        logprobs: Tensor = forward(line=line_on(batch.inputs, device), temperature=1.0)[0]
        return logprobs

    def losses(self, logprobs: Tensor) -> Tensor:
        """[N] -log p."""
        return -logprobs


class Preference:
    """Bradley-Terry: -log sigmoid(score of the chosen - score of the rejected dialogue)."""

    def __init__(self, path: str, dtype: torch.dtype) -> None:
        self.module = load_reward(path, dtype)

    def measure(self, forward: Any, batch: PairBatch, device: torch.device) -> Tensor:
        """[2 N] scores: of the chosen dialogues, then of the rejected ones; `forward` runs the module in its engine."""
        scores: Tensor = forward(to_device(batch.tokens, device), to_device(batch.lengths, device))
        return scores

    def losses(self, scores: Tensor) -> Tensor:
        """[N] -log sigmoid(difference) of each pair."""
        chosen, rejected = scores.chunk(2)
        return -F.logsigmoid(chosen - rejected)


Objective = type[NextToken] | type[Preference]


class SupervisedRank(RankWorker):
    """One rank. Lifecycle: `listen` -> `join` -> `load_objective` -> steps / measure / save / export ..."""

    def load_objective(self, objective: Objective, path: str, options: LearnerConfig, dtype: str) -> None:
        """Build the engine from the model's directory."""
        torch.manual_seed(0)  # makes a new head the same on every rank
        kind: torch.dtype = getattr(torch, dtype)
        self._path, self._lora = path, None
        self._objective: Any = objective(path, kind)
        module: Any = self._objective.module
        self._module = module
        if options.gradient_checkpointing:
            recompute_activations(module)
        self._engine = TrainEngine(module, [list(module.parameters())], options, kind)
        self._engines = {"engine": self._engine}

    def step(self, batches: Sequence[TokenBatch] | Sequence[PairBatch], rate: float) -> SupervisedSums:
        """Accumulate the micro-batches and take one optimizer step."""
        loss = 0.0
        for batch in batches:
            outputs = self._objective.measure(self._engine, batch, self._device)
            part = (self._objective.losses(outputs) * to_device(batch.weights, self._device)).sum()
            self._engine.backward(part, outputs)
            loss += float(part)
        return SupervisedSums(loss, *self._engine.step([rate]))

    @torch.no_grad()
    def measure(self, batches: Sequence[TokenBatch] | Sequence[PairBatch]) -> list[FloatArray]:
        """What the objective measures on every micro-batch."""
        found = [self._objective.measure(self._engine, batch, self._device) for batch in batches]
        return [tensor.float().cpu().numpy() for tensor in found]


class SupervisedGroup:
    """All ranks, seen from the driver."""

    def __init__(
        self,
        objective: Objective,
        path: str,
        config: LearnerConfig,
        *,
        dtype: str,
        device: Device,
        cpus: float,
        gpus: float,
    ) -> None:
        """Start the ranks and load the model. Raises ModelError when it cannot be used, else LearnerError."""
        self._ranks = Ranks(config, device=device, cpus=cpus, gpus=gpus, worker=SupervisedRank)
        self._ranks.join(device, config.deadline)
        self._ranks.call_same(SupervisedRank.load_objective, objective, path, config, dtype)

    def step(self, batches: Sequence[Sequence[Any]], rate: float) -> SupervisedSums:
        """One step on micro-batches [rank][...]: the mean loss, the gradient norm, and whether it was applied."""
        parts = self._ranks.call(SupervisedRank.step, batches, [rate] * len(batches))
        return SupervisedSums(sum(part.loss for part in parts), parts[0].grad_norm, parts[0].applied)

    def measure(self, batches: Sequence[Sequence[Any]]) -> list[list[FloatArray]]:
        """What the objective measures, [rank][micro-batch] -> [N]."""
        return self._ranks.call(SupervisedRank.measure, batches)

    def save(self, directory: Path) -> None:
        """Write weights and optimizer of all ranks."""
        self._ranks.call_same(SupervisedRank.save, str(directory))

    def restore(self, directory: Path) -> None:
        """Read what `save` wrote with the same number of ranks. Raises CheckpointError."""
        self._ranks.call_same(SupervisedRank.restore, str(directory), len(self._ranks))

    def export(self, directory: Path) -> None:
        """Write the model and its tokenizer in Hugging Face format."""
        self._ranks.call_same(SupervisedRank.export, str(directory))

    def close(self) -> None:
        """End the ranks."""
        self._ranks.close()
