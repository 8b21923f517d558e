"""Small records of the store: what happened to a shard, and states as a shard hands them out."""

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from replay.batch import Ints, Tokens
from replay.keys import Keys


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
    tokens: Tokens  # prefixes, one after the other
    lengths: Ints
    values: npt.NDArray[np.float32]
    provenance: npt.NDArray[np.uint8]
    versions: Ints
    wins: npt.NDArray[np.float32]
    losses: npt.NDArray[np.float32]
