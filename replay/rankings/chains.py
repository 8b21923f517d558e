"""Chains: the states of each stored trajectory in order of depth, and which of them a problem keeps longest. Invariant:
every result for a chain depends only on the columns of its problem, not on its trajectory's number."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from core.records import Flags
from replay.rankings.base import Index, StateColumns
from replay.store.keys import Reals

KEPT_FIRST = 1 << 10  # step of the shallowest and the tried states in `kept_longest`: they are evicted last


@dataclass(frozen=True, slots=True)
class Chains:
    """K states on C chains."""

    order: Index  # [K] rows of the columns: grouped by chain, shallowest first
    first: Index  # [C] where each chain begins in `order`
    run: Index  # [K] number of the chain

    def sums(self, numbers: npt.NDArray[np.generic]) -> Reals:
        """[C] sum over each chain of the numbers [K] of its states, added from the shallowest on."""
        found: Reals = np.bincount(self.run, numbers, minlength=len(self.first)).astype(np.float64)
        return found

    @property
    def place(self) -> Index:
        """[K] place of each state in its chain, 0 for the shallowest."""
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


def kept_longest(columns: StateColumns, found: Chains, chosen: Flags) -> Reals:
    """[K] 1 / (1 + order), highest for what a problem keeps longest. The order is r + w in its r-th chain, 0 <= w < 1.

    Tried chains come first, then chains that begin nearest to the root, then older ones. Within a chain, w is 0 for the
    `chosen` state [S], and 1 / (1 + 1024) for the tried states and the shallowest. It is 1 / (1 + 2^k) for a state
    whose place is divisible by 2^k but not by 2^(k + 1). So a long chain keeps states over all of its length.
    """
    order, first, place = found.order, found.first, found.place
    head = order[first]
    tried = found.sums(columns.tried[order]) > 0
    oldest = np.minimum.reduceat(order, first) if len(first) else first  # within a problem the first row is the oldest
    depth = columns.length[head] / columns.total[head]
    ranked = np.lexsort((oldest, depth, ~tried, columns.problem[head]))
    problem = columns.problem[head][ranked]
    rank = np.empty(len(first), np.int64)
    rank[ranked] = np.arange(len(first)) - np.searchsorted(problem, problem)
    step = np.where((place == 0) | (columns.tried[order] > 0), KEPT_FIRST, place & -place)
    within: Reals = np.where(chosen[order], 0.0, 1.0 / (1.0 + step))
    return 1.0 / (1.0 + (rank[found.run] + within))
