"""What a ranking reads: the states of whole problems as columns, and its settings.

Made by the shard, read by the rankings. Invariant: columns are never written to.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from core.config import ReplayConfig
from core.records import FloatArray

Index = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Columns:
    """The states of one or more whole problems, side by side: [S] each, those of a problem adjacent."""

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
    """What rankings read from the configuration."""

    target: float  # frontier: success that a start should still have
    gate: float = 0.0  # trust in the critic, measured on outcomes; see posterior.critic_gate
    decay: float = 1.0  # of outcomes per weight version: how much of them a state can have at all


def rank_settings(config: ReplayConfig) -> RankSettings:
    """The rankings' share of the replay section."""
    return RankSettings(target=config.target, decay=config.decay)
