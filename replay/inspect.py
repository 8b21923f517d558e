"""Looking inside a store: its states as one table with text, posterior, age and lineage; filtered, printed, exported.

Called by `launch.py replay`. It reads the files of a running or finished run and never writes to them. Invariant: the
table is plain columns (no nesting), so that pandas and DuckDB read the exported Parquet as it is.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from core.config import ReplayConfig
from core.errors import StoreError
from core.records import IntArray, Provenance
from replay.opening import MANIFEST, Identity, load_shard
from replay.posterior import bounds
from replay.server import DIRECTORY
from replay.shard import Shard
from replay.stats import StoreStats
from replay.storage import Folder, Manifest, explained, find_manifest, shown

ATTEMPTS = 100
"""How often a shard is read anew because a compaction came between; a large one changes its files 8 times."""


def read_live(directory: str, config: ReplayConfig) -> list[Shard]:
    """The shards of a live directory: snapshots and logs, up to the last complete write."""
    folder = Folder(directory)
    found = find_manifest(folder, DIRECTORY)
    if found is None:
        raise StoreError(f"{directory}: no replay store here (no {DIRECTORY}); name the replay folder of a run")
    shards = []
    for index in range(found["shards"]):
        identity = Identity(index, found["shards"], found["vocabulary"], found["fingerprint"])
        shards.append(_read_shard(folder.child(f"shard-{index}"), identity, config))
    return shards


def _read_shard(folder: Folder, identity: Identity, config: ReplayConfig) -> Shard:
    """One shard, whose run may be compacting it: that deletes files between the reading of one and the next."""
    for _ in range(ATTEMPTS):
        before = _snapshot_of(folder)
        try:
            return load_shard(folder, identity, config, salvage=False).shard
        except StoreError:
            if _snapshot_of(folder) == before:
                raise
    raise StoreError(f"{shown(folder.uri)}: compacted {ATTEMPTS} times while it was read; try again")


def _snapshot_of(folder: Folder) -> Manifest | None:
    """The manifest that names the present snapshot; None before the first."""
    return find_manifest(folder, MANIFEST)


def states_table(shards: Sequence[Shard]) -> pa.Table:
    """All states, the most promising of each problem first."""
    newest = max((shard.version for shard in shards), default=0)
    table = pa.concat_tables([_shard_table(shard, newest) for shard in shards])
    return table.sort_by(
        [("problem", "ascending"), ("promise", "descending"), ("depth", "ascending"), ("key", "ascending")]
    )


def with_prefixes(table: pa.Table, shards: Sequence[Shard], decode: Callable[[IntArray], str]) -> pa.Table:
    """The rows of `table` with their prefixes as text; decoding is slow, so choose the rows first."""
    wanted, texts = table["key"].to_numpy(), dict[int, str]()
    for shard in shards:
        rows = shard.blocks.states.rows
        found = shard.select(np.flatnonzero((rows["key"] != 0) & np.isin(rows["key"], wanted)))
        texts |= zip(found.keys.tolist(), map(decode, found.prefixes()), strict=True)
    return table.append_column("prefix", pa.array([texts[key] for key in wanted.tolist()], pa.string()))


def _shard_table(shard: Shard, newest: int) -> pa.Table:
    rows = shard.blocks.states.rows
    rows = rows[rows["key"] != 0]
    chains = shard.trajectories.rows[rows["trajectory"]]
    a, b = 1.0 + rows["wins"].astype(np.float64), 1.0 + rows["losses"].astype(np.float64)
    low, high = bounds(a, b)
    tried = rows["tried"].astype(np.int64)
    columns: dict[str, object] = {
        "problem": pa.array([shard.names[i] for i in chains["problem"].tolist()], pa.string()),
        "key": rows["key"],
        "parent": chains["parent"],  # 0: a root; no nulls, for which pandas would make floats of the keys
        "depth": rows["length"],
        "response_tokens": chains["size"],
        "value": rows["value"],
        "promise": rows["promise"],
        "posterior": a / (a + b),
        "posterior_low": np.maximum(low, 0.0),
        "posterior_high": np.minimum(high, 1.0),
        "tried": tried,
        "solved": rows["solved"].astype(np.int64),
        "solve_rate": pa.array(rows["solved"] / np.maximum(tried, 1), mask=tried == 0),
        "provenance": pa.array([Provenance(p).name.lower() for p in rows["provenance"].tolist()], pa.string()),
        "reward": chains["reward"],
        "version": rows["version"],
        "age": newest - rows["version"],
    }
    return pa.table(
        {
            name: column if isinstance(column, pa.Array) else np.ascontiguousarray(column)
            for name, column in columns.items()
        }
    )  # type: ignore[arg-type]


def select(
    table: pa.Table,
    *,
    problem: str | None = None,
    provenance: str | None = None,
    depth: tuple[int, int] | None = None,
    per_problem: int | None = None,
) -> pa.Table:
    """Rows of a problem, a provenance (own_failed, own_successful, canonical), a depth range in tokens (both ends
    included); of each problem the first `per_problem`."""
    if problem is not None:
        table = table.filter(pc.equal(table["problem"], problem))
        if not table.num_rows:
            raise StoreError(f"no state of problem '{problem}' in the store")
    if provenance is not None:
        names = [p.name.lower() for p in Provenance]
        if provenance not in names:
            raise StoreError(f"provenance '{provenance}' is unknown; one of {', '.join(names)}")
        table = table.filter(pc.equal(table["provenance"], provenance))
    if depth is not None:
        inside = pc.and_(pc.greater_equal(table["depth"], depth[0]), pc.less_equal(table["depth"], depth[1]))
        table = table.filter(inside)
    if per_problem is not None:
        seen: dict[str, int] = {}
        keep = []
        for name in table["problem"].to_pylist():
            seen[name] = seen.get(name, 0) + 1
            keep.append(seen[name] <= per_problem)
        table = table.filter(pa.array(keep, pa.bool_()))
    return table


def first_problems(table: pa.Table, count: int) -> pa.Table:
    """Rows of the first `count` problems of the table."""
    names = list(dict.fromkeys(table["problem"].to_pylist()))[:count]
    return table.filter(pc.is_in(table["problem"], value_set=pa.array(names, pa.string())))


def parents_of(table: pa.Table) -> dict[int, int]:
    """State key -> key of the state that its trajectory was started from (0: a root)."""
    return dict(zip(table["key"].to_pylist(), table["parent"].to_pylist(), strict=True))


def lineage(parents: Mapping[int, int], key: int) -> list[int]:
    """The state, the state its trajectory was started from, and so on; ends at a root or at a state that was evicted."""
    chain, at = [key], parents.get(key, 0)
    while at != 0 and at not in chain:
        chain.append(at)
        at = parents.get(at, 0)
    return chain


def describe(table: pa.Table, whole: pa.Table) -> str:
    """The rows as text for a terminal; `whole` is the unfiltered table, for the lineage."""
    lines: list[str] = []
    parents = parents_of(whole)
    current = None
    for row in table.to_pylist():
        if row["problem"] != current:
            current = row["problem"]
            lines.append(f"problem {current}")
        rate = "untried" if row["solve_rate"] is None else f"solved {row['solved']}/{row['tried']}"
        line = " <- ".join(f"{key:016x}" for key in lineage(parents, row["key"]))
        lines.append(
            f"  {row['depth']}/{row['response_tokens']} tokens  value {row['value']:.3f}  promise {row['promise']:.3f}"
            f"  posterior {row['posterior']:.2f} [{row['posterior_low']:.2f}, {row['posterior_high']:.2f}]  {rate}"
            f"  {row['provenance']}  age {row['age']}  {line}"
        )
        if "prefix" in row:
            lines += [f"    | {part}" for part in row["prefix"].splitlines()]
    return "\n".join(lines) if lines else "no state matches"


def summary(stats: StoreStats) -> str:
    """The store in a few lines: what it holds, and what became of it since it was created."""

    def solved(correct: int, of: int) -> str:
        return f"{correct / of:.1%} of {of:,}" if of else "none"

    return "\n".join(
        (
            f"{stats.states:,} states of {stats.problems:,} problems in {stats.trajectories:,} trajectories,"
            f" {stats.replayable:,} may be drawn; {stats.memory_bytes / 2**20:.1f} MiB, {stats.token_bytes / 2**20:.1f} of tokens",
            f"offered {stats.offered:,}: {stats.merged:,} were there, {stats.rejected:,} below their problem's quota;"
            f" evicted {stats.evicted:,}",
            f"solved: of continuations {solved(stats.solved, stats.outcomes)}, of rollouts from the root"
            f" {solved(stats.root_solved, stats.root_outcomes)}; {stats.lost_outcomes:,} outcomes of evicted states",
        )
    )


def export(table: pa.Table, path: str) -> None:
    """Write the table as one Parquet file."""
    with explained("write", path):
        pq.write_table(table, path)
