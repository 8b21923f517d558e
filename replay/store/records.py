"""Small records of the store: the counters of a shard, and the states that it returns."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from core.records import FloatArray, Provenance, ReplayedState
from replay.store.keys import Keys, Reals

Objects = npt.NDArray[np.object_]


@dataclass(slots=True)
class Counters:
    """Counts of events in a shard since its store was created."""

    offered: int = 0  # states of the trajectories that were added
    merged: int = 0  # of these, states that were already stored
    rejected: int = 0  # of these, states that their problem's quota rejected for their low retention
    evicted: int = 0  # states removed later, for the quota of their problem or the bounds of the store
    outcomes: int = 0  # outcomes of replayed states
    solved: int = 0  # of these, correct
    lost_outcomes: int = 0  # outcomes that arrived after their state was evicted
    root_outcomes: int = 0  # rollouts from a root among the trajectories
    root_solved: int = 0


@dataclass(frozen=True, slots=True)
class Drawn:
    """The m states that a shard returns, highest score first."""

    problem_ids: Objects  # [m] str
    prefixes: Objects  # [m] `bytes` of int32 tokens: hundreds of small arrays take much longer to send
    keys: Keys  # [m]
    values: FloatArray
    provenance: npt.NDArray[np.uint8]
    version: npt.NDArray[np.int32]
    chances: Reals  # by the success model, before the state's own outcomes count; 0 if the ranking reads no model
    features: Reals  # [m, F] of the success model
    scores: Reals | npt.NDArray[np.uint64]  # by which they were chosen

    def take(self, places: Sequence[int]) -> "Drawn":
        """The states at these places, in this order."""
        return Drawn(**{field.name: getattr(self, field.name)[list(places)] for field in fields(self)})

    def states(self) -> list[ReplayedState]:
        """A record of each."""
        columns = (self.keys, self.problem_ids, self.prefixes, self.values, self.provenance, self.version)
        return [
            ReplayedState(key, problem, np.frombuffer(prefix, np.int32), value, Provenance(provenance), version)
            for key, problem, prefix, value, provenance, version in zip(*(c.tolist() for c in columns), strict=True)
        ]


def joined(parts: Sequence[Drawn], count: int) -> Drawn:
    """The `count` highest-scoring states of all shards, best first. Of ties the larger key comes first."""
    found = {field.name: np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Drawn)}
    best = np.lexsort((found["keys"], found["scores"]))[::-1][:count]
    return Drawn(**{name: column[best] for name, column in found.items()})
