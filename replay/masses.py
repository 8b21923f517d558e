"""A tree of probability mass over problems, in the order of their hashes: what makes a draw cost a few lookups.

Used by `replay/holdings.py`; the loops are in `replay/drawing.py`. Levels: 256 groups, 4,096 nodes, 65,536 slots, the problems
of a slot (a list by hash), the states of a problem. Invariant: the shape below a group does not depend on which other groups
the shard owns and every sum is taken in a fixed order, so 1 shard and 5 shards hold bit-identical masses.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from replay import drawing
from replay.drawing import LINK, SUMS
from replay.keys import GROUPS, SLOTS, Reals, Rows
from replay.table import Blocks, Growing, Table

Stored = tuple[Table, Rows, npt.NDArray[Any]]
"""Trajectories, where the chunks of tokens begin, and an empty array of their type."""


class Masses:
    """Mass per problem and the sums above it, of the states whose weight has one sign."""

    def __init__(self, sign: float) -> None:
        self._sign = sign
        self._sums = np.zeros(SUMS)
        self._heads = np.full(SLOTS, -1, np.int32)  # first problem of each slot
        self._links = Growing(LINK)
        self.replayable = 0  # states that may be drawn

    @property
    def groups(self) -> Reals:
        """[GROUPS] total mass per group, as a view."""
        return self._sums[:GROUPS]

    def insert(self, problems: Table) -> None:
        """Enter the problems of the table that are new, without mass."""
        first = self._links.extend(len(problems) - self._links.used)
        drawing.enlist(self._heads, self._links.rows, problems, first)

    def renew(self, blocks: Blocks, touched: Rows) -> None:
        """Sum the weights of the touched problems anew."""
        tree = self._heads, self._sums, self._links.rows
        self.replayable += drawing.sum_up(*tree, blocks.problems.rows, blocks.weights.rows, touched, self._sign)

    def draw(self, blocks: Blocks, stored: Stored, ends: Reals, fractions: Reals, wanted: int) -> tuple[Any, ...]:
        """See `replay.drawing.draw`."""
        tree = self._heads, self._sums, self._links.rows
        weighed = blocks.problems.rows, blocks.weights.rows, self._sign
        found: tuple[Any, ...] = drawing.draw(*tree, *weighed, ends, fractions, wanted, blocks.states.rows, *stored)
        return found

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._links.nbytes + self._heads.nbytes + self._sums.nbytes
