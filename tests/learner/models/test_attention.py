"""Rows packed into one line: the same numbers as padded ones, through torch's attention with a block-diagonal mask."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from learner.models.attention import Attention, choose_attention, kernel_runs, register
from learner.models.pretrained import (
    load_policy,
    load_shared,
    load_value,
    recompute_activations,
    row_bounds,
)
from learner.packing.batch import Row, micro_batch
from tests.learner.models.test_pretrained import ROWS, tensors


def packed(rows: list[Row]) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
    b = micro_batch(rows, packed=True)
    assert b.position_ids is not None
    return (torch.from_numpy(b.tokens), torch.from_numpy(b.state_index), torch.from_numpy(b.targets)), torch.from_numpy(
        b.position_ids
    )


def row_by_row(
    query: Tensor, key: Tensor, value: Tensor, bounds: Tensor, *_: Any, scale: float, enable_gqa: bool, **__: Any
) -> Tensor:
    """What torch's variable-length kernel computes, by torch's plain attention."""
    rows = []
    for begin, end in pairwise(bounds.tolist()):
        q, k, v = (tensor[begin:end].transpose(0, 1)[None] for tensor in (query, key, value))
        row = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=enable_gqa)
        rows.append(row[0].transpose(0, 1))
    return torch.cat(rows)


def test_the_line_by_hand() -> None:
    b = micro_batch([Row(np.array([5, 6, 7], np.int32), 2), Row(np.array([8, 9], np.int32), 1)], packed=True)
    assert b.tokens.tolist() == [[5, 6, 7, 8, 9]]
    assert b.position_ids is not None
    assert b.position_ids.tolist() == [[0, 1, 2, 0, 1]]
    assert b.state_index.tolist() == [1, 3]  # token 6 is before 7, token 8 before 9
    assert b.targets.tolist() == [7, 9]
    rows = row_bounds(torch.from_numpy(b.position_ids))
    assert (rows["cu_seq_lens_q"].tolist(), rows["max_length_q"]) == ([0, 3, 5], 3)


@pytest.mark.parametrize("attention", ["sdpa", "torch_varlen"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_packed_rows_give_the_log_probabilities_values_and_gradients_of_padded_ones(
    tiny_model: Callable[[bool], Path], checkpointing: bool, attention: Attention
) -> None:
    """With torch's variable-length kernel replaced by a loop over the rows: it runs on GPUs only."""
    register(row_by_row)
    line, position_ids = packed(ROWS)
    results = []
    for inputs, how, options in ((tensors(ROWS), "sdpa", {}), (line, attention, {"position_ids": position_ids})):
        model = load_shared(tiny_model(True), torch.float32, attention=how)
        torch.nn.init.constant_(model.head.weight, 0.5)
        if checkpointing:
            recompute_activations(model)
        logprobs, entropy, values = model(*inputs, 0.7, **options)
        (logprobs.square().sum() + values.square().sum()).backward()
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        results.append([logprobs.detach(), entropy.detach(), values.detach(), *gradients])
    for padded_one, packed_one in zip(*results, strict=True):
        assert float((packed_one - padded_one).norm() / padded_one.norm().clamp(min=1e-3)) < 1e-5


def test_a_row_does_not_see_the_one_before_it(tiny_model: Callable[[bool], Path]) -> None:
    """Without the position_ids it would: the test notices a mask that is missing."""
    policy, value = load_policy(tiny_model(True), torch.float32), load_value(tiny_model(True), torch.float32)
    torch.nn.init.normal_(value.head.weight)
    other = [Row(ROWS[0].tokens[::-1].copy(), ROWS[0].context), *ROWS[1:]]
    last = slice(-ROWS[2].scored - ROWS[1].scored, None)
    with torch.no_grad():
        (first, position_ids), (second, _) = packed(ROWS), packed(other)
        for model, arguments in ((policy, (1.0,)), (value, ())):
            a, b, blind_a, blind_b = (
                model(*(line if model is policy else line[:2]), *arguments, **options)
                for options in ({"position_ids": position_ids}, {})
                for line in (first, second)
            )
            if model is policy:
                a, b, blind_a, blind_b = a[0], b[0], blind_a[0], blind_b[0]
            torch.testing.assert_close(a[last], b[last], atol=1e-6, rtol=0)
            assert float((blind_a - blind_b)[last].abs().max()) > 1e-3


def test_packed_attention_needs_a_gpu_bf16_and_a_kernel(
    tiny_model: Callable[[bool], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_model(True)
    assert choose_attention(path, "cpu", torch.bfloat16) == "sdpa"
    assert choose_attention(path, "cuda", torch.float32) == "sdpa"
    for flash, kernel, expected in (
        (True, True, "flash_attention_2"),
        (False, True, "torch_varlen"),
        (False, False, "sdpa"),
    ):
        monkeypatch.setattr("learner.models.attention.is_flash_attn_2_available", lambda flash=flash: flash)
        monkeypatch.setattr("learner.models.attention.kernel_runs", lambda *_, kernel=kernel: kernel)
        assert choose_attention(path, "cuda", torch.bfloat16) == expected


def test_torchs_own_kernel_is_not_relied_on_where_it_does_not_run() -> None:
    assert not kernel_runs("cpu", heads=2, key_value_heads=1, size=16)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch's kernel runs on GPUs only")
def test_torchs_own_kernel_gives_the_numbers_and_gradients_of_plain_attention() -> None:
    assert kernel_runs("cuda", heads=4, key_value_heads=2, size=64)
    bounds = torch.tensor([0, 37, 38, 150], dtype=torch.int32, device="cuda")
    line = [torch.randn(150, heads, 64, device="cuda").bfloat16().requires_grad_() for heads in (4, 2, 2)]
    found = []
    kernels: list[Any] = [varlen_attn, row_by_row]
    for kernel in kernels:
        out = kernel(*line, bounds, bounds, 112, 112, scale=0.125, window_size=(-1, 0), enable_gqa=True)
        found.append([out, *torch.autograd.grad(out.float().square().sum(), line)])
    for ours, theirs in zip(*found, strict=True):  # a few roundings of bf16
        assert float((ours - theirs).abs().max()) <= 3e-2 * float(theirs.abs().max())
