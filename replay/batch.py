"""What travels from the driver to a shard, as columns: trajectories with their states, and outcomes.

`pack` and `pack_outcomes` are called by the driver; they validate everything, so a shard never sees a bad row.
Invariant: a batch is self-contained and holds each trajectory's tokens once, in the vocabulary's smallest type.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from core.errors import StoreError
from core.records import Candidate, Outcome, Provenance
from replay import kernels

Tokens = npt.NDArray[np.unsignedinteger]
Ints = npt.NDArray[np.int32]
_PROVENANCES = [int(p) for p in Provenance]
Number = TypeVar("Number", bound=np.generic)


@dataclass(frozen=True, slots=True)
class Batch:
    """T trajectories with S states in total; states are grouped by trajectory, in order."""

    problem_ids: list[str]  # [T]
    tokens: Tokens  # [sum of sizes] responses, one after the other
    sizes: Ints  # [T] tokens of each response
    counts: Ints  # [T] states of each trajectory, 0 allowed
    lengths: Ints  # [S] prefix lengths
    values: npt.NDArray[np.float32]  # [S]
    provenance: npt.NDArray[np.uint8]  # [T]
    reward: npt.NDArray[np.float32]  # [T]
    version: Ints  # [T]
    parent: npt.NDArray[np.uint64]  # [T], 0: started from the root


@dataclass(frozen=True, slots=True)
class OutcomeBatch:
    """N outcomes of replayed states."""

    problem_ids: list[str]  # [N]
    keys: npt.NDArray[np.uint64]  # [N]
    correct: npt.NDArray[np.bool_]  # [N]
    version: Ints  # [N]


def token_type(vocabulary: int) -> np.dtype[np.unsignedinteger]:
    """Smallest unsigned type that holds every token id of the vocabulary.

    >>> token_type(256), token_type(257), token_type(151_936)
    (dtype('uint8'), dtype('uint16'), dtype('uint32'))
    """
    return np.dtype(np.min_scalar_type(max(vocabulary - 1, 0)))


def pack(candidates: Sequence[Candidate], vocabulary: int) -> Batch:
    """Columns of the candidates; StoreError names the problem and the state for anything out of range."""
    many = len(candidates)
    problem_ids, responses = [c.problem_id for c in candidates], [c.response_ids for c in candidates]
    cuts, valued = [c.lengths for c in candidates], [c.values for c in candidates]
    sizes, counts, others = (np.fromiter(map(len, part), np.int32, many) for part in (responses, cuts, valued))
    provenance = np.fromiter([c.provenance for c in candidates], np.int64, many)
    reward = np.fromiter([c.reward for c in candidates], np.float32, many)
    version = np.fromiter([c.version for c in candidates], np.int32, many)
    sound = (counts == others) & (version >= 0) & np.isfinite(reward)
    sound &= (provenance >= 0) & (provenance < len(Provenance))
    if not (sound.all() and all(problem_ids)):
        for candidate in candidates:
            _check_shapes(candidate)
    lengths, values = _join(cuts, np.int32), _join(valued, np.float32)
    tokens = np.concatenate(responses) if many else np.zeros(0, np.int32)  # wider ids stay
    _check_values(candidates, sizes, counts, lengths, values)
    return Batch(
        problem_ids=problem_ids,
        tokens=_narrow(candidates, sizes, tokens, vocabulary),
        sizes=sizes,
        counts=counts,
        lengths=lengths,
        values=values,
        provenance=provenance.astype(np.uint8),
        reward=reward,
        version=version,
        parent=np.fromiter([c.parent or 0 for c in candidates], np.uint64, many),
    )


def pack_outcomes(outcomes: Sequence[Outcome]) -> OutcomeBatch:
    """Columns of the outcomes."""
    many = len(outcomes)
    version = np.fromiter([o.version for o in outcomes], np.int32, many)
    if many and version.min() < 0:
        bad = next(o for o in outcomes if o.version < 0)
        raise StoreError(f"outcome of problem '{bad.problem_id}': version {bad.version} is negative")
    return OutcomeBatch(
        [o.problem_id for o in outcomes],
        np.fromiter([o.state_key for o in outcomes], np.uint64, many),
        np.fromiter([o.correct for o in outcomes], np.bool_, many),
        version,
    )


def _join(parts: Sequence[npt.NDArray[Any]], dtype: type[Number]) -> npt.NDArray[Number]:
    return np.concatenate(parts, dtype=dtype, casting="unsafe") if parts else np.zeros(0, dtype)


def _check_shapes(candidate: Candidate) -> None:
    where = f"candidate of problem '{candidate.problem_id}'"
    if not candidate.problem_id:
        raise StoreError("candidate without a problem id; give every problem an id")
    if len(candidate.values) != len(candidate.lengths):
        raise StoreError(f"{where}: {len(candidate.lengths)} states but {len(candidate.values)} values")
    if candidate.version < 0:
        raise StoreError(f"{where}: version {candidate.version} is negative")
    if not np.isfinite(candidate.reward):
        raise StoreError(f"{where}: reward is {candidate.reward}")
    if candidate.provenance not in _PROVENANCES:
        raise StoreError(f"{where}: unknown provenance {candidate.provenance}")


def _check_values(
    candidates: Sequence[Candidate], sizes: Ints, counts: Ints, lengths: Ints, values: npt.NDArray[np.float32]
) -> None:
    kind, at, owner = kernels.flaw(sizes, counts, lengths, values)
    if kind == 0:
        return
    where = f"candidate of problem '{candidates[owner].problem_id}'"
    if kind == kernels.OUTSIDE:
        raise StoreError(
            f"{where}: state of length {lengths[at]} is not strictly inside its response of {sizes[owner]} tokens"
        )
    if kind == kernels.FALLING:
        raise StoreError(f"{where}: lengths {lengths[at - 1]}, {lengths[at]} do not increase")
    raise StoreError(f"{where}: the value of the state of length {lengths[at]} is {values[at]}")


def _narrow(candidates: Sequence[Candidate], sizes: Ints, tokens: npt.NDArray[Any], vocabulary: int) -> Tokens:
    """Token ids in the vocabulary's type; StoreError for one outside it."""
    found: Tokens = np.empty(len(tokens), token_type(vocabulary))
    at = kernels.narrow(tokens, vocabulary, found)
    if at < 0:
        return found
    owner = int(np.searchsorted(np.cumsum(sizes), at, side="right"))
    raise StoreError(
        f"candidate of problem '{candidates[owner].problem_id}': token {tokens[at]} is outside the vocabulary of {vocabulary}"
    )
