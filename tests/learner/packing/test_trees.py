"""Lines of prefix trees: by hand, and for any rows."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from learner.packing.micro_batches import Row, micro_batch
from learner.packing.trees import branches, in_order, line_of, subtree_ends

ROWS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=1, max_size=12)
"""Rows of three tokens only: most begin alike, and some are equal or the beginning of others."""


def arrays(rows: list[list[int]]) -> list[np.ndarray[tuple[int], np.dtype[np.int32]]]:
    return [np.array(row, dtype=np.int32) for row in rows]


def test_three_rows_by_hand() -> None:
    """ABC, ABD, X: A B C D X with the depths 0 1 2 2 0."""
    tokens, depths, places = line_of(arrays([[7, 8, 10], [9], [7, 8, 300]]))  # 300 comes after 10, byte by byte too
    assert tokens.tolist() == [7, 8, 10, 300, 9]
    assert depths.tolist() == [0, 1, 2, 2, 0]
    assert [place.tolist() for place in places] == [[0, 1, 2], [4], [0, 1, 3]]
    assert subtree_ends(depths).tolist() == [4, 4, 3, 4, 5]
    found = [(own.tolist(), path.tolist()) for own, path in branches(depths)]
    assert found == [([0, 1, 2], [0, 1, 2]), ([3], [0, 1, 3]), ([4], [4])]


def test_a_micro_batch_by_hand() -> None:
    """5 6 7 and 5 6 8, scored from the third and from the second token on: 7, 6 and 8 are scored, 6 for one row
    only."""
    rows = [Row(np.array([5, 6, 7], np.int32), 2), Row(np.array([5, 6, 8], np.int32), 1)]
    batch = micro_batch(rows)
    assert batch.tokens.tolist() == [5, 6, 7, 8]
    assert batch.targets.tolist() == [6, 7, 8]
    assert batch.state_index.tolist() == [0, 1, 1]
    assert batch.copies.tolist() == [1, 0, 2]  # of the first row 7, of the second 6 and 8


@given(ROWS)
def test_every_row_is_a_path_of_the_line_and_no_token_stands_twice(rows: list[list[int]]) -> None:
    tokens, depths, places = line_of(arrays(rows))
    for row, place in zip(rows, places, strict=True):
        assert tokens[place].tolist() == row
        assert depths[place].tolist() == list(range(len(row)))
    prefixes = {tuple(row[: end + 1]) for row in rows for end in range(len(row))}
    assert len(tokens) == len(prefixes)  # each distinct beginning of a row is one token of the line


@given(ROWS)
def test_branches_and_subtrees_tell_the_ancestors_of_every_token(rows: list[list[int]]) -> None:
    _, depths, places = line_of(arrays(rows))
    ends = subtree_ends(depths)
    own = np.concatenate([own for own, _ in branches(depths)])
    assert own.tolist() == list(range(len(depths)))
    ancestors = {place: set(path[: int(depths[place]) + 1].tolist()) for own, path in branches(depths) for place in own}
    for path in places:
        for end, place in enumerate(path.tolist()):
            assert ancestors[place] == set(path[: end + 1].tolist())
            assert ancestors[place] == {key for key in range(place + 1) if place < ends[key]}


@given(ROWS)
def test_neighbours_share_what_the_order_says(rows: list[list[int]]) -> None:
    order, shared = in_order(arrays(rows))
    for begin in range(len(rows)):
        part = [rows[row] for row in order[begin:]]
        needed = len(part[0]) + sum(len(row) - both for row, both in zip(part[1:], shared[begin + 1 :], strict=True))
        assert needed == len(line_of(arrays(part))[0])
