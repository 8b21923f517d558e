"""The loop that `bench.learner` compares with: plain torch without PPO and DeepSpeed, as one would write it by hand. It
has the learner's passes (forward, backward and step of the policy, and of a separate critic if there is one) over the
plain rows, padded, rows of like length together. Its losses are a log-likelihood and a squared error."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from learner.packing.micro_batches import Row

Batch = tuple[Tensor, Tensor, Tensor]
"""Rows one below the other: tokens [B, T]; positions [N] of the states before scored tokens, in B * T; targets [N]."""


def padded_batches(rows: Sequence[Row], budget: int) -> list[Batch]:
    """The micro-batches of some rows, the longest first; `budget`: tokens of one, padding included."""
    batches, left = [], sorted(rows, key=lambda row: -len(row.tokens))
    while left:
        width = len(left[0].tokens)
        members = left[: max(1, budget // width)]
        del left[: len(members)]
        tokens = np.zeros((len(members), width), np.int64)
        for b, row in enumerate(members):
            tokens[b, : len(row.tokens)] = row.tokens
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


class Optimizer:
    """AdamW with clipped gradients; a bf16 model has fp32 weights here, as in DeepSpeed."""

    def __init__(self, model: nn.Module) -> None:
        self._own = list(model.parameters())
        self._masters = [p if p.dtype is torch.float32 else p.detach().float() for p in self._own]
        self._adam = torch.optim.AdamW(self._masters, lr=1e-6, fused=True)

    def step(self) -> None:
        """Apply the accumulated gradients and forget them."""
        for own, master in zip(self._own, self._masters, strict=True):
            if own is not master and own.grad is not None:
                master.grad, own.grad = own.grad.float(), None
        nn.utils.clip_grad_norm_(self._masters, 1.0)
        self._adam.step()
        self._adam.zero_grad()
        with torch.no_grad():
            for own, master in zip(self._own, self._masters, strict=True):
                if own is not master:
                    own.copy_(master)


class BareLoop:
    """The models with an optimizer each, and the shortest loop over them."""

    def __init__(self, path: str, device: str, dtype: str, recompute: bool = False, critic: bool = True) -> None:
        from transformers import AutoModel, AutoModelForCausalLM

        self._device = torch.device(device)
        kinds = (AutoModelForCausalLM, AutoModel) if critic else (AutoModelForCausalLM,)
        models = [kind.from_pretrained(path, dtype=getattr(torch, dtype)).to(self._device) for kind in kinds]
        if recompute:
            for model in models:
                model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
                model.train()
        self._policy = Policy(models[0])
        self._value = Critic(models[1]).to(device=self._device, dtype=models[1].dtype) if critic else None
        self._optimizers = [Optimizer(model) for model in (self._policy, self._value) if model is not None]

    def update(self, steps: Sequence[Sequence[Batch]]) -> float:
        """Take an optimizer step of all models over each list of micro-batches. Returns the seconds."""
        begun = time.perf_counter()
        for batches in steps:
            for batch in batches:
                tokens, positions, targets = self._on_device(batch)
                logits = self._policy(tokens, positions)
                nn.functional.cross_entropy(logits.float(), targets).backward()
            for batch in batches:
                if self._value is not None:
                    tokens, positions, _ = self._on_device(batch)
                    self._value(tokens, positions).float().square().mean().backward()
            for optimizer in self._optimizers:
                optimizer.step()
        return self._since(begun)

    @torch.no_grad()
    def score(self, batches: Sequence[Batch]) -> float:
        """Compute log-probabilities and values of all micro-batches. Returns the seconds."""
        begun = time.perf_counter()
        for batch in batches:
            tokens, positions, targets = self._on_device(batch)
            logits = self._policy(tokens, positions)
            torch.log_softmax(logits.float(), -1).gather(1, targets[:, None]).cpu()
            if self._value is not None:
                self._value(tokens, positions).cpu()
        return self._since(begun)

    def _on_device(self, batch: Batch) -> list[Tensor]:
        return [tensor.to(self._device) for tensor in batch]

    def _since(self, begun: float) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begun
