"""Small records of the store: the counters of a shard, and the states that it returns."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from core.records import FloatArray, IntArray, Provenance, ReplayedState
from replay.keys import Keys, Reals, Rows

_PROVENANCE = {int(p): p for p in Provenance}


@dataclass(slots=True)
class Counters:
    """Counts of events in a shard since its store was created."""

    offered: int = 0  # states in accepted candidates
    merged: int = 0  # of these, states that were already stored
    rejected: int = 0  # of these, states that their problem's quota rejected for their low retention
    evicted: int = 0  # states removed later, for the quota of their problem or the bounds of the store
    outcomes: int = 0  # outcomes of replayed states
    solved: int = 0  # of these, correct
    lost_outcomes: int = 0  # outcomes that arrived after their state was evicted
    root_outcomes: int = 0  # rollouts from a root among the candidates
    root_solved: int = 0


@dataclass(frozen=True, slots=True)
class Drawn:
    """The m states that a shard returns, highest score first."""

    problem_ids: list[str]  # [m]
    prefixes: list[IntArray]  # [m]
    keys: Keys  # [m]
    values: FloatArray
    provenance: npt.NDArray[np.uint8]
    version: npt.NDArray[np.int32]
    wins: FloatArray
    losses: FloatArray
    chances: Reals  # of success before the state's own outcomes count, by the success model
    features: Reals  # [m, 7] of the success model
    scores: Reals | npt.NDArray[np.uint64]  # by which they were chosen

    def take(self, index: Rows) -> "Drawn":
        """Some of them, in the order of `index`."""
        chosen = index.tolist()
        lists = [self.problem_ids[i] for i in chosen], [self.prefixes[i] for i in chosen]
        return Drawn(*lists, *(getattr(self, field.name)[index] for field in fields(Drawn)[2:]))

    def states(self) -> list[ReplayedState]:
        """A record of each."""
        columns = (column.tolist() for column in (self.keys, self.values, self.provenance, self.version))
        found = zip(self.problem_ids, self.prefixes, *columns, strict=True)
        return [ReplayedState(key, p, prefix, v, _PROVENANCE[origin], n) for p, prefix, key, v, origin, n in found]


def joined(parts: Sequence[Drawn], count: int) -> Drawn:
    """The `count` highest-scoring states of all shards, best first. Of ties the larger key comes first."""
    lists = [[item for part in parts for item in getattr(part, name)] for name in ("problem_ids", "prefixes")]
    arrays = [np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Drawn)[2:]]
    columns: list[Any] = [*lists, *arrays]
    found = Drawn(*columns)
    return found.take(np.lexsort((found.keys, found.scores))[::-1][:count])
