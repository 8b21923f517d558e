"""Writes of a shard as Arrow record batches: what the log holds and recovery applies again.

Each operation is a small record with `encode` and `apply`; the log knows nothing of their meaning. Invariant: applying
the decoded operation does exactly what applying the original did.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from replay.arena import ends_of
from replay.batch import Batch, OutcomeBatch, token_type
from replay.shard import Revaluation, Shard

ADD, RECORD, EVICT, REVALUE, TRUST = 1, 2, 3, 4, 5

_RECORD = pa.schema(
    [("problem_id", pa.string()), ("key", pa.uint64()), ("correct", pa.bool_()), ("version", pa.int32())]
)
_EVICT = pa.schema([("standing", pa.uint64()), ("key", pa.uint64())])
_REVALUE = pa.schema(
    [("problem_id", pa.string()), ("key", pa.uint64()), ("value", pa.float32()), ("version", pa.int32())]
)
_TRUST = pa.schema([("gate", pa.float64())])


@dataclass(frozen=True, slots=True)
class Evict:
    """Remove all states up to this one in the order of `Shard.least`: so it too concerns each problem by itself."""

    standing: int
    key: int


@dataclass(frozen=True, slots=True)
class Trust:
    """Set the trust in the critic."""

    gate: float


Operation = Batch | OutcomeBatch | Evict | Revaluation | Trust


def check(shard: Shard, operation: Operation) -> None:
    """StoreError for a write that names a problem which was never added."""
    if isinstance(operation, OutcomeBatch | Revaluation):
        shard.known(operation.problem_ids)


def apply(shard: Shard, operation: Operation) -> None:
    """Do a write."""
    match operation:
        case Batch():
            shard.add(operation)
        case OutcomeBatch():
            shard.record(operation)
        case Revaluation():
            shard.revalue(operation)
        case Evict():
            shard.evict(operation.standing, operation.key)
        case Trust():
            shard.trust(operation.gate)


def restrict(operation: Operation, wanted: Callable[[str], bool]) -> Operation:
    """What a write means for the problems that are wanted."""
    if isinstance(operation, Evict | Trust):
        return operation
    kept = np.fromiter(map(wanted, operation.problem_ids), np.bool_, len(operation.problem_ids))
    if kept.all():
        return operation
    names = [name for name, keep in zip(operation.problem_ids, kept.tolist(), strict=True) if keep]
    match operation:
        case OutcomeBatch():
            return OutcomeBatch(names, operation.keys[kept], operation.correct[kept], operation.version[kept])
        case Revaluation():
            return Revaluation(names, operation.keys[kept], operation.values[kept], operation.version[kept])
        case Batch():
            states = np.repeat(kept, operation.counts)
            return Batch(
                names,
                operation.tokens[np.repeat(kept, operation.sizes)],
                operation.sizes[kept],
                operation.counts[kept],
                operation.lengths[states],
                operation.values[states],
                operation.provenance[kept],
                operation.reward[kept],
                operation.version[kept],
                operation.parent[kept],
            )


def encode(operation: Operation) -> tuple[int, pa.Buffer]:
    """Kind and Arrow IPC bytes of an operation."""
    match operation:
        case Batch():
            return ADD, _encode_add(operation).serialize()
        case OutcomeBatch():
            columns = [operation.problem_ids, operation.keys, operation.correct, operation.version]
            return RECORD, _columns(columns, _RECORD)
        case Revaluation():
            columns = [operation.problem_ids, operation.keys, operation.values, operation.version]
            return REVALUE, _columns(columns, _REVALUE)
        case Evict():
            return EVICT, _columns([[operation.standing], [operation.key]], _EVICT)
        case Trust():
            return TRUST, _columns([[operation.gate]], _TRUST)


def _columns(columns: list[Any], schema: pa.Schema) -> pa.Buffer:
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.record_batch(arrays, schema=schema).serialize()


def decode(kind: int, payload: pa.Buffer, vocabulary: int) -> Operation:
    """The operation that `encode` was given."""
    return _DECODERS[kind](payload, vocabulary)


def _add_schema(vocabulary_type: np.dtype[Any]) -> pa.Schema:
    return pa.schema(
        [
            ("problem_id", pa.string()),
            ("tokens", pa.large_list(pa.from_numpy_dtype(vocabulary_type))),
            ("lengths", pa.large_list(pa.int32())),
            ("values", pa.large_list(pa.float32())),
            ("provenance", pa.uint8()),
            ("reward", pa.float32()),
            ("version", pa.int32()),
            ("parent", pa.uint64()),
        ]
    )


def _encode_add(batch: Batch) -> pa.RecordBatch:
    states = ends_of(batch.counts)
    columns = [
        pa.array(batch.problem_ids, pa.string()),
        pa.LargeListArray.from_arrays(ends_of(batch.sizes), pa.array(batch.tokens)),
        pa.LargeListArray.from_arrays(states, pa.array(batch.lengths)),
        pa.LargeListArray.from_arrays(states, pa.array(batch.values)),
        *(pa.array(column) for column in (batch.provenance, batch.reward, batch.version, batch.parent)),
    ]
    return pa.record_batch(columns, schema=_add_schema(batch.tokens.dtype))


def _decode_add(payload: pa.Buffer, vocabulary: int) -> Batch:
    found = pa.ipc.read_record_batch(payload, _add_schema(token_type(vocabulary)))

    def plain(name: str) -> Any:
        return found.column(name).to_numpy()

    def flat(name: str) -> Any:
        return found.column(name).flatten().to_numpy()

    def sizes(name: str) -> Any:
        return np.diff(found.column(name).offsets.to_numpy()).astype(np.int32)

    return Batch(
        found.column("problem_id").to_pylist(),
        flat("tokens"),
        sizes("tokens"),
        sizes("lengths"),
        flat("lengths"),
        flat("values"),
        *(plain(name) for name in ("provenance", "reward", "version", "parent")),
    )


def _decode_record(payload: pa.Buffer, vocabulary: int) -> OutcomeBatch:  # noqa: ARG001  one signature
    found = pa.ipc.read_record_batch(payload, _RECORD)
    return OutcomeBatch(
        found.column("problem_id").to_pylist(),
        found.column("key").to_numpy(),
        found.column("correct").to_numpy(zero_copy_only=False),
        found.column("version").to_numpy(),
    )


def _decode_evict(payload: pa.Buffer, vocabulary: int) -> Evict:  # noqa: ARG001
    found = pa.ipc.read_record_batch(payload, _EVICT)
    return Evict(found.column("standing")[0].as_py(), found.column("key")[0].as_py())


def _decode_revalue(payload: pa.Buffer, vocabulary: int) -> Revaluation:  # noqa: ARG001
    found = pa.ipc.read_record_batch(payload, _REVALUE)
    return Revaluation(
        found.column("problem_id").to_pylist(), *(found.column(n).to_numpy() for n in ("key", "value", "version"))
    )


def _decode_trust(payload: pa.Buffer, vocabulary: int) -> Trust:  # noqa: ARG001
    return Trust(pa.ipc.read_record_batch(payload, _TRUST).column("gate")[0].as_py())


_DECODERS: dict[int, Callable[[pa.Buffer, int], Operation]] = {
    ADD: _decode_add,
    RECORD: _decode_record,
    EVICT: _decode_evict,
    REVALUE: _decode_revalue,
    TRUST: _decode_trust,
}
