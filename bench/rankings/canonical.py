"""A static curriculum over prefixes of canonical solutions (StepCoder, arXiv 2402.01391).

--replay.ratio 0.5 --replay.canonical true --replay.ranking bench.rankings.canonical:Canonical
"""

import numpy as np

from core.config import ReplayConfig
from core.errors import ConfigError
from core.records import FloatArray, Provenance
from replay.rankings.base import Ranking, Rules, StateColumns
from replay.rankings.chains import chains_of, kept_longest

VISITS = 8  # continuations, two starts of 4, after which the curriculum moves one state back, whatever they achieve


class Canonical(Ranking):
    """Prefixes of canonical solutions, from the end backwards. The states of a chain are numbered 0, 1, ... from the
    deepest. The one with the number floor(v / 8) is replayed, where v counts the continuations of the whole chain. A
    chain that has reached its beginning is not replayed."""

    def __init__(self, config: ReplayConfig) -> None:
        """Raises ConfigError where there would be nothing to replay."""
        if config.ratio > 0 and not config.canonical:
            raise ConfigError("this ranking replays canonical solutions only; set replay.canonical true")

    def why_not(self, states: StateColumns) -> Rules:
        """All states but one of each canonical chain."""
        found = chains_of(states, states.provenance == Provenance.CANONICAL)
        sizes = np.diff(np.append(found.first, len(found.order)))
        moved = found.sums(states.tried[found.order]).astype(np.int64) // VISITS
        over, waits = np.zeros((2, len(states.value)), np.bool_)
        over[found.order] = (moved >= sizes)[found.run]
        waits[found.order] = found.place != (sizes - 1 - moved)[found.run]
        other = states.provenance != Provenance.CANONICAL
        return (
            (other, "no prefix of a canonical solution"),
            (over, "its curriculum is over"),
            (waits, "another state is replayed"),
        )

    def retention(self, states: StateColumns, priority: FloatArray) -> FloatArray:
        """Retention [S]: `kept_longest` of the canonical states, -inf of all others."""
        found = chains_of(states, states.provenance == Provenance.CANONICAL)
        retention = np.full(len(states.value), -np.inf, np.float32)
        retention[found.order] = kept_longest(states, found, ~np.isneginf(priority))
        return retention
