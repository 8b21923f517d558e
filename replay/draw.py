"""One pool's part of a batch, as the driver has it drawn: what the shards are asked for, and what is made of their answers.

Used by `replay/store.py`. Invariant: the same masses, seed and states give the same batch, however many shards answer.
"""

from collections.abc import Sequence

import numpy as np

from core.seeds import derive
from replay import drawing
from replay.keys import Reals
from replay.records import Granted, Selected, Wish, joined
from replay.table import STATE

ROUNDS = 4
"""Rounds of draws with replacement before the rest is drawn by a race over all states."""
NONE = Selected(np.zeros(0, STATE), [], np.zeros(0, np.int32), np.zeros(0, np.int64))


class Draw:
    """Distinct states of a pool in proportion to their weights.

    Successive draws with replacement, repeats ignored, are draws without replacement. When repeats are many (small store,
    few states with all the mass) the rest is drawn by the Gumbel race, which is exact for what remains.
    """

    def __init__(self, pool: int, wanted: int, total: int, masses: Reals, seed: int) -> None:
        """`wanted` of the pool's `total` states, or all; `masses` [GROUPS] over all shards."""
        self._pool, self._total, self._seed = pool, total, seed
        self._ends = np.cumsum(masses)
        self.missing = min(wanted, total)
        self._rounds = ROUNDS if 4 * self.missing < total and self._ends[-1] > 0 else 0
        self._turn = 0
        self.chosen = NONE

    def wish(self) -> Wish:
        """What to ask every shard for next."""
        if self._turn < self._rounds:
            seed = derive(self._seed, "replay", self._turn)
            fractions = drawing.fractions(seed, with_repeats(self.missing, self._total))
            wanted = self.missing + len(self.chosen.keys)  # at least `missing` of so many different ones are new
        else:
            fractions, wanted = np.zeros(0), self.missing
        return Wish(self._pool, wanted, self._ends, fractions, derive(self._seed, "replay-race"), self.chosen.keys)

    def take(self, found: Sequence[Granted]) -> None:
        """Add what the shards granted of the last wish."""
        states = merged(found)
        if len(self.chosen.keys):
            states = states.take(np.flatnonzero(~np.isin(states.keys, self.chosen.keys)))
        if len(states.keys) > self.missing:
            states = states.take(np.arange(self.missing))
        self.missing = self.missing - len(states.keys) if self._turn < self._rounds else 0
        self.chosen = joined([self.chosen, states]) if len(self.chosen.keys) else states
        self._turn += 1


def merged(found: Sequence[Granted]) -> Selected:
    """The states of all shards, in order; ties by key, the larger first."""
    states = joined([granted.states for granted in found])
    if len(found) == 1:
        return states
    order = np.concatenate([granted.order for granted in found])
    return states.take(np.lexsort((~states.keys, order)))


def with_repeats(wanted: int, total: int) -> int:
    """How often to draw for so many different states of `total`: four times the repeats of equal weights, and four more.

    >>> with_repeats(64, 256), with_repeats(64, 1_000_000)
    (100, 68)
    """
    return wanted + 2 * wanted * wanted // max(total, 1) + 4
