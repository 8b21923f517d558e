"""Defines a ranking: a small pure function from the columns of whole problems to the priority of each state.

The shard calls it for all states of the problems that a write touches. Invariant: the priority of a state depends only on
the columns of its own problem, so placement over shards cannot change it. A state with priority -inf is stored but never
replayed. States are drawn with probability ~ exp(priority / temperature).
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

HOPELESS = 0.05
"""Chance of success below which no start is replayed: at 5 %, four in five groups of 4 continuations have no success at all."""


@dataclass(frozen=True, slots=True)
class StateColumns:
    """The states of one or more whole problems, [S] each: grouped by problem, oldest first. A ranking must not change them."""

    problem: Index  # number of the problem, non-decreasing
    chain: Index  # number of the trajectory that the state was cut from
    length: Index  # tokens of the prefix
    total: Index  # tokens of that trajectory's response
    value: FloatArray  # the critic's V(s)
    provenance: npt.NDArray[np.uint8]  # core.records.Provenance
    wins: FloatArray  # decayed number of correct continuations
    losses: FloatArray  # decayed number of wrong continuations
    tried: Index  # continuations so far, not decayed
    root_wins: FloatArray  # decayed number of correct rollouts of the problem from its root
    root_losses: FloatArray


@dataclass(frozen=True, slots=True)
class SuccessModel:
    """What is known of success on all problems together (`replay/success.py`); the defaults hold before there are outcomes."""

    # A proven state succeeds at its end with 0.88, near the root with 0.05; one of an own failure with less than 0.05 anywhere.
    weights: tuple[float, ...] = (2.0, -5.0, -5.0, 0.0, 0.0, 0.0, 0.0)
    strength: float = 4.0  # outcomes that the model's chance counts as against a state's own
    centre: float = 0.0  # mean of the critic's values
    spread: float = 1.0  # their standard deviation


@dataclass(frozen=True, slots=True)
class RankSettings:
    """The settings of rankings."""

    target: float  # frontier: success rate that a start should have
    decay: float = 1.0  # factor on outcomes per visit of their problem; bounds the outcomes that a state can have
    model: SuccessModel = SuccessModel()


def rank_settings(config: ReplayConfig) -> RankSettings:
    """The settings of rankings, from the replay section of the configuration."""
    return RankSettings(target=config.target, decay=config.decay)


@dataclass(frozen=True, slots=True)
class Ranking:
    """A named ranking: its formula, and what it requires from the store and the loop."""

    priority: Callable[[StateColumns, RankSettings], FloatArray]
    """Priority [S] by which states are drawn."""
    retention: Callable[[StateColumns, FloatArray], FloatArray] | None = None
    """Retention [S] from columns and priorities: the lowest is evicted first. None: retention is the priority."""
    needs_values: bool = False
    """Whether the ranking reads the critic's values. Only then are stale values refreshed."""
    values_optional: bool = False
    """Whether the ranking also works without a critic, when all values are 0."""
    needs_canonical: bool = False
    """Whether the ranking replays only prefixes of canonical solutions."""
    chains: bool = False
    """Whether the ranking follows chains: a state's priority depends on the other stored states of its chain, and a success
    that continues a proven chain makes no new chain (`trainer/starts.py`)."""
    uses_model: bool = False
    """Whether the ranking reads the success model. Then outcomes train it, and all states are ranked again when it changes."""
    uses_spread: bool = False
    """Whether the ranking reads only the model's spread of the critic's values."""
    temperature: float = 0.2
    """Temperature of the draw if `replay.temperature` gives none. 0.2: a state of priority 1 is drawn e^2.5 = 12 times as often as
    one of 1/2."""
    shortlist: int = 1
    """States drawn per requested state."""
    choose: Callable[[Keys, FloatArray, FloatArray, int], Index] | None = None
    """Order of a shortlist, best first, from keys, wins and losses [m], and a seed. None: the order of the draw."""
    one_per_problem: bool = False
    """Whether an iteration replays at most one state of each problem. So few known problems take few starts from the fresh ones."""


def success_rate(wins: FloatArray, losses: FloatArray) -> FloatArray:
    """[S] Laplace's estimate of success, (w + 1) / (w + l + 2): 1/2 without outcomes."""
    return (wins + 1) / (wins + losses + 2)


def only(chosen: Flags) -> FloatArray:
    """Priority 0 for the chosen states [S], -inf for the others."""
    return np.where(chosen, np.float32(0.0), np.float32(-np.inf))
