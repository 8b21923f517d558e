"""Snapshots: a shard as one Parquet file, for checkpoints and as the base of a journal. It has one row per problem,
with trajectories and states as nested columns, so any split over other shards is a choice of rows. Invariant: a shard
that was loaded draws, ranks and evicts exactly as the one that was written."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from core.errors import StoreError, first_line
from replay.store.journal import unwritable
from replay.store.keys import Rows
from replay.store.records import Counters
from replay.store.shard import Shard
from replay.store.table import PROBLEM, STATE, TRAJECTORY
from replay.success import from_text, to_text

_OF_PROBLEM = [name for name in PROBLEM if name != "hash"]
_TYPES = {"tokens": pa.large_binary()}
_OF_STATE = [name for name in STATE if name not in ("problem", "trajectory")]
MANIFEST = "store.json"  # describes a saved store of any number of shards, in the folder of their snapshots
FORMAT = 15
PART = 4096  # problems per row group: Arrow cannot read nested columns of more than 2 GiB from one


def write_snapshot(shard: Shard, path: Path) -> None:
    """Write a shard to `path`. Raises StoreError when the disk is full or cannot be written."""
    about = {"counters": json.dumps(asdict(shard.counters)), "version": str(shard.version)}
    table = _table(shard).replace_schema_metadata(about | {"model": to_text(shard.model)})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path, row_group_size=PART, use_dictionary=False)
    except OSError as error:
        raise unwritable(path, error) from error


def load_snapshot(shard: Shard, path: Path, owns: Callable[[str], bool] = lambda _: True) -> Counters:
    """Add the problems that the shard owns from any shard's snapshot; returns its counters. Raises StoreError."""
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise StoreError(f"{path}: cannot be read ({first_line(error)}); resume from another checkpoint") from error
    about = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
    shard.version = max(shard.version, int(about["version"]))
    shard.model = from_text(about["model"])
    owned = np.array([owns(name) for name in table.column("id").to_pylist()], np.bool_)
    if not owned.all():
        table = table.filter(pa.array(owned))
    _load(shard, table)
    return Counters(**json.loads(about["counters"]))


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest that `ReplayStore.save` wrote. Raises StoreError when it cannot be read."""
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(
            f"{folder / MANIFEST}: cannot be read ({first_line(error)}); resume from another checkpoint"
        ) from error
    check_format(folder / MANIFEST, manifest)
    return manifest


def check_format(path: Path, about: Mapping[str, Any]) -> None:
    """Raises StoreError if a manifest or the header of a journal is of another version of the code."""
    if (found := about.get("format")) != FORMAT:
        raise StoreError(
            f"{path}: its format is {found}, but this code reads {FORMAT}; go on with the code that wrote it, or start "
            "a new run"
        )


def _table(shard: Shard) -> pa.Table:
    """The problems as rows. The trajectories of each are in the order in which its states first refer to them."""
    owner, chain = shard.states["problem"], shard.states["trajectory"]
    first = np.unique(chain, return_index=True)[1]  # every trajectory has a state
    used = np.argsort(first)  # by first reference, which groups them by problem
    chain_owner = owner[first[used]]
    local = np.argsort(used)[chain] - np.searchsorted(chain_owner, owner)
    trajectories = {name: pa.array(shard.trajectories[name][used], _TYPES.get(name)) for name in TRAJECTORY}
    states = {name: pa.array(shard.states[name]) for name in _OF_STATE} | {"trajectory": pa.array(local)}
    problems = {name: pa.array(shard.problems[name]) for name in _OF_PROBLEM}
    nested = {
        "trajectories": _nested(trajectories, np.bincount(chain_owner, minlength=len(shard.names))),
        "states": _nested(states, np.bincount(owner, minlength=len(shard.names))),
    }
    return pa.table({"id": pa.array(shard.names, pa.string())} | problems | nested)


def _load(shard: Shard, table: pa.Table) -> None:
    """Append the rows of a snapshot to a shard that does not have these problems."""
    numbers = shard.number(table.column("id").to_pylist())
    for name in _OF_PROBLEM:
        shard.problems[name][numbers] = table.column(name).to_numpy()
    trajectories, chains = _flat(table, "trajectories")
    states, counts = _flat(table, "states")
    first = shard.trajectories.append(len(trajectories), _columns(trajectories))
    own = _columns(states)
    own["trajectory"] = first + np.repeat(np.cumsum(chains) - chains, counts) + own["trajectory"]
    shard.states.append(len(states), own | {"problem": np.repeat(numbers, counts)})


def _columns(rows: pa.StructArray) -> dict[str, npt.NDArray[Any]]:
    return {field.name: rows.field(field.name).to_numpy(zero_copy_only=False) for field in rows.type}


def _nested(columns: dict[str, pa.Array], counts: Rows) -> pa.Array:
    rows = pa.StructArray.from_arrays(list(columns.values()), names=list(columns))
    return pa.ListArray.from_arrays(pa.array(np.append(0, np.cumsum(counts)), pa.int32()), rows)


def _flat(table: pa.Table, name: str) -> tuple[pa.StructArray, Rows]:
    """The concatenated elements of a nested column, and the number of elements of each row."""
    nested = table.column(name).combine_chunks()
    if isinstance(nested, pa.ChunkedArray):
        nested = nested.chunk(0) if nested.num_chunks else pa.array([], nested.type)
    return nested.flatten(), np.diff(nested.offsets.to_numpy()).astype(np.int64)
