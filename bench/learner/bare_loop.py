"""The loop that `bench.learner` compares with: torch and DeepSpeed without PPO, as one would write it by hand.

It has the learner's models and passes (forward, backward and step of policy and critic). Its losses are a log-likelihood and a
squared error. It runs as a Ray actor.
"""

import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from learner.distributed.actor_critic import StepPlan
from learner.models.attention import choose_attention
from learner.models.pretrained import row_bounds
from learner.packing.batch import MicroBatch, TrainBatch


class Policy(nn.Module):
    """A causal language model and the log-likelihood of chosen tokens."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, places: Tensor | None, positions: Tensor) -> Tensor:
        """Logits [N, V] at `positions` of [B, T]; `places` are the position_ids of `learner.packing.batch.MicroBatch`."""
        hidden = hidden_states(self.model.get_decoder(), tokens, places)
        logits: Tensor = self.model.get_output_embeddings()(hidden.flatten(0, 1)[positions])
        return logits


class Critic(nn.Module):
    """Trunk and scalar head."""

    def __init__(self, trunk: Any) -> None:
        super().__init__()
        self.trunk, self.head = trunk, nn.Linear(trunk.config.hidden_size, 1)

    def forward(self, tokens: Tensor, places: Tensor | None) -> Tensor:
        """[B, T] -> [B, T]; `places` are the position_ids of `learner.packing.batch.MicroBatch`."""
        values: Tensor = self.head(hidden_states(self.trunk, tokens, places))
        return values[..., 0]


def hidden_states(decoder: Any, tokens: Tensor, places: Tensor | None) -> Tensor:
    """[B, T] -> [B, T, H]."""
    out = decoder(input_ids=tokens, position_ids=places, use_cache=False, **row_bounds(places))
    hidden: Tensor = out.last_hidden_state
    return hidden


class BareLoop:
    """Two DeepSpeed engines and the shortest loop over them."""

    def __init__(self, path: str, device: str, dtype: str, recompute: bool = False, zero_stage: int = 0) -> None:
        import deepspeed
        from transformers import AutoModel, AutoModelForCausalLM

        os.environ.update(MASTER_ADDR="127.0.0.1", RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
        os.environ.setdefault("MASTER_PORT", "29477")
        kind = getattr(torch, dtype)
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
        flash = choose_attention(path, device, kind)
        language = AutoModelForCausalLM.from_pretrained(path, dtype=kind, attn_implementation=flash)
        trunk = AutoModel.from_pretrained(path, dtype=kind, attn_implementation=flash)
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

    def update(self, steps: Sequence[StepPlan]) -> float:
        """Take all optimizer steps of policy and critic. Returns the seconds."""
        begun = time.perf_counter()
        for step in steps:
            self._policy_step(step.batches)
            self._critic_step(step.batches)
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begun

    @torch.no_grad()
    def score(self, batches: Sequence[MicroBatch]) -> None:
        """Compute log-probabilities and values of all micro-batches."""
        for batch in batches:
            tokens, places, positions, targets = self._inputs(batch)
            logits = self._policy(tokens, places, positions)
            torch.log_softmax(logits.float(), -1).gather(1, targets[:, None]).cpu()
            self._value(tokens, places).flatten()[positions].cpu()

    def _policy_step(self, batches: Sequence[TrainBatch]) -> None:
        for batch in batches:
            tokens, places, positions, targets = self._inputs(batch.inputs)
            logits = self._policy(tokens, places, positions)
            self._policy.backward(nn.functional.cross_entropy(logits.float(), targets))
        self._policy.step()

    def _critic_step(self, batches: Sequence[TrainBatch]) -> None:
        for batch in batches:
            tokens, places, positions, _ = self._inputs(batch.inputs)
            values = self._value(tokens, places).flatten()[positions]
            self._value.backward(values.float().square().mean())
        self._value.step()

    def _inputs(self, inputs: MicroBatch) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        tokens, positions, targets = (
            torch.from_numpy(np.array(array)).to(self._device)
            for array in (inputs.tokens, inputs.state_index, inputs.targets)
        )
        places = (
            None if inputs.position_ids is None else torch.from_numpy(np.array(inputs.position_ids)).to(self._device)
        )
        return tokens, places, positions, targets
