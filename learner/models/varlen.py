"""Attention over rows that lie one after the other, by torch's own variable-length kernel (`torch.nn.attention.varlen`).

An attention function of transformers under the name NAME, for GPUs in bf16 without the package flash-attn. `learner.models` passes the
spans of the rows along. Invariants: rows do not see each other; nothing of size [T, T] is made. `works` tries the kernel against
torch's plain attention before a run relies on it: GPUs, and builds of torch, are many.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface

NAME = "torch_varlen"
TOLERANCE = 3e-2
"""Of the trial in `works`, relative to the largest number: a few roundings of bf16."""

Kernel = Callable[..., Any]
"""(query, key, value [T, heads, D], bounds, bounds, longest, longest, *, scale, window_size, enable_gqa) -> [T, heads, D]"""


def spans(places: Tensor | None) -> dict[str, Any]:
    """Where rows begin and end in one line, in the words of transformers' attention functions; nothing for padded rows.

    `places`: of the tokens [1, T], each row's from 0. cu_seq_lens_q: bounds [rows + 1]; max_length_q: tokens of the longest row.
    """
    if places is None:
        return {}
    ends = torch.tensor([places.shape[1]], device=places.device)
    bounds = torch.cat([(places[0] == 0).nonzero()[:, 0], ends])
    return {"cu_seq_lens_q": bounds.to(torch.int32), "max_length_q": int(bounds.diff().max())}


def register(kernel: Kernel) -> None:
    """Make NAME known to transformers, computed by `kernel`."""

    def attention(
        _: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        __: Tensor | None,
        *,
        cu_seq_lens_q: Tensor,
        max_length_q: int,
        scaling: float | None = None,
        sliding_window: int | None = None,
        softcap: float | None = None,
        s_aux: Tensor | None = None,
        **___: Any,
    ) -> tuple[Tensor, None]:
        """query [1, heads, T, D], key and value [1, key-value heads, T, D] -> [1, T, heads, D]."""
        if softcap is not None or s_aux is not None:
            raise ValueError("torch's attention for packed rows has no soft cap and no sinks; install flash-attn")
        line = [tensor[0].transpose(0, 1) for tensor in (query, key, value)]
        out = kernel(
            *line,
            cu_seq_lens_q,
            cu_seq_lens_q,
            max_length_q,
            max_length_q,
            scale=scaling,
            window_size=(-1 if sliding_window is None else sliding_window - 1, 0),
            enable_gqa=query.shape[1] != key.shape[1],
        )
        return out[None], None

    AttentionInterface.register(NAME, attention)


def segments(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bounds: Tensor,
    _: Tensor,
    __: int,
    ___: int,
    *,
    scale: float | None,
    window_size: tuple[int, int],
    enable_gqa: bool,
) -> Tensor:
    """What the kernel computes, row by row with torch's plain attention: what it is tried against. No sliding window."""
    assert window_size == (-1, 0)

    def rows() -> Iterator[Tensor]:
        for begin, end in pairwise(bounds.tolist()):
            q, k, v = (tensor[begin:end].transpose(0, 1)[None] for tensor in (query, key, value))
            row = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=enable_gqa)
            yield row[0].transpose(0, 1)

    return torch.cat(list(rows()))


def works(device: str, heads: int, key_value_heads: int, size: int) -> bool:
    """Whether torch's kernel gives the numbers and gradients of `segments` for such heads in bf16 on this device."""
    try:
        found = [_trial(kernel, device, heads, key_value_heads, size) for kernel in (varlen_attn, segments)]
    except (RuntimeError, NotImplementedError):  # this device, or this build, has no such kernel
        return False
    return all(
        float((ours - theirs).abs().max()) <= TOLERANCE * float(theirs.abs().max())
        for ours, theirs in zip(*found, strict=True)
    )


def _trial(kernel: Kernel, device: str, heads: int, key_value_heads: int, size: int) -> list[Tensor]:
    """Output and gradients of three rows."""
    generator = torch.Generator().manual_seed(0)
    bounds = torch.tensor([0, 37, 38, 150], dtype=torch.int32, device=device)
    line = [
        torch.randn(150, count, size, generator=generator).to(device, torch.bfloat16).requires_grad_()
        for count in (heads, key_value_heads, key_value_heads)
    ]
    options: dict[str, Any] = {"scale": size**-0.5, "window_size": (-1, 0), "enable_gqa": heads != key_value_heads}
    out = kernel(*line, bounds, bounds, 112, 112, **options)
    return [out.detach().float(), *(g.float() for g in torch.autograd.grad(out.float().square().sum(), line))]
