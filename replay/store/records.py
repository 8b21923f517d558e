"""Small records of the store: the counters of a shard, and what of its states a draw reads."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from core.records import FloatArray
from replay.store.keys import Keys


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

    names: list[str]  # [N] ids of problems, each once
    problem: npt.NDArray[np.int32]  # [S] place in `names`
    keys: Keys  # [S]
    priority: FloatArray  # [S]
    version: npt.NDArray[np.int32]  # [S] weight version of the value

    def problem_ids(self, places: Sequence[int]) -> list[str]:
        """The problems of the states at these places."""
        return [self.names[at] for at in self.problem[list(places)].tolist()]


def joined(parts: Sequence[Candidates]) -> Candidates:
    """Those of all shards: each owns its problems."""
    first = np.cumsum([0, *(len(part.names) for part in parts[:-1])])
    problem = np.concatenate([part.problem + at for part, at in zip(parts, first.tolist(), strict=True)])
    names = [name for part in parts for name in part.names]
    columns = ([getattr(part, column) for part in parts] for column in ("keys", "priority", "version"))
    return Candidates(names, problem, *map(np.concatenate, columns))
