"""What a ranking is: a small pure function from the columns of whole problems to the priority of each state.

The shard calls it for all states of the problems that a write touches. Invariant: the priority of a state depends only on
the columns of its own problem, so that placement over shards cannot change it. A priority of -inf means: keep the state,
but never replay it. States are drawn with probability ~ exp(priority / temperature).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from core.config import ReplayConfig
from core.records import FloatArray
from replay.keys import Keys

Index = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class StateColumns:
    """The states of one or more whole problems: [S] each, those of a problem adjacent, oldest first. Never written to."""

    problem: Index  # which problem, non-decreasing
    chain: Index  # which trajectory the state was cut from
    length: Index  # tokens of the prefix
    total: Index  # tokens of that trajectory's response
    value: FloatArray  # the critic's V(s)
    provenance: npt.NDArray[np.uint8]  # core.records.Provenance
    wins: FloatArray  # decayed number of correct continuations
    losses: FloatArray  # decayed number of wrong continuations
    tried: Index  # continuations so far, not decayed
    root_wins: FloatArray  # the same for rollouts of the problem from its root
    root_losses: FloatArray


@dataclass(frozen=True, slots=True)
class RankSettings:
    """What rankings read besides the columns."""

    target: float  # frontier: success that a start should still have
    gate: float = 0.0  # trust in the critic, in [0, 1]; see `replay/rankings/calibration.py`
    decay: float = 1.0  # of outcomes per weight version: how much of them a state can have at all


def rank_settings(config: ReplayConfig) -> RankSettings:
    """The rankings' share of the replay section."""
    return RankSettings(target=config.target, decay=config.decay)


@dataclass(frozen=True, slots=True)
class Ranking:
    """A named ranking: its formula, and what it needs of the store and the loop."""

    priority: Callable[[StateColumns, RankSettings], FloatArray]
    """What states are drawn by, [S]."""
    retention: Callable[[StateColumns, FloatArray], FloatArray] | None = None
    """What states are kept by when the store is full, from their columns and priorities [S]; None: their priority."""
    needs_values: bool = False
    """Whether the critic's values are read: only then are stale values worth renewing."""
    needs_canonical: bool = False
    """Whether nothing can be replayed without canonical solutions."""
    chains: bool = False
    """Whether priority belongs to chains: a state's depends on which others of its chain are stored, and a success that
    continues a proven chain makes no new one (`trainer/starts.py`)."""
    explores: bool = False
    """Whether own failures are a second pool, of which a batch has at most the share `replay.explore`."""
    uses_gate: bool = False
    """Whether the critic's measured calibration is part of it."""
    shortlist: int = 1
    """States drawn per state wanted."""
    choose: Callable[[Keys, FloatArray, FloatArray, FloatArray, float, int], Index] | None = None
    """Order of a shortlist, best first, from keys, wins, losses and values [m], gate and seed; None: as drawn."""


def only(chosen: Flags) -> FloatArray:
    """Priority 0 for the chosen states [S], -inf for the others."""
    return np.where(chosen, np.float32(0.0), np.float32(-np.inf))
