"""Small records of the store: what happened to a shard, and states as a shard hands them out."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from core.records import IntArray, Provenance, ReplayedState
from replay.batch import Ints
from replay.keys import Keys, Reals, Rows
from replay.table import Table

Prefixes = npt.NDArray[np.int32]


@dataclass(slots=True)
class Counters:
    """What happened to a shard since its store was created."""

    offered: int = 0  # states in accepted candidates
    merged: int = 0  # of these, states that were already there
    rejected: int = 0  # of these, states that promised less than the problem's quota held
    evicted: int = 0  # states removed for another of their problem or for the store's bounds
    outcomes: int = 0  # outcomes of replayed states
    solved: int = 0  # of these, correct
    lost_outcomes: int = 0  # outcomes of states that had been evicted meanwhile
    root_outcomes: int = 0  # rollouts from a root among the candidates
    root_solved: int = 0

    def plus(self, other: "Counters") -> "Counters":
        """The sum."""
        return Counters(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(Counters)})


@dataclass(frozen=True, slots=True)
class Selected:
    """States as a shard hands them out, [m] each."""

    rows: Table  # records of `replay.table.STATE`
    problem_ids: list[str]
    tokens: Prefixes  # holds the prefixes
    starts: Rows  # where each begins

    @property
    def keys(self) -> Keys:
        """[m] state keys."""
        return np.asarray(self.rows["key"])

    @property
    def values(self) -> npt.NDArray[np.float32]:
        """[m] the critic's values."""
        return np.asarray(self.rows["value"])

    @property
    def lengths(self) -> Ints:
        """[m] tokens of the prefixes."""
        return np.asarray(self.rows["length"])

    def take(self, index: Rows) -> "Selected":
        """Some of them, in the order of `index`."""
        names = [self.problem_ids[i] for i in index.tolist()]
        return Selected(self.rows.take(index), names, self.tokens, self.starts[index])

    def prefixes(self) -> list[IntArray]:
        """The prefix of each, int32."""
        tokens, stops = self.tokens, (self.starts + self.lengths).tolist()
        return [tokens[a:b] for a, b in zip(self.starts.tolist(), stops, strict=True)]

    def states(self) -> list[ReplayedState]:
        """A record of each."""
        columns = (self.rows[name].tolist() for name in ("value", "provenance", "version"))
        found = zip(self.keys.tolist(), self.problem_ids, self.prefixes(), *columns, strict=True)
        return [ReplayedState(k, p, prefix, value, _PROVENANCE[origin], v) for k, p, prefix, value, origin, v in found]


@dataclass(frozen=True, slots=True)
class Wish:
    """Different states that the driver wants of one pool: draws in proportion to mass, or the best of a Gumbel race."""

    pool: int
    wanted: int
    ends: Reals  # [GROUPS] running sums of the groups' masses over all shards
    fractions: Reals  # [m] where to draw, in [0, 1) of the whole mass; empty: a race
    seed: int  # of the race
    excluded: Keys  # states that do not take part in the race


@dataclass(frozen=True, slots=True)
class Granted:
    """What a shard has to offer for a wish."""

    states: Selected
    order: Rows | Reals  # [m] smaller first over all shards: which of the fractions; or the race's scores, negative


_PROVENANCE = {int(p): p for p in Provenance}


def joined(parts: Sequence[Selected]) -> Selected:
    """The states of all parts (one or more), one after the other."""
    if len(parts) == 1:
        return parts[0]
    names = [name for part in parts for name in part.problem_ids]
    before = np.cumsum([0, *(len(part.tokens) for part in parts[:-1])])
    starts = np.concatenate([part.starts + offset for part, offset in zip(parts, before.tolist(), strict=True)])
    rows = np.concatenate([part.rows for part in parts])
    return Selected(rows, names, np.concatenate([part.tokens for part in parts]), starts)
