"""Small records of the store: what happened to a shard, and states as a shard hands them out."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from core.records import IntArray, Provenance, ReplayedState
from replay.batch import Ints, Tokens
from replay.keys import Keys, Rows


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

    keys: Keys
    problem_ids: list[str]
    tokens: Tokens  # holds the prefixes
    starts: Rows  # where each begins
    lengths: Ints
    values: npt.NDArray[np.float32]
    provenance: npt.NDArray[np.uint8]
    versions: Ints
    wins: npt.NDArray[np.float32]
    losses: npt.NDArray[np.float32]

    def take(self, index: Rows) -> "Selected":
        """Some of them, in the order of `index`."""
        names = [self.problem_ids[i] for i in index.tolist()]
        columns = (getattr(self, f.name)[index] for f in fields(self)[3:])
        return Selected(self.keys[index], names, self.tokens, *columns)

    def prefixes(self) -> list[IntArray]:
        """The prefix of each, int32."""
        tokens = self.tokens.astype(np.int32)
        stops = (self.starts + self.lengths).tolist()
        return [tokens[a:b] for a, b in zip(self.starts.tolist(), stops, strict=True)]

    def states(self) -> list[ReplayedState]:
        """A record of each."""
        columns = (column.tolist() for column in (self.values, self.provenance, self.versions))
        rows = zip(self.keys.tolist(), self.problem_ids, self.prefixes(), *columns, strict=True)
        return [ReplayedState(k, p, prefix, value, _PROVENANCE[origin], v) for k, p, prefix, value, origin, v in rows]


_PROVENANCE = {int(p): p for p in Provenance}


def joined(parts: Sequence[Selected]) -> Selected:
    """The states of all parts (one or more), one after the other."""
    if len(parts) == 1:
        return parts[0]
    names = [name for part in parts for name in part.problem_ids]
    before = np.cumsum([0, *(len(part.tokens) for part in parts[:-1])])
    starts = np.concatenate([part.starts + offset for part, offset in zip(parts, before.tolist(), strict=True)])
    keys, tokens = (np.concatenate([getattr(part, name) for part in parts]) for name in ("keys", "tokens"))
    columns = (np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Selected)[4:])
    return Selected(keys, names, tokens, starts, *columns)
