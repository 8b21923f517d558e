"""The writes to a shard as Arrow record batches: they are sent to the shard and stored in its journal.

The driver makes them here and validates everything, so a shard never gets a bad row. Invariant: a write contains all that
the shard needs to apply it again, so replaying the journal gives the same states.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from core.errors import StoreError
from core.records import Candidate, FloatArray, Outcome, ReplayedState
from replay.keys import Rows
from replay.rankings.base import SuccessModel
from replay.success import from_text, to_text

KIND = b"kind"
ADD, RECORD, REVALUE, EVICT = "add", "record", "revalue", "evict"

_OUTCOMES = pa.schema(
    [("problem", pa.string()), ("key", pa.uint64()), ("correct", pa.bool_()), ("version", pa.int32())]
)
_VALUES = pa.schema([("problem", pa.string()), ("key", pa.uint64()), ("value", pa.float32()), ("version", pa.int32())])
_EVICTION = pa.schema([("order", pa.uint64()), ("key", pa.uint64())])


def token_type(vocabulary: int) -> np.dtype[np.unsignedinteger]:
    """Smallest unsigned type that holds every token id of the vocabulary.

    >>> token_type(256), token_type(257), token_type(151_936)
    (dtype('uint8'), dtype('uint16'), dtype('uint32'))
    """
    return np.dtype(np.min_scalar_type(max(vocabulary - 1, 0)))


def pack_candidates(candidates: Sequence[Candidate], vocabulary: int) -> pa.RecordBatch:
    """The states of trajectories, one row per trajectory. Raises StoreError that names the problem and the bad state."""
    for candidate in candidates:
        _check_candidate(candidate)
    sizes = np.array([len(c.response_ids) for c in candidates], np.int64)
    counts = np.array([len(c.lengths) for c in candidates], np.int64)
    lengths = _joined([c.lengths for c in candidates], np.int32)
    values = _joined([c.values for c in candidates], np.float32)
    _check_states(candidates, sizes, counts, lengths, values)
    tokens = _checked_tokens(candidates, sizes, vocabulary)
    states = np.concatenate([[0], np.cumsum(counts)])
    columns = {
        "problem": pa.array([c.problem_id for c in candidates], pa.string()),
        "tokens": pa.LargeListArray.from_arrays(np.concatenate([[0], np.cumsum(sizes)]), pa.array(tokens)),
        "lengths": pa.LargeListArray.from_arrays(states, pa.array(lengths)),
        "values": pa.LargeListArray.from_arrays(states, pa.array(values)),
        "provenance": pa.array([int(c.provenance) for c in candidates], pa.uint8()),
        "reward": pa.array([c.reward for c in candidates], pa.float32()),
        "version": pa.array([c.version for c in candidates], pa.int32()),
        "parent": pa.array([c.parent or 0 for c in candidates], pa.uint64()),
    }
    return _marked(pa.RecordBatch.from_pydict(columns), ADD)


def pack_outcomes(outcomes: Sequence[Outcome], model: SuccessModel) -> pa.RecordBatch:
    """Outcomes of replayed states, one row each, and the new success model. Raises StoreError for a negative version."""
    for outcome in outcomes:
        if outcome.version < 0:
            raise StoreError(f"outcome of problem '{outcome.problem_id}': version {outcome.version} is negative")
    columns = [
        [o.problem_id for o in outcomes],
        [o.state_key for o in outcomes],
        [o.correct for o in outcomes],
        [o.version for o in outcomes],
    ]
    return _marked(_batch(columns, _OUTCOMES), RECORD, model=to_text(model))


def pack_values(states: Sequence[ReplayedState], values: FloatArray, version: int) -> pa.RecordBatch:
    """New values [S] of states from a critic of this weight version."""
    columns = [[s.problem_id for s in states], [s.key for s in states], values, [version] * len(states)]
    return _marked(_batch(columns, _VALUES), REVALUE)


def pack_eviction(order: int, key: int) -> pa.RecordBatch:
    """Evict all states up to this (eviction order, key)."""
    return _marked(_batch([[order], [key]], _EVICTION), EVICT)


def kind_of(write: pa.RecordBatch) -> str:
    """What a write is: `add`, `record`, `revalue` or `evict`."""
    return str(write.schema.metadata[KIND].decode())


def model_of(write: pa.RecordBatch) -> SuccessModel:
    """The success model, from a `record` write."""
    return from_text(write.schema.metadata[b"model"].decode())


def column(write: pa.RecordBatch, name: str) -> npt.NDArray[Any]:
    """A plain column of a write."""
    return np.asarray(write.column(name).to_numpy(zero_copy_only=False))


def ragged_column(write: pa.RecordBatch, name: str) -> tuple[npt.NDArray[Any], Rows]:
    """A list column of a write: the concatenated elements, and the number of elements of each row."""
    lists = write.column(name)
    return lists.flatten().to_numpy(zero_copy_only=False), np.diff(lists.offsets.to_numpy()).astype(np.int64)


def _batch(columns: list[Any], schema: pa.Schema) -> pa.RecordBatch:
    return pa.record_batch([pa.array(c, field.type) for c, field in zip(columns, schema, strict=True)], schema=schema)


def _marked(batch: pa.RecordBatch, kind: str, **others: str) -> pa.RecordBatch:
    return batch.replace_schema_metadata({KIND: kind} | others)


def _joined(parts: Sequence[npt.NDArray[Any]], dtype: type[np.generic]) -> npt.NDArray[Any]:
    return np.concatenate(parts, dtype=dtype, casting="unsafe") if parts else np.zeros(0, dtype)


def _check_candidate(candidate: Candidate) -> None:
    """Check a trajectory as a whole. Raises StoreError."""
    where = f"candidate of problem '{candidate.problem_id}'"
    if not candidate.problem_id:
        raise StoreError("candidate without a problem id; give every problem an id")
    if len(candidate.values) != len(candidate.lengths):
        raise StoreError(f"{where}: {len(candidate.lengths)} states but {len(candidate.values)} values")
    if candidate.version < 0:
        raise StoreError(f"{where}: version {candidate.version} is negative")
    if not math.isfinite(candidate.reward):
        raise StoreError(f"{where}: reward is {candidate.reward}")


def _check_states(
    candidates: Sequence[Candidate], sizes: Rows, counts: Rows, lengths: npt.NDArray[Any], values: npt.NDArray[Any]
) -> None:
    """Check that states are strictly inside their response, lengths increase and values are finite. Raises StoreError."""
    owner = np.repeat(np.arange(len(counts)), counts)
    outside = (lengths <= 0) | (lengths >= sizes[owner])
    falling = np.zeros(len(lengths), np.bool_)
    falling[1:] = (lengths[1:] <= lengths[:-1]) & (owner[1:] == owner[:-1])
    wrong = np.flatnonzero(outside | falling | ~np.isfinite(values))
    if not len(wrong):
        return
    at = wrong[0]
    where = f"candidate of problem '{candidates[owner[at]].problem_id}'"
    if outside[at]:
        size = sizes[owner[at]]
        raise StoreError(f"{where}: state of length {lengths[at]} is not strictly inside its response of {size} tokens")
    if falling[at]:
        raise StoreError(f"{where}: lengths {lengths[at - 1]}, {lengths[at]} do not increase")
    raise StoreError(f"{where}: the value of the state of length {lengths[at]} is {values[at]}")


def _checked_tokens(candidates: Sequence[Candidate], sizes: Rows, vocabulary: int) -> npt.NDArray[Any]:
    """All tokens in the smallest type for the vocabulary. Raises StoreError for a token outside the vocabulary."""
    tokens = np.concatenate([c.response_ids for c in candidates]) if candidates else np.zeros(0, np.int32)
    if len(tokens) and not 0 <= tokens.min() <= tokens.max() < vocabulary:
        at = int(np.flatnonzero((tokens < 0) | (tokens >= vocabulary))[0])
        owner = candidates[int(np.searchsorted(np.cumsum(sizes), at, side="right"))]
        raise StoreError(
            f"candidate of problem '{owner.problem_id}': token {tokens[at]} is outside the vocabulary of {vocabulary}"
        )
    return tokens.astype(token_type(vocabulary))
