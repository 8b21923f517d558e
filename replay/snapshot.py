"""A shard as three Parquet tables: written for checkpoints and compaction, read back, exported, looked into.

Files: `problems.parquet`, `trajectories.parquet` (tokens as a list column), `states.parquet`; plain columns that pandas
and DuckDB read. Invariant: `restore(capture(shard))` draws, ranks and evicts exactly as the shard does; and as problems
are independent of each other, so does any split of the problems over other shards.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from replay import kernels
from replay.arena import ends_of
from replay.keys import GROUPS, Rows, problem_hash
from replay.records import Counters
from replay.shard import Shard
from replay.table import STATE, TRAJECTORY

_STATE_FIELDS = [name for name in STATE.names or () if name not in ("spare", "trajectory")]
_TRAJECTORY_FIELDS = ["parent", "problem", "version", "reward", "provenance"]
_PROBLEM_FIELDS = ["wins", "losses", "touched", "tried", "solved"]


PART = 256
"""Problems written at once."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A shard's content at one moment; the tables share memory with nothing that changes."""

    problems: pa.Table
    trajectories: pa.Table
    states: pa.Table
    counters: Counters
    version: int
    gate: float  # the shard's trust in the critic


def capture(shard: Shard, groups: range = range(GROUPS)) -> Iterator[Snapshot]:
    """A shard's problems of `groups` in parts, to be written one after the other; in hash order, states oldest first within one.

    Parts are small, so that a thread which rests between them leaves the interpreter to the shard.
    """
    hashes = shard.blocks.problems.rows["hash"]
    order = np.argsort(hashes, kind="stable")
    group = (hashes[order] >> np.uint64(56)).astype(np.int64)
    order = order[np.searchsorted(group, groups.start) : np.searchsorted(group, groups.stop)]
    problems, trajectories = 0, 0
    for first in range(0, max(len(order), 1), PART):
        part = _part(shard, order[first : first + PART], problems, trajectories)
        problems, trajectories = problems + part.problems.num_rows, trajectories + part.trajectories.num_rows
        yield part


def _part(shard: Shard, chosen: Rows, problem_base: int, trajectory_base: int) -> Snapshot:
    """Some problems with all that belongs to them; references count from the bases."""
    problems = shard.blocks.problems.rows.take(chosen)
    names = pa.array([shard.names[i] for i in chosen.tolist()], pa.string())
    members = shard.blocks.gather(chosen)
    # in the order of their states: their own numbers are other ones in a shard that was restored
    used, chain = kernels.distinct(members.rows["trajectory"])
    first = np.flatnonzero(np.diff(np.maximum.accumulate(chain), prepend=-1))
    trajectories = shard.trajectories.rows.take(used)
    tokens = shard.arena.gather(trajectories["address"], trajectories["size"])
    lists = pa.LargeListArray.from_arrays(ends_of(trajectories["size"]), pa.array(tokens))
    return Snapshot(
        problems=pa.table({"id": names} | {f: problems[f].copy() for f in _PROBLEM_FIELDS}),
        trajectories=pa.table(
            {"tokens": lists}
            | {f: trajectories[f].copy() for f in _TRAJECTORY_FIELDS if f != "problem"}
            | {"problem": problem_base + members.owner[first]}
        ),
        states=pa.table(
            {f: members.rows[f].copy() for f in _STATE_FIELDS}
            | {"problem": problem_base + members.owner, "trajectory": trajectory_base + chain}
        ),
        counters=replace(shard.counters),
        version=shard.version,
        gate=shard.settings.gate,
    )


def restore(shard: Shard, part: Snapshot, groups: range = range(GROUPS)) -> None:
    """Add the problems of `groups` from a snapshot (of any shard) to a shard that does not have them."""
    names = part.problems.column("id").to_pylist()
    hashes = np.array([problem_hash(name) for name in names], np.uint64)
    part = only(part, groups, (hashes >> np.uint64(56)).astype(np.int64))
    numbers = shard.enter(part.problems.column("id").to_pylist())
    table = shard.blocks.problems.rows
    for field in _PROBLEM_FIELDS:
        table[field][numbers] = column(part.problems, field)
    rows = np.zeros(part.states.num_rows, STATE)
    for field in _STATE_FIELDS:
        rows[field] = column(part.states, field)
    lists = part.trajectories.column("tokens").combine_chunks()
    trajectories = np.zeros(part.trajectories.num_rows, TRAJECTORY)
    for field in _TRAJECTORY_FIELDS:
        trajectories[field] = column(part.trajectories, field)
    trajectories["problem"] = numbers[trajectories["problem"]]
    trajectories["size"] = np.diff(lists.offsets.to_numpy())
    rows["trajectory"] = column(part.states, "trajectory")
    shard.load(numbers, trajectories, lists.flatten().to_numpy(), rows, column(part.states, "problem"))
    shard.version = max(shard.version, part.version)
    shard.settings = replace(shard.settings, gate=part.gate)


def column(table: pa.Table, name: str) -> np.ndarray[Any, np.dtype[Any]]:
    """A column as numpy."""
    return np.asarray(table.column(name).to_numpy())


def only(part: Snapshot, groups: range, group_of: Rows) -> Snapshot:
    """The problems of a snapshot whose group (given for each problem) is in `groups`, with all that belongs to them."""
    wanted = (group_of >= groups.start) & (group_of < groups.stop)
    if wanted.all():
        return part
    place = np.cumsum(wanted) - 1
    of_trajectory, of_state = column(part.trajectories, "problem"), column(part.states, "problem")
    keep_trajectory, keep_state = wanted[of_trajectory], wanted[of_state]
    chain = (np.cumsum(keep_trajectory) - 1)[column(part.states, "trajectory")]
    trajectories = _renumber(part.trajectories, "problem", place[of_trajectory]).filter(pa.array(keep_trajectory))
    states = _renumber(_renumber(part.states, "problem", place[of_state]), "trajectory", chain)
    return Snapshot(
        part.problems.filter(pa.array(wanted)),
        trajectories,
        states.filter(pa.array(keep_state)),
        part.counters,
        part.version,
        part.gate,
    )


def _renumber(table: pa.Table, name: str, values: Rows) -> pa.Table:
    return table.set_column(table.schema.get_field_index(name), name, pa.array(values))
