"""By what the store ranks states: each ranking is a small pure function from columns to promise.

Called by the shard for all states of the problems that a write has touched. Invariant: the promise of a state depends
only on the columns of its own problem, so that placement over shards cannot change it. A promise of -inf means: keep
the state, but never replay it. States are drawn with probability ~ exp(promise / temperature).
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from core.records import FloatArray, Provenance
from replay.chains import chains, seats
from replay.columns import Columns, RankSettings
from replay.frontier import chain_worth, frontier
from replay.posterior import posterior, settled_worth

VISITS = 8
"""Continuations after which the static curriculum moves one state back."""


def value(values: FloatArray) -> FloatArray:
    """The paper (arXiv 2504.14363): promise(s) = V(s)."""
    return values.astype(np.float32)


def uniform(values: FloatArray) -> FloatArray:
    """Random boundary, the mandatory baseline: promise(s) = 0."""
    return np.zeros(len(values), np.float32)


def success_prefix(columns: Columns, settings: RankSettings) -> FloatArray:  # noqa: ARG001  one signature for all rankings
    """Own successes of hard problems: promise 0 for prefixes of own successful trajectories of problems whose root success
    (w + 1) / (w + l + 2) is at most 1/2, else -inf."""
    hard = (columns.root_wins + 1) / (columns.root_wins + columns.root_losses + 2) <= 0.5
    return _only(hard & (columns.provenance == Provenance.OWN_SUCCESSFUL))


def canonical(columns: Columns, settings: RankSettings) -> FloatArray:  # noqa: ARG001
    """The static curriculum (StepCoder, arXiv 2402.01391): canonical prefixes from the end backwards.

    The states of a canonical chain, deepest first, are numbered 0, 1, ...; promise is 0 for number floor(v / 8), v the
    continuations of all states of the chain so far, and -inf for the others; a chain gone through to its beginning rests.
    """
    found = chains(columns, columns.provenance == Provenance.CANONICAL)
    sizes = np.diff(np.append(found.first, len(found.order)))
    moved = found.sums(columns.tried[found.order]).astype(np.int64) // VISITS
    chosen = np.zeros(len(columns.value), np.bool_)
    chosen[found.order] = found.place == (sizes - 1 - moved)[found.run]
    return _only(chosen)


def canonical_worth(columns: Columns, promise: FloatArray) -> FloatArray:
    """Worth [S]: 1 / (1 + seat) of the canonical states (`replay/chains.py`): whole chains, the present state first."""
    found = chains(columns, columns.provenance == Provenance.CANONICAL)
    worth = np.full(len(columns.value), -np.inf, np.float32)
    worth[found.order] = 1.0 / (1.0 + seats(columns, found, ~np.isneginf(promise)))
    return worth


def _only(chosen: npt.NDArray[np.bool_]) -> FloatArray:
    return np.where(chosen, np.float32(0.0), np.float32(-np.inf))


class Ranking(NamedTuple):
    """A named ranking."""

    promise: Callable[[Columns, RankSettings], FloatArray]
    worth: Callable[[Columns, FloatArray], FloatArray] | None = None
    """What states are kept by when the store is full, from their columns and promises; None: their promise."""
    chains: bool = False
    """Whether promise belongs to chains: a state's depends on which others of its chain are held, and a success that
    continues a proven chain makes no new one (`trainer/starts.py`)."""
    explores: bool = False
    """Whether its own failures are a second pool, of which a batch has at most the share `replay.explore`."""
    uses_gate: bool = False
    """Whether the critic's measured calibration is part of it."""
    needs_values: bool = False
    """Whether the critic's values are part of it: then stale ones are worth renewing."""
    thompson: bool = False
    """Whether a batch is chosen by Thompson draws from a shortlist of proportional draws."""
    of_value: Callable[[FloatArray], FloatArray] | None = None
    """Where a state's value alone makes its promise, the function from values [S]: then an outcome changes no promise, and a
    new value that of its own state only."""


def _by_value(of_value: Callable[[FloatArray], FloatArray]) -> Ranking:
    return Ranking(lambda columns, _: of_value(columns.value), of_value=of_value)


RANKINGS: dict[str, Ranking] = {
    "value": _by_value(value)._replace(needs_values=True),
    "uniform": _by_value(uniform),
    "frontier": Ranking(frontier, chain_worth, chains=True, explores=True, uses_gate=True, needs_values=True),
    "posterior": Ranking(posterior, settled_worth, uses_gate=True, needs_values=True, thompson=True),
    "success_prefix": Ranking(
        success_prefix, lambda columns, _: _only(columns.provenance == Provenance.OWN_SUCCESSFUL)
    ),
    "canonical": Ranking(canonical, canonical_worth, chains=True),
}


def weights(promise: npt.NDArray[np.floating], temperature: float) -> npt.NDArray[np.float64]:
    """exp(promise / temperature), 0 for a promise of -inf; the exponent is held within +-600 so that sums stay finite.

    >>> weights(np.array([0.0, -np.inf], np.float32), 0.2).tolist()
    [1.0, 0.0]
    """
    logs = promise.astype(np.float64) / temperature
    return np.where(np.isneginf(logs), 0.0, np.exp(np.clip(logs, -600.0, 600.0)))


def standing(worth: FloatArray, version: npt.NDArray[np.int32], keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The order of eviction in one integer: worth first, then the newer version, then 12 bits of the key.

    Smaller goes first. The key's bits spread ties over a trajectory instead of preferring its end.
    """
    bits = (worth + np.float32(0)).view(np.uint32)  # + 0 turns -0.0 into 0.0
    ordered = np.where(bits >> 31, ~bits, bits | np.uint32(0x80000000)).astype(np.uint64)
    recent = (version.astype(np.uint64) & np.uint64(0xFFFFF)) << np.uint64(12)
    ranks: npt.NDArray[np.uint64] = (ordered << np.uint64(32)) | recent | (keys & np.uint64(0xFFF))
    return ranks
