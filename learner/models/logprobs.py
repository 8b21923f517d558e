"""Log-probabilities and entropies of chosen tokens from their logits [N, V], with their own backward pass: torch's
functions would need six more tensors of that size. Invariant: a row's results depend on that row alone, bit for bit."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CPU_BLOCK = 2**18  # logits handled at once on CPU (fp32: 1 MB): intermediate results then stay in a core's cache


class TokenLogprobs(torch.autograd.Function):
    """(logits [N, V], targets [N], temperature, training) -> log-probabilities and entropies [N]. With `training` the
    forward pass writes the probabilities over the logits, and the only backward pass the gradient over these."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, logits: Tensor, targets: Tensor, temperature: float, training: bool
    ) -> tuple[Tensor, Tensor]:
        """Save the probabilities only, and nothing without `training`."""
        logprobs = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
        entropies = torch.full_like(logprobs, torch.nan)
        saved = logits.detach() if training else logits.new_empty(0)
        for rows in _blocks(logits):
            scaled = logits[rows].float() if temperature == 1.0 else logits[rows].float() / temperature
            logs = torch.log_softmax(scaled, dim=-1)
            logprobs[rows] = logs.gather(1, targets[rows, None])[:, 0]
            if training:
                probabilities = logs.exp()
                entropies[rows] = -torch.linalg.vecdot(probabilities, logs)
                saved[rows] = probabilities
        ctx.save_for_backward(saved, targets, logprobs, entropies)
        ctx.set_materialize_grads(False)
        ctx.temperature = temperature
        return logprobs, entropies

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, of_logprobs: Tensor | None, of_entropies: Tensor | None) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        """With p = softmax(z / T): d log p_t / dz_j = (1[j = t] - p_j) / T, and d H / dz_j = -p_j (log p_j + H) / T.
        The target's own p_t comes from its log-probability: in bf16 1 - p_t of a likely token would be 0."""
        probabilities, targets, logprobs, entropies = ctx.saved_tensors
        outer = torch.zeros_like(entropies) if of_logprobs is None else of_logprobs / ctx.temperature
        for rows in _blocks(probabilities):
            p, weight = probabilities[rows].float(), outer[rows, None]
            p.scatter_(1, targets[rows, None], logprobs[rows, None].exp())
            bonus = None
            if of_entropies is not None:
                factor = of_entropies[rows, None] / ctx.temperature
                bonus = (torch.special.entr(p) - p * entropies[rows, None]) * factor
            p.mul_(-weight).scatter_add_(1, targets[rows, None], weight)
            if bonus is not None:
                p.add_(bonus)
            if p.dtype is not probabilities.dtype:  # else p is a part of them
                probabilities[rows] = p
        return probabilities, None, None, None


def token_logprobs(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the targets and entropies [N] fp32 of softmax(logits / temperature), from logits [N, V].
    Without gradients the entropies are NaN. With them the logits are overwritten: nothing else may read them."""
    training = torch.is_grad_enabled() and logits.requires_grad
    logprobs, entropies = TokenLogprobs.apply(logits, targets, temperature, training)
    return logprobs, entropies


def _blocks(logits: Tensor) -> Iterator[slice]:
    """Slices of rows: as many as fit the cache of a CPU, all on a GPU."""
    size = max(1, CPU_BLOCK // logits.shape[1]) if logits.device.type == "cpu" else max(1, len(logits))
    return (slice(begin, begin + size) for begin in range(0, len(logits), size))
