"""A tree of probability mass over problems, in the order of their hashes: what makes a draw cost a few lookups.

Used by `replay/shard.py`. Levels: 256 groups, 4,096 nodes, 65,536 slots, the problems of a slot (a list by hash), the
states of a problem. Invariant: the shape below a group does not depend on which other groups the shard owns and every sum
is taken in a fixed order, so 1 shard and 5 shards hold bit-identical masses.
"""

import numpy as np

from replay import kernels
from replay.keys import GROUPS, SLOTS, Keys, Reals, Rows
from replay.table import Growing

_NODES = SLOTS // 16


class Masses:
    """Mass per problem and the sums above it."""

    def __init__(self) -> None:
        self._slots = np.zeros(SLOTS)
        self._nodes = np.zeros(_NODES)
        self.groups = np.zeros(GROUPS)  # [GROUPS] total mass per group
        self._heads = np.full(SLOTS, -1, np.int32)  # first problem of each slot
        self._following = Growing(np.dtype(np.int32))  # problem -> the next one of its slot, -1: none
        self._hashes = Growing(np.dtype(np.uint64))
        self._mass = Growing(np.dtype(np.float64))

    def insert(self, hashes: Keys) -> None:
        """Append problems (numbered on from the last) with these hashes and no mass."""
        for column in (self._following, self._mass):
            column.extend(len(hashes))
        first = self._hashes.extend(len(hashes))
        self._hashes.rows[first:] = hashes
        kernels.enlist(self._heads, self._following.rows, self._hashes.rows, first)

    def assign(self, problems: Rows, mass: Reals) -> None:
        """Set the mass of distinct problems and renew the sums above them."""
        self._mass.rows[problems] = mass
        lists = self._heads, self._following.rows, self._hashes.rows, self._mass.rows
        kernels.add_up(*lists, self._slots, self._nodes, self.groups, problems)

    def draw(self, groups: Rows, fractions: Reals) -> tuple[Rows, Reals]:
        """Problems at the given fractions [m] in [0, 1) of their groups' mass, and the mass left inside each."""
        lists = self._heads, self._following.rows, self._mass.rows
        problems, left = kernels.descend(*lists, self._slots, self._nodes, self.groups, groups, fractions)
        return problems, left

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        columns = sum(column.nbytes for column in (self._following, self._hashes, self._mass))
        return columns + self._heads.nbytes + self._slots.nbytes + self._nodes.nbytes + self.groups.nbytes
