"""The writes to a shard as bytes, Arrow IPC streams of one record batch: they are sent to it and stored in its journal.
The driver checks the states here, so a shard never gets a bad one. Invariant: a write contains all that the shard needs
to apply it again, so replaying the journal gives the same states."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from core.errors import StoreError
from core.records import Rollout, Start
from replay.cutting import States
from replay.rankings.base import SuccessModel
from replay.store.keys import Rows
from replay.success import from_text, to_text

KIND = b"kind"
ADD, RECORD, REVALUE, REMOVE, EVICT = "add", "record", "revalue", "remove", "evict"

_OUTCOMES = pa.schema(
    [
        ("problem", pa.string()),
        ("key", pa.uint64()),
        ("correct", pa.bool_()),
        ("version", pa.int32()),
    ]
)
_VALUES = pa.schema([("problem", pa.string()), ("key", pa.uint64()), ("value", pa.float32()), ("version", pa.int32())])
_REMOVED = pa.schema([("problem", pa.string()), ("key", pa.uint64())])
_EVICTION = pa.schema([("order", pa.uint64()), ("key", pa.uint64())])


def token_type(vocabulary: int) -> np.dtype[np.unsignedinteger]:
    """Smallest unsigned type that holds every token id of the vocabulary: uint8 up to 256 tokens."""
    return np.dtype(np.min_scalar_type(max(vocabulary - 1, 0)))


def pack_states(batch: Sequence[States], version: int, vocabulary: int) -> bytes:
    """One row per rollout, with its tokens up to its last state. `version`: weight version of the values. StoreError
    names the problem and the bad state."""
    responses = [states.rollout.response_ids for states in batch]
    counts = np.array([len(states.lengths) for states in batch], np.int64)
    lengths = _joined([states.lengths for states in batch], np.int32)
    values = _joined([states.values for states in batch], np.float32)
    left = _joined([states.left for states in batch], np.float32)
    sizes = np.array([len(response) for response in responses], np.int32)
    owner = np.repeat(np.arange(len(counts)), counts)
    falls = np.append(False, (lengths[1:] <= lengths[:-1]) & (owner[1:] == owner[:-1]))[: len(lengths)]
    for at in np.flatnonzero((lengths <= 0) | (lengths >= sizes[owner]) | falls | ~np.isfinite(values))[:1]:
        raise StoreError(
            f"problem '{batch[owner[at]].problem_id}': a state of length {lengths[at]} has value {values[at]};"
            f" lengths must increase inside the response ({sizes[owner[at]]} tokens), and values be finite"
        )
    parts = [
        response[: states.lengths[-1] if len(states.lengths) else 0]
        for response, states in zip(responses, batch, strict=True)
    ]
    tokens = _joined(parts, np.int32)
    ends, states = np.cumsum([0, *map(len, parts)]), np.cumsum([0, *counts])
    for at in np.flatnonzero((tokens < 0) | (tokens >= vocabulary))[:1]:  # a smaller type would change it
        name = batch[int(np.searchsorted(ends, at, side="right")) - 1].problem_id
        raise StoreError(f"problem '{name}': token {tokens[at]} is outside the vocabulary of {vocabulary}")
    columns = {
        "problem": pa.array([states.problem_id for states in batch], pa.string()),
        "size": pa.array(sizes),
        "tokens": pa.LargeListArray.from_arrays(ends, pa.array(tokens.astype(token_type(vocabulary)))),
        "lengths": pa.LargeListArray.from_arrays(states, pa.array(lengths)),
        "values": pa.LargeListArray.from_arrays(states, pa.array(values)),
        "left": pa.LargeListArray.from_arrays(states, pa.array(left)),
        "provenance": pa.array([int(states.provenance) for states in batch], pa.uint8()),
        "reward": pa.array([states.rollout.reward for states in batch], pa.float32()),
        "version": pa.array([version] * len(batch), pa.int32()),
        "parent": pa.array([_parent(states.rollout.start) for states in batch], pa.uint64()),
    }
    return _stream(pa.RecordBatch.from_pydict(columns), ADD)


def _parent(start: Start) -> int:
    """The key of the state that a rollout continues; 0: it is from the root; 1: from a prefix of another source."""
    return int(not start.from_root) if start.state_key is None else start.state_key


def pack_outcomes(outcomes: Sequence[Rollout], model: SuccessModel) -> bytes:
    """Continuations of replayed states, one row each, and the new success model."""
    columns = {
        "problem": [rollout.start.problem_id for rollout in outcomes],
        "key": [rollout.start.state_key for rollout in outcomes],
        "correct": [rollout.verdict.correct for rollout in outcomes],
        "version": [int(rollout.versions[-1]) for rollout in outcomes],
    }
    return _stream(pa.RecordBatch.from_pydict(columns, _OUTCOMES), RECORD, model=to_text(model))


def pack_values(valued: Sequence[Rollout], version: int) -> bytes:
    """States with new values, the first of rollouts that continue them, from a critic of this weight version."""
    columns = {
        "problem": [rollout.start.problem_id for rollout in valued],
        "key": [rollout.start.state_key for rollout in valued],
        "value": [float(rollout.values[0]) for rollout in valued],
        "version": [version] * len(valued),
    }
    return _stream(pa.RecordBatch.from_pydict(columns, _VALUES), REVALUE)


def pack_removed(starts: Sequence[Start]) -> bytes:
    """The states of replayed starts, to be removed."""
    columns = {"problem": [start.problem_id for start in starts], "key": [start.state_key for start in starts]}
    return _stream(pa.RecordBatch.from_pydict(columns, _REMOVED), REMOVE)


def pack_eviction(order: int, key: int) -> bytes:
    """Evict all states up to this (eviction order, key)."""
    return _stream(pa.RecordBatch.from_pydict({"order": [order], "key": [key]}, _EVICTION), EVICT)


def unpack(write: bytes) -> pa.RecordBatch:
    """The rows of a write."""
    return pa.ipc.open_stream(write).read_next_batch()


def kind_of(write: pa.RecordBatch) -> str:
    """What a write is: `add`, `record`, `revalue`, `remove` or `evict`."""
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


def _stream(batch: pa.RecordBatch, kind: str, **others: str) -> bytes:
    marked, sink = batch.replace_schema_metadata({KIND: kind} | others), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, marked.schema) as stream:
        stream.write_batch(marked)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _joined(parts: Sequence[npt.NDArray[Any]], dtype: type[np.generic]) -> npt.NDArray[Any]:
    return np.concatenate([np.zeros(0, dtype), *parts], dtype=dtype, casting="unsafe")
