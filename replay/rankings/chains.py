"""Chains: the states of each stored trajectory in their order, and which of them a problem keeps first.

Used by the rankings that follow chains (`frontier`, `canonical`). Invariant: what is said of a chain depends on the columns
of its problem alone. The number of its trajectory is only a name, because it depends on placement.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from replay.keys import Reals
from replay.rankings.base import Flags, Index, StateColumns

KEPT_FIRST = 1 << 10
"""Step of the shallowest and the tried states in `retention_order`: they are thinned out last."""


@dataclass(frozen=True, slots=True)
class Chains:
    """K states on C chains."""

    order: Index  # [K] rows of the columns: those of a chain adjacent, shallowest first
    first: Index  # [C] where each chain begins in `order`
    run: Index  # [K] which chain

    def sums(self, numbers: npt.NDArray[np.generic]) -> Reals:
        """[C] sums over the chains of numbers [K] of their states, from the shallowest on."""
        found: Reals = np.bincount(self.run, numbers, minlength=len(self.first)).astype(np.float64)
        return found

    @property
    def place(self) -> Index:
        """[K] number of each state within its chain, 0 for the shallowest."""
        found: Index = np.arange(len(self.run)) - self.first[self.run]
        return found


def chains_of(columns: StateColumns, members: Flags) -> Chains:
    """The chains of the chosen states [S]."""
    at = np.flatnonzero(members)
    order = at[np.lexsort((columns.length[at], columns.chain[at]))]
    chain = columns.chain[order]
    begins = np.ones(len(order), np.bool_)
    begins[1:] = chain[1:] != chain[:-1]
    return Chains(order, np.flatnonzero(begins), np.cumsum(begins) - 1)


def retention_order(columns: StateColumns, found: Chains, chosen: Flags) -> Reals:
    """[K] the order in which a problem keeps the states of its chains: r + w for a state of its r-th chain, 0 <= w < 1.

    Chains that have been tried come first, then those that begin nearest to the root, then the older ones. A problem keeps a
    whole chain before it gives up a state of the one before. Within a chain, w is 0 for the `chosen` state [S], 1 / (1 + 1024)
    for the tried ones and the shallowest, and 1 / (1 + 2^k) for those whose place is a multiple of 2^k and no more. So a chain
    that is too long keeps states from its beginning to its end.
    """
    order, first, place = found.order, found.first, found.place
    head = order[first]
    tried = found.sums(columns.tried[order]) > 0
    oldest = np.minimum.reduceat(order, first) if len(first) else first  # rows of a problem are oldest first
    depth = columns.length[head] / columns.total[head]
    ranked = np.lexsort((oldest, depth, ~tried, columns.problem[head]))
    problem = columns.problem[head][ranked]
    rank = np.empty(len(first), np.int64)
    rank[ranked] = np.arange(len(first)) - np.searchsorted(problem, problem)
    step = np.where((place == 0) | (columns.tried[order] > 0), KEPT_FIRST, place & -place)
    within: Reals = np.where(chosen[order], 0.0, 1.0 / (1.0 + step))
    return rank[found.run] + within
