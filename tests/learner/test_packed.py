"""Rows packed into one line: the same numbers as padded ones, through torch's attention with a block-diagonal mask."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from learner.models.policy_value import (
    Attention,
    attention_kernel,
    load_policy,
    load_shared,
    load_value,
    recompute_activations,
)
from learner.models.varlen import register, segments, spans, works
from learner.packing.batch import Row, micro_batch
from learner.packing.plan import plan_packed
from tests.learner.test_models import ROWS, tensors


def packed(rows: list[Row]) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
    b = micro_batch(rows, packed=True)
    assert b.places is not None
    return (torch.from_numpy(b.tokens), torch.from_numpy(b.positions), torch.from_numpy(b.targets)), torch.from_numpy(
        b.places
    )


def test_the_line_by_hand() -> None:
    b = micro_batch([Row(np.array([5, 6, 7], np.int32), 2), Row(np.array([8, 9], np.int32), 1)], packed=True)
    assert b.tokens.tolist() == [[5, 6, 7, 8, 9]]
    assert b.places is not None
    assert b.places.tolist() == [[0, 1, 2, 0, 1]]
    assert b.positions.tolist() == [1, 3]  # token 6 is before 7, token 8 before 9
    assert b.targets.tolist() == [7, 9]
    assert b.counts.tolist() == [1, 1]
    rows = spans(torch.from_numpy(b.places))
    assert (rows["cu_seq_lens_q"].tolist(), rows["max_length_q"]) == ([0, 3, 5], 3)


@pytest.mark.parametrize("attention", ["sdpa", "torch_varlen"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_packed_rows_give_the_log_probabilities_values_and_gradients_of_padded_ones(
    tiny_model: Callable[[bool], Path], checkpointing: bool, attention: Attention
) -> None:
    """With torch's variable-length kernel replaced by a loop over the rows: it runs on GPUs only."""
    register(segments)
    line, places = packed(ROWS)
    results = []
    for inputs, how, options in ((tensors(ROWS), "sdpa", {}), (line, attention, {"places": places})):
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
    """Without the places it would: the test notices a mask that is missing."""
    policy, value = load_policy(tiny_model(True), torch.float32), load_value(tiny_model(True), torch.float32)
    torch.nn.init.normal_(value.head.weight)
    other = [Row(ROWS[0].tokens[::-1].copy(), ROWS[0].context), *ROWS[1:]]
    last = slice(-ROWS[2].scored - ROWS[1].scored, None)
    with torch.no_grad():
        (first, places), (second, _) = packed(ROWS), packed(other)
        for model, arguments in ((policy, (1.0,)), (value, ())):
            a, b, blind_a, blind_b = (
                model(*(line if model is policy else line[:2]), *arguments, **options)
                for options in ({"places": places}, {})
                for line in (first, second)
            )
            if model is policy:
                a, b, blind_a, blind_b = a[0], b[0], blind_a[0], blind_b[0]
            torch.testing.assert_close(a[last], b[last], atol=1e-6, rtol=0)
            assert float((blind_a - blind_b)[last].abs().max()) > 1e-3


def test_packed_attention_needs_a_gpu_bf16_and_a_kernel() -> None:
    def kernel(device: str, dtype: torch.dtype, flash: bool, varlen: bool) -> str:
        return attention_kernel(device, dtype, flash, lambda: varlen)

    assert kernel("cuda", torch.bfloat16, flash=True, varlen=True) == "flash_attention_2"
    assert kernel("cuda", torch.bfloat16, flash=False, varlen=True) == "torch_varlen"
    assert kernel("cuda", torch.bfloat16, flash=False, varlen=False) == "sdpa"
    assert kernel("cuda", torch.float32, flash=True, varlen=True) == "sdpa"
    assert kernel("cpu", torch.bfloat16, flash=True, varlen=True) == "sdpa"


def test_torchs_own_kernel_is_not_relied_on_where_it_does_not_run() -> None:
    assert not works("cpu", heads=2, key_value_heads=1, size=16)


@given(st.lists(st.integers(2, 60), min_size=1, max_size=40), st.integers(20, 200), st.integers(1, 4))
def test_packed_cuts_hold_every_row_once_within_the_budget(lengths: list[int], budget: int, ranks: int) -> None:
    cut = plan_packed(lengths, budget, ranks)
    assert sorted(int(row) for rank in cut for group in rank for row in group) == list(range(len(lengths)))
    assert len({len(rank) for rank in cut}) == 1
    for group in (group for rank in cut for group in rank):
        assert len(group) <= 1 or sum(lengths[row] for row in group) <= budget


def test_packed_cuts_are_few_and_even() -> None:
    """12 rows of 100 tokens, budget 350, 2 ranks: 1,200 / 350 = 4 groups of 3 rows, 2 for each rank."""
    cut = plan_packed([100] * 12, 350, 2)
    assert [[len(group) for group in rank] for rank in cut] == [[3, 3], [3, 3]]
