"""Rows to micro-batches and ranks."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.records import IntArray, Start
from learner.packing.assign import Assignment, assign_steps, assign_steps_apart, assign_trees
from learner.packing.trees import line_of

LENGTHS = st.lists(st.integers(2, 400), min_size=1, max_size=60)
ROWS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=30)


def check_whole(assignment: Assignment, rows: int, ranks: int) -> None:
    """Every row once, and as many micro-batches on every rank."""
    assert len(assignment) == ranks
    assert len({len(groups) for groups in assignment}) == 1
    assert sorted(int(row) for groups in assignment for group in groups for row in group) == list(range(rows))


def read(rows: list[IntArray], group: IntArray) -> int:
    """Tokens of a micro-batch's line."""
    return len(line_of([rows[i] for i in group])[0]) if len(group) else 0


@given(st.integers(0, 40), st.integers(0, 20), st.integers(1, 8), st.integers(0, 9))
def test_imitated_rows_come_to_steps_that_are_otherwise_the_same(own: int, more: int, steps: int, seed: int) -> None:
    none = np.zeros(0, dtype=np.int32)
    starts = [Start(f"s{number // 4}", f"p{number // 4}", none, none, 4, 0, None) for number in range(own)]
    earlier = [Start(f"i{number}", f"q{number}", none, none, 1, 0, None) for number in range(more)]
    found = assign_steps_apart(starts, earlier, steps, np.random.default_rng(seed))
    alone = assign_steps(starts, steps, np.random.default_rng(seed))
    assert [step for step in ([row for row in rows if row < own] for rows in found) if step] == alone
    assert sorted(row for step in found for row in step) == list(range(own + more))
    counts = [sum(row >= own for row in step) for step in found]
    assert max(counts, default=0) - min(counts, default=0) <= 1


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.integers(1, 8), st.integers(0, 9))
def test_steps_are_even_and_keep_problems_and_starts_together(numbers: list[int], steps: int, seed: int) -> None:
    """Starts 0 and 1 are of problem 0, 2 and 3 of problem 1, and so on."""
    none = np.zeros(0, dtype=np.int32)
    starts = [Start(f"s{number}", f"p{number // 2}", none, none, 1, 0, None) for number in numbers]
    found = assign_steps(starts, steps, np.random.default_rng(seed))
    assert sorted(row for step in found for row in step) == list(range(len(numbers)))
    assert max(map(len, found)) - min(map(len, found)) <= 1
    for key in ("id", "problem_id"):
        order = [getattr(starts[row], key) for step in found for row in step]
        changes = sum(before != after for before, after in pairwise(order))
        assert changes == len(set(order)) - 1


def test_steps_are_drawn_anew() -> None:
    none = np.zeros(0, dtype=np.int32)
    starts = [Start(f"s{i}", f"p{i}", none, none, 1, 0, None) for i in range(12)]
    first, same, other = (assign_steps(starts, 3, np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert first == same != other


@given(ROWS, st.integers(1, 60), st.integers(1, 4))
def test_trees_fit_the_budget(tokens: list[list[int]], budget: int, ranks: int) -> None:
    rows = [np.array(row, dtype=np.int32) for row in tokens]
    assignment = assign_trees(rows, budget, ranks)
    check_whole(assignment, len(rows), ranks)
    assert all(len(group) < 2 or read(rows, group) <= budget for groups in assignment for group in groups)


def families(prompts: int, samples: int, prompt: int, response: int) -> list[IntArray]:
    """Rows of random tokens in random order; the samples of a prompt share it."""
    rng = np.random.default_rng(0)
    shared = [rng.integers(0, 1000, prompt) for _ in range(prompts)]
    rows = [np.concatenate([shared[i % prompts], rng.integers(0, 1000, response)]) for i in range(prompts * samples)]
    return [rows[i].astype(np.int32) for i in rng.permutation(len(rows))]


def test_samples_of_a_prompt_stay_together() -> None:
    """8 trees of 100 + 4 x 50 = 300 tokens, budget 1000, 2 ranks: 2 trees in each of 4 micro-batches."""
    rows = families(8, 4, 100, 50)
    assignment = assign_trees(rows, 1000, 2)
    assert [[read(rows, group) for group in groups] for groups in assignment] == [[600, 600], [600, 600]]


def test_a_tree_above_the_budget_is_cut_and_its_prefix_read_again() -> None:
    """100 + 8 x 50 = 500 tokens, budget 300: two micro-batches of 100 + 4 x 50."""
    rows = families(1, 8, 100, 50)
    assert [[read(rows, group) for group in groups] for groups in assign_trees(rows, 300, 1)] == [[300, 300]]


def test_rows_without_shared_tokens_are_few_and_even() -> None:
    """12 rows of 100 tokens, budget 350, 2 ranks: 1,200 / 350 = 4 groups of 3 rows, 2 for each rank."""
    assignment = assign_trees(families(12, 1, 50, 50), 350, 2)
    assert [[len(group) for group in rank] for rank in assignment] == [[3, 3], [3, 3]]


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_get_like_loads(ranks: int) -> None:
    rows = families(64, 4, 20, 30)
    busy = [sum(read(rows, group) for group in groups) for groups in assign_trees(rows, 8192, ranks)]
    assert max(busy) <= 1.05 * sum(busy) / ranks


def test_empty_micro_batches_only_when_rows_run_out() -> None:
    rows = families(3, 1, 5, 5)
    assert sorted(len(group) for groups in assign_trees(rows, 1000, 2) for group in groups) == [1, 2]
    assert sorted(len(group) for groups in assign_trees(rows[:1], 1000, 3) for group in groups) == [0, 0, 1]
