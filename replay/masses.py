"""A tree of probability mass over problems, in the order of their hashes: what makes a draw cost a few lookups.

Used by `replay/shard.py`. Levels: 256 groups, 4,096 nodes, 65,536 slots, the problems of a slot by hash, the states of
a problem. Invariant: the shape below a group does not depend on which other groups the shard owns and every sum is
taken in a fixed order, so 1 shard and 5 shards hold bit-identical masses.
"""

import numpy as np
import numpy.typing as npt

from replay.keys import GROUPS, SLOTS, Keys, Reals, Rows, ragged

_FAN = 16
_NODES = SLOTS // _FAN


class Masses:
    """Mass per problem and the sums above it."""

    def __init__(self) -> None:
        self._slots = np.zeros(SLOTS)
        self._nodes = np.zeros(_NODES)
        self.groups = np.zeros(GROUPS)  # [GROUPS] total mass per group
        self._mass = np.zeros(0)  # by position in hash order
        self._order = np.zeros(0, np.int64)  # position -> problem
        self._hashes = np.zeros(0, np.uint64)  # sorted
        self._position = np.zeros(0, np.int64)  # problem -> position
        self._first = np.zeros(SLOTS + 1, np.int64)  # first position of each slot

    def insert(self, hashes: Keys) -> None:
        """Append problems (numbered on from the last) with these hashes and no mass."""
        count = len(self._order)
        fresh = np.argsort(hashes, kind="stable")
        at = np.searchsorted(self._hashes, hashes[fresh], side="right")
        self._order = np.insert(self._order, at, count + fresh)
        self._mass = np.insert(self._mass, at, 0.0)
        self._hashes = np.insert(self._hashes, at, hashes[fresh])
        self._position = np.empty(len(self._order), np.int64)
        self._position[self._order] = np.arange(len(self._order))
        slots = (hashes >> np.uint64(48)).astype(np.int64)
        self._first[1:] += np.cumsum(np.bincount(slots, minlength=SLOTS))

    def assign(self, problems: Rows, mass: Reals) -> None:
        """Set the mass of distinct problems and renew the sums above them."""
        where = self._position[problems]
        self._mass[where] = mass
        slots = np.unique((self._hashes[where] >> np.uint64(48)).astype(np.int64))
        counts = self._first[slots + 1] - self._first[slots]
        parts = self._mass[ragged(self._first[slots], counts)]
        self._slots[slots] = np.bincount(np.repeat(np.arange(len(slots)), counts), parts, minlength=len(slots))
        nodes = np.unique(slots // _FAN)
        self._nodes[nodes] = self._slots.reshape(_NODES, _FAN)[nodes].sum(axis=1)
        groups = np.unique(nodes // _FAN)
        self.groups[groups] = self._nodes.reshape(GROUPS, _FAN)[groups].sum(axis=1)

    def draw(self, groups: Rows, fractions: Reals) -> tuple[Rows, Reals]:
        """Problems at the given fractions [m] in [0, 1) of their groups' mass, and the fraction left inside each."""
        child, fractions = pick(self._nodes.reshape(GROUPS, _FAN)[groups], fractions)
        nodes = groups * _FAN + child
        child, fractions = pick(self._slots.reshape(_NODES, _FAN)[nodes], fractions)
        slots = nodes * _FAN + child
        first = self._first[slots]
        child, fractions = pick(padded(self._mass, first, self._first[slots + 1] - first), fractions)
        return self._order[first + child], fractions


def padded(column: npt.NDArray[np.floating], starts: Rows, counts: Rows, fill: float = 0.0) -> Reals:
    """[m, max count] the runs of a column, one per line, filled up with `fill`."""
    width = int(counts.max(initial=1))
    steps = np.arange(width)
    inside = steps < counts[:, None]
    return np.where(inside, column[np.where(inside, starts[:, None] + steps, 0)], fill)


def pick(masses: Reals, fractions: Reals) -> tuple[Rows, Reals]:
    """For each line of `masses` [m, k] the entry that holds `fractions` [m] of its sum, and the fraction inside that.

    >>> pick(np.array([[1.0, 3.0]]), np.array([0.5]))
    (array([1]), array([0.33333333]))
    """
    ends = np.cumsum(masses, axis=1)
    target = fractions * ends[:, -1]
    index = np.minimum((ends <= target[:, None]).sum(axis=1), (ends < ends[:, -1:]).sum(axis=1))
    lines = np.arange(len(masses))
    inside = masses[lines, index]
    rest = (target - (ends[lines, index] - inside)) / np.where(inside > 0, inside, 1.0)
    return index, np.clip(rest, 0.0, np.nextafter(1.0, 0.0))
