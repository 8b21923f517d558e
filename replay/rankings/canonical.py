"""The ranking `canonical`: a static curriculum over prefixes of canonical solutions (StepCoder, arXiv 2402.01391)."""

import numpy as np

from core.records import FloatArray, Provenance
from replay.rankings.base import Ranking, RankSettings, StateColumns, only
from replay.rankings.chains import chains_of, kept_longest

VISITS = 8
"""Continuations after which the curriculum moves one state back: two starts of 4. It moves by count, whatever they achieve."""


def canonical(columns: StateColumns, settings: RankSettings) -> FloatArray:  # noqa: ARG001  one signature for all rankings
    """Priority [S] of canonical prefixes, from the end backwards.

    The states of a canonical chain are numbered 0, 1, ... from the deepest. Priority is 0 for number floor(v / 8) and -inf for the
    others, where v counts the continuations of all states of the chain. A chain that has reached its beginning is not replayed.
    """
    found = chains_of(columns, columns.provenance == Provenance.CANONICAL)
    sizes = np.diff(np.append(found.first, len(found.order)))
    moved = found.sums(columns.tried[found.order]).astype(np.int64) // VISITS
    chosen = np.zeros(len(columns.value), np.bool_)
    chosen[found.order] = found.place == (sizes - 1 - moved)[found.run]
    return only(chosen)


def canonical_retention(columns: StateColumns, priority: FloatArray) -> FloatArray:
    """Retention [S]: `kept_longest` of the canonical states, -inf of all others."""
    found = chains_of(columns, columns.provenance == Provenance.CANONICAL)
    retention = np.full(len(columns.value), -np.inf, np.float32)
    retention[found.order] = kept_longest(columns, found, ~np.isneginf(priority))
    return retention


RANKING = Ranking(canonical, canonical_retention, needs_canonical=True, chains=True)
