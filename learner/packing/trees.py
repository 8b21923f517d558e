"""Rows that begin alike as prefix trees. A line has the tokens of all trees in depth-first order, shared ones once, and
their depths: positions in rows. The parent of a token of depth d is the last token of depth d - 1 before it; depth 0 is
a root. Rows ABC, ABD and X give the line A B C D X with the depths 0 1 2 2 0."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from core.records import IntArray

IndexArray = npt.NDArray[np.int64]


def in_order(rows: Sequence[IntArray]) -> tuple[list[int], IndexArray]:
    """Row numbers in the order of their tokens, and how many tokens each row [n] of it shares with the row before."""
    order = sorted(range(len(rows)), key=lambda row: rows[row].astype(">u4").tobytes())
    shared = [0] * min(1, len(rows))
    shared += [_shared(rows[first], rows[second]) for first, second in pairwise(order)]
    return order, np.array(shared, dtype=np.int64)


def line_of(rows: Sequence[IntArray]) -> tuple[IndexArray, IndexArray, list[IndexArray]]:
    """Tokens [T] and depths [T] of the line of these rows, and for every row the places of its tokens in the line."""
    order, shared = in_order(rows)
    path = np.zeros(max(map(len, rows)), dtype=np.int64)
    places = [path] * len(rows)
    tokens, depths, end = [], [], 0
    for row, depth in zip(order, shared.tolist(), strict=True):
        own = rows[row][depth:]
        path[depth : len(rows[row])] = np.arange(end, end + len(own))
        places[row] = path[: len(rows[row])].copy()
        tokens.append(own)
        depths.append(np.arange(depth, depth + len(own)))
        end += len(own)
    return np.concatenate(tokens).astype(np.int64), np.concatenate(depths).astype(np.int64), places


def branches(depths: IndexArray) -> Iterator[tuple[IndexArray, IndexArray]]:
    """Split a line into branches, stretches without a fork: (places of a branch's tokens [L], places of all tokens from
    the root to its last one [P]). Token i sees the first P - L + i + 1 of the latter."""
    begins = np.flatnonzero(np.diff(depths, prepend=-2) != 1).tolist()
    path = np.zeros(int(depths.max(initial=0)) + 1, dtype=np.int64)
    for begin, end in zip(begins, [*begins[1:], len(depths)], strict=True):
        own = np.arange(begin, end)
        depth = int(depths[begin])
        path[depth : depth + len(own)] = own
        yield own, path[: depth + len(own)].copy()


def subtree_ends(depths: IndexArray) -> IndexArray:
    """[T] the first place behind each token's descendants: token k is seen by the tokens q with k <= q < ends[k]."""
    ends = np.full(len(depths), len(depths), dtype=np.int64)
    open_places: list[int] = []
    for place, depth in enumerate(depths.tolist()):
        ends[open_places[depth:]] = place
        del open_places[depth:]
        open_places.append(place)
    return ends


def _shared(first: IntArray, second: IntArray) -> int:
    size = min(len(first), len(second))
    differ = first[:size] != second[:size]
    return int(differ.argmax()) if differ.any() else size
