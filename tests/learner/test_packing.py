from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.records import IntArray
from learner.packing.plan import CPU_OVERHEAD, GPU_OVERHEAD, plan

LENGTHS = st.lists(st.integers(2, 400), min_size=1, max_size=60)


@given(LENGTHS, st.integers(50, 4000), st.integers(1, 5))
def test_every_row_once_within_the_budget_and_as_many_micro_batches_on_every_rank(
    lengths: list[int], budget: int, ranks: int
) -> None:
    cut = plan(lengths, budget, ranks)
    assert len(cut) == ranks
    assert len({len(groups) for groups in cut}) == 1
    assert sorted(int(row) for groups in cut for group in groups for row in group) == list(range(len(lengths)))
    for group in (group for groups in cut for group in groups if len(group) > 1):
        assert max(lengths[row] for row in group) * len(group) <= budget


def loads(cut: list[list[IntArray]], lengths: list[int]) -> list[int]:
    """Tokens that each rank reads, padding included."""
    return [sum(max(lengths[r] for r in g) * len(g) for g in groups if len(g)) for groups in cut]


@pytest.mark.parametrize("overhead", [CPU_OVERHEAD, GPU_OVERHEAD])
@pytest.mark.parametrize(("rows", "ranks"), [(256, 4), (256, 8), (128, 4), (64, 2)])
def test_ranks_get_like_loads(rows: int, ranks: int, overhead: int) -> None:
    lengths = gsm8k(rows)
    busy = loads(plan(lengths, 16_384, ranks, overhead), lengths)
    assert max(busy) <= 1.05 * sum(busy) / ranks


def test_rows_that_fit_one_micro_batch_are_shared_out() -> None:
    lengths = [400] * 20 + [
        100
    ]  # the least tokens: all of one width together, 8,000 for one rank and 100 for the other
    busy = loads(plan(lengths, 8192, 2), lengths)
    assert max(busy) <= 4400


@given(st.lists(st.integers(2, 400), min_size=1, max_size=7), st.integers(400, 2000), st.integers(0, 600))
def test_the_busiest_rank_is_done_before_that_of_any_cut_into_two(
    lengths: list[int], budget: int, overhead: int
) -> None:
    cut = plan(lengths, budget, 2, overhead)
    needed = max(loads(cut, lengths)) + overhead * len(cut[0])
    rows = sorted(lengths, reverse=True)
    for at in range(len(rows) + 1):
        costs = [max(part) * len(part) for part in (rows[:at], rows[at:]) if part]
        if max(costs) <= budget:
            assert needed <= max(costs) + overhead


def test_empty_micro_batches_only_when_rows_run_out() -> None:
    cut = plan([10, 10, 10], 1000, 2)  # one group, split in two for two ranks
    assert sorted(len(group) for groups in cut for group in groups) == [1, 2]
    cut = plan([10], 1000, 3)
    assert sorted(len(group) for groups in cut for group in groups) == [0, 0, 1]


@given(st.lists(st.integers(2, 40), min_size=1, max_size=7), st.integers(40, 120), st.integers(0, 60))
def test_the_cut_costs_least_of_all_cuts_of_the_sorted_rows(lengths: list[int], budget: int, overhead: int) -> None:
    def cost(groups: list[list[int]]) -> int:
        return sum(max(group) * len(group) + overhead for group in groups)

    rows = sorted(lengths, reverse=True)
    every = []
    for places in product([False, True], repeat=len(rows) - 1):
        groups = [[rows[0]]]
        for row, new in zip(rows[1:], places, strict=True):
            groups.append([row]) if new else groups[-1].append(row)
        if all(max(group) * len(group) <= budget for group in groups):
            every.append(cost(groups))
    ((*got,),) = ([[lengths[i] for i in group] for group in rank] for rank in plan(lengths, budget, 1, overhead))
    assert cost(got) == min(every)


def test_padding_of_a_wide_mix_of_lengths_is_small() -> None:
    lengths = gsm8k(512)
    for ranks in (1, 4):
        assert 1 - sum(lengths) / sum(loads(plan(lengths, 8192, ranks), lengths)) <= 0.05


def gsm8k(rows: int) -> list[int]:
    """Lengths like those of GSM8K's responses."""
    lengths: list[int] = np.random.default_rng(0).lognormal(5.0, 0.5, rows).astype(int).clip(8, 600).tolist()
    return lengths


def test_the_same_lengths_give_the_same_cut() -> None:
    lengths = [5, 9, 5, 7, 9, 5] * 20
    first, second = plan(lengths, 64, 2), plan(lengths, 64, 2)
    assert all(np.array_equal(a, b) for x, y in zip(first, second, strict=True) for a, b in zip(x, y, strict=True))
