"""Which attention a model runs with, and torch's variable-length kernel for rows packed into one line.

`learner.distributed.worker` chooses; `learner.models.pretrained` passes the bounds of the rows along. The kernel
(`torch.nn.attention.varlen`) serves GPUs in bf16 without the package flash-attn. Invariants: rows do not see each other;
nothing of size [T, T] is made.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface
from transformers.utils import is_flash_attn_2_available

from learner.models.pretrained import read_config

Attention = Literal["sdpa", "flash_attention_2", "torch_varlen"]
"""Only the last two read packed rows without a [T, T] mask."""

Kernel = Callable[..., Any]
"""(query, key, value [T, heads, D], bounds, bounds, longest, longest, *, scale, window_size, enable_gqa) -> [T, heads, D]"""


def choose_attention(path: str | Path, device: str, dtype: torch.dtype) -> Attention:
    """Attention over packed rows on GPUs in bf16, by flash-attn or else by torch; over padded rows everywhere else.

    Registers torch's kernel with transformers if it is chosen. Raises ModelError when the model's configuration cannot be read.
    """
    if device != "cuda" or dtype is not torch.bfloat16:
        return "sdpa"
    if is_flash_attn_2_available():
        return "flash_attention_2"
    config = read_config(path).get_text_config()
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    if not kernel_runs(device, heads, getattr(config, "num_key_value_heads", None) or heads, size):
        return "sdpa"
    register(varlen_attn)
    return "torch_varlen"


def kernel_runs(device: str, heads: int, key_value_heads: int, size: int) -> bool:
    """Whether this device and this build of torch have the kernel for such heads in bf16."""
    bounds = torch.tensor([0, 5, 8], dtype=torch.int32, device=device)
    query, key, value = (
        torch.ones(8, count, size, device=device, dtype=torch.bfloat16, requires_grad=True)
        for count in (heads, key_value_heads, key_value_heads)
    )
    try:
        out = varlen_attn(
            query, key, value, bounds, bounds, 5, 5, window_size=(-1, 0), enable_gqa=heads != key_value_heads
        )
        out.sum().backward()  # type: ignore[union-attr]  # without return_aux it is a tensor
    except (RuntimeError, NotImplementedError):
        return False
    return True


def register(kernel: Kernel) -> None:
    """Register `kernel` with transformers as "torch_varlen"."""

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
        **more: Any,
    ) -> tuple[Tensor, None]:
        """query [1, heads, T, D], key and value [1, key-value heads, T, D] -> [1, T, heads, D]."""
        if more.get("softcap") is not None or more.get("s_aux") is not None:
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

    AttentionInterface.register("torch_varlen", attention)
