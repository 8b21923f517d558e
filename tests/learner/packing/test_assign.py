from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.packing.assign import CPU_OVERHEAD, GPU_OVERHEAD, Assignment, assign_packed, assign_padded

LENGTHS = st.lists(st.integers(2, 400), min_size=1, max_size=60)


@given(LENGTHS, st.integers(50, 4000), st.integers(1, 5))
def test_every_row_once_within_the_budget_and_as_many_micro_batches_on_every_rank(
    lengths: list[int], budget: int, ranks: int
) -> None:
    assignment = assign_padded(lengths, budget, ranks)
    assert len(assignment) == ranks
    assert len({len(groups) for groups in assignment}) == 1
    assert sorted(int(row) for groups in assignment for group in groups for row in group) == list(range(len(lengths)))
    for group in (group for groups in assignment for group in groups if len(group) > 1):
        assert max(lengths[row] for row in group) * len(group) <= budget


def loads(assignment: Assignment, lengths: list[int]) -> list[int]:
    """Tokens that each rank reads, padding included."""
    return [sum(max(lengths[r] for r in g) * len(g) for g in groups if len(g)) for groups in assignment]


@pytest.mark.parametrize("overhead", [CPU_OVERHEAD, GPU_OVERHEAD])
@pytest.mark.parametrize(("rows", "ranks"), [(256, 4), (256, 8), (128, 4), (64, 2)])
def test_ranks_get_like_loads(rows: int, ranks: int, overhead: int) -> None:
    lengths = gsm8k(rows)
    busy = loads(assign_padded(lengths, 16_384, ranks, overhead), lengths)
    assert max(busy) <= 1.05 * sum(busy) / ranks


def test_rows_that_fit_one_micro_batch_are_shared_out() -> None:
    lengths = [400] * 20 + [
        100
    ]  # the least tokens: all of one width together, 8,000 for one rank and 100 for the other
    busy = loads(assign_padded(lengths, 8192, 2), lengths)
    assert max(busy) <= 4400


@given(st.lists(st.integers(2, 400), min_size=1, max_size=7), st.integers(400, 2000), st.integers(0, 600))
def test_the_busiest_rank_is_done_before_that_of_any_cut_into_two(
    lengths: list[int], budget: int, overhead: int
) -> None:
    assignment = assign_padded(lengths, budget, 2, overhead)
    needed = max(loads(assignment, lengths)) + overhead * len(assignment[0])
    rows = sorted(lengths, reverse=True)
    for at in range(len(rows) + 1):
        costs = [max(part) * len(part) for part in (rows[:at], rows[at:]) if part]
        if max(costs) <= budget:
            assert needed <= max(costs) + overhead


def test_empty_micro_batches_only_when_rows_run_out() -> None:
    assignment = assign_padded([10, 10, 10], 1000, 2)  # one group, split in two for two ranks
    assert sorted(len(group) for groups in assignment for group in groups) == [1, 2]
    assignment = assign_padded([10], 1000, 3)
    assert sorted(len(group) for groups in assignment for group in groups) == [0, 0, 1]


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
    ((*got,),) = (
        [[lengths[i] for i in group] for group in rank] for rank in assign_padded(lengths, budget, 1, overhead)
    )
    assert cost(got) == min(every)


def test_padding_of_a_wide_mix_of_lengths_is_small() -> None:
    lengths = gsm8k(512)
    for ranks in (1, 4):
        assert 1 - sum(lengths) / sum(loads(assign_padded(lengths, 8192, ranks), lengths)) <= 0.05


def gsm8k(rows: int) -> list[int]:
    """Lengths like those of GSM8K's responses."""
    lengths: list[int] = np.random.default_rng(0).lognormal(5.0, 0.5, rows).astype(int).clip(8, 600).tolist()
    return lengths


def test_the_same_lengths_give_the_same_cut() -> None:
    lengths = [5, 9, 5, 7, 9, 5] * 20
    first, second = assign_padded(lengths, 64, 2), assign_padded(lengths, 64, 2)
    assert all(np.array_equal(a, b) for x, y in zip(first, second, strict=True) for a, b in zip(x, y, strict=True))


@given(st.lists(st.integers(2, 60), min_size=1, max_size=40), st.integers(20, 200), st.integers(1, 4))
def test_packed_assignments_hold_every_row_once_within_the_budget(lengths: list[int], budget: int, ranks: int) -> None:
    assignment = assign_packed(lengths, budget, ranks)
    assert sorted(int(row) for rank in assignment for group in rank for row in group) == list(range(len(lengths)))
    assert len({len(rank) for rank in assignment}) == 1
    for group in (group for rank in assignment for group in rank):
        assert len(group) <= 1 or sum(lengths[row] for row in group) <= budget


def test_packed_assignments_are_few_and_even() -> None:
    """12 rows of 100 tokens, budget 350, 2 ranks: 1,200 / 350 = 4 groups of 3 rows, 2 for each rank."""
    assignment = assign_packed([100] * 12, 350, 2)
    assert [[len(group) for group in rank] for rank in assignment] == [[3, 3], [3, 3]]
