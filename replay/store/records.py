"""Small records of the store: the counters of a shard, and what of its states a draw reads."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from core.records import FloatArray
from replay.store.keys import Keys

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
class Candidates:
    """The S states that may be drawn."""

    problem_ids: Objects  # [S] str
    keys: Keys  # [S]
    priority: FloatArray  # [S]
    version: npt.NDArray[np.int32]  # [S] weight version of the value


def joined(parts: Sequence[Candidates]) -> Candidates:
    """Those of all shards."""
    names = [field.name for field in fields(Candidates)]
    return Candidates(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))
