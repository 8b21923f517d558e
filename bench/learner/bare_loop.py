"""The loop that `bench.learner` compares with: torch and DeepSpeed without PPO, as one would write it by hand.

It has the learner's models and passes (forward, backward and step of policy and critic) over the plain rows, padded,
rows of like length together. Its losses are a log-likelihood and a squared error. It runs as a Ray actor.
"""

import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from learner.packing.assign import assign_padded
from learner.packing.batch import Row, right_padded

Batch = tuple[Tensor, Tensor, Tensor]
"""Rows one below the other: tokens [B, T]; positions [N], the index into B * T of the state before each scored token;
targets [N]."""


def padded_batches(rows: Sequence[Row], budget: int) -> list[Batch]:
    """The micro-batches of some rows; `budget`: tokens of one, padding included."""
    batches = []
    for group in assign_padded([len(row.tokens) for row in rows], budget, 1)[0]:
        members = [rows[i] for i in group]
        tokens = right_padded([row.tokens for row in members])
        width = tokens.shape[1]
        places = [np.arange(row.context - 1, len(row.tokens) - 1) + b * width for b, row in enumerate(members)]
        targets = np.concatenate([row.tokens[row.context :] for row in members]).astype(np.int64)
        batches.append((torch.from_numpy(tokens), torch.from_numpy(np.concatenate(places)), torch.from_numpy(targets)))
    return batches


class Policy(nn.Module):
    """A causal language model and the log-likelihood of chosen tokens."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Logits [N, V] at `positions` of [B, T]."""
        hidden = self.model.get_decoder()(input_ids=tokens, use_cache=False).last_hidden_state
        logits: Tensor = self.model.get_output_embeddings()(hidden.flatten(0, 1)[positions])
        return logits


class Critic(nn.Module):
    """Trunk and scalar head."""

    def __init__(self, trunk: Any) -> None:
        super().__init__()
        self.trunk, self.head = trunk, nn.Linear(trunk.config.hidden_size, 1)

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Values [N] at `positions` of [B, T]."""
        hidden = self.trunk(input_ids=tokens, use_cache=False).last_hidden_state
        values: Tensor = self.head(hidden.flatten(0, 1)[positions])
        return values[:, 0]


class BareLoop:
    """Two DeepSpeed engines and the shortest loop over them."""

    def __init__(self, path: str, device: str, dtype: str, recompute: bool = False, zero_stage: int = 0) -> None:
        import deepspeed
        from transformers import AutoModel, AutoModelForCausalLM

        os.environ.update(MASTER_ADDR="127.0.0.1", RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
        os.environ.setdefault("MASTER_PORT", "29477")
        kind = getattr(torch, dtype)
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # as `learner.distributed.engine.join_ranks`
        deepspeed.init_distributed("nccl" if device == "cuda" else "gloo", auto_mpi_discovery=False, verbose=False)
        bf16 = kind is torch.bfloat16
        config = {
            "train_micro_batch_size_per_gpu": 1,
            "managed_gradient_accumulation": False,
            "zero_optimization": {"stage": zero_stage},
            "zero_allow_untested_optimizer": True,
            "gradient_clipping": 1.0,
            "bf16": {"enabled": bf16},
            "steps_per_print": 10**9,
        }
        self._device = torch.device(device)
        language = AutoModelForCausalLM.from_pretrained(path, dtype=kind)
        trunk = AutoModel.from_pretrained(path, dtype=kind)
        if recompute:
            for model in (language, trunk):
                model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
                model.train()
        self._policy, self._value = (
            deepspeed.initialize(
                model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True), config=config
            )[0]
            for model in (Policy(language), Critic(trunk))
        )

    def update(self, steps: Sequence[Sequence[Batch]]) -> float:
        """Take an optimizer step of policy and critic over each list of micro-batches. Returns the seconds."""
        begun = time.perf_counter()
        for batches in steps:
            for batch in batches:
                tokens, positions, targets = self._on_device(batch)
                logits = self._policy(tokens, positions)
                self._policy.backward(nn.functional.cross_entropy(logits.float(), targets))
            self._policy.step()
            for batch in batches:
                tokens, positions, _ = self._on_device(batch)
                self._value.backward(self._value(tokens, positions).float().square().mean())
            self._value.step()
        return self._since(begun)

    @torch.no_grad()
    def score(self, batches: Sequence[Batch]) -> float:
        """Compute log-probabilities and values of all micro-batches. Returns the seconds."""
        begun = time.perf_counter()
        for batch in batches:
            tokens, positions, targets = self._on_device(batch)
            logits = self._policy(tokens, positions)
            torch.log_softmax(logits.float(), -1).gather(1, targets[:, None]).cpu()
            self._value(tokens, positions).cpu()
        return self._since(begun)

    def _on_device(self, batch: Batch) -> list[Tensor]:
        return [tensor.to(self._device) for tensor in batch]

    def _since(self, begun: float) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begun
