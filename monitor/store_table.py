"""Shows the states of a store as one table: text, expected success, age and lineage. It filters, prints and exports it.
Invariant: the table has plain columns, so that pandas and DuckDB read the exported Parquet."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import groupby, islice
from pathlib import Path
from unicodedata import category

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from core.config import ReplayConfig
from core.errors import StoreError, first_line
from core.records import FloatArray, IntArray, Provenance
from replay.store.server import JOURNAL, recover
from replay.store.shard import Shard
from replay.store.snapshot import MANIFEST, load_snapshot, read_manifest
from replay.store.stats import StoreStats

ATTEMPTS = 10  # attempts to read a live shard: a checkpoint may replace its files during the read


def read_shards(live: Path, checkpoint: Path | None, config: ReplayConfig) -> list[Shard]:
    """The shards of a run: from the journals in `live`, or from a checkpoint where these are empty or missing
    (`--local`). Raises StoreError when there is neither."""
    shards = [_read_live(path, config) for path in sorted(live.glob(JOURNAL.format("*")))]
    saved = checkpoint is not None and (checkpoint / MANIFEST).is_file()
    if any(len(shard.states) for shard in shards) or (shards and not saved):
        return shards
    if checkpoint is None or not saved:
        raise StoreError(
            f"{live}: no replay store here and none in a checkpoint; name a run that "
            "replays states (replay.ratio above 0) and has begun to train"
        )
    manifest = read_manifest(checkpoint)
    shard = Shard(config, manifest["vocabulary"])
    for name in manifest["snapshots"]:
        load_snapshot(shard, checkpoint / name)
    return [shard]


def _read_live(journal: Path, config: ReplayConfig) -> Shard:
    for _ in range(ATTEMPTS - 1):
        with suppress(StoreError, OSError):
            return recover(journal, config).shard
        time.sleep(0.1)
    return recover(journal, config).shard


def states_table(shards: Sequence[Shard]) -> pa.Table:
    """All states, the highest priority first: problems by that of their best state, states within their problem."""
    newest = max(shard.version for shard in shards)
    table = pa.concat_tables([_shard_table(shard, newest) for shard in shards])
    chance = _chances(table, shards[0].ranking.temperature)
    best = table.group_by("problem").aggregate([("priority", "max")])
    order = [("priority_max", "descending"), ("problem", "ascending"), ("priority", "descending")]
    ordered = table.append_column("chance", pa.array(chance)).join(best, "problem")
    return ordered.sort_by([*order, ("depth", "ascending"), ("key", "ascending")]).drop_columns(["priority_max"])


def _chances(table: pa.Table, temperature: float) -> FloatArray:
    """[rows] the chance that a draw of the state's problem takes this state. Which problem is drawn also depends on
    when each was replayed (`rested` in replay/source.py)."""
    named = table["problem"].combine_chunks().dictionary_encode()
    problem, priority = named.indices.to_numpy(), table["priority"].to_numpy().astype(np.float64)
    top = np.full(len(named.dictionary), -1e30)
    np.maximum.at(top, problem, priority)
    weight = np.exp((priority - top[problem]) / temperature)
    whole = np.bincount(problem, weight, minlength=len(top))  # 1 or more, or 0 if none may be drawn
    return np.asarray(weight / np.maximum(whole, 1.0)[problem], np.float32)


def with_prefixes(table: pa.Table, shards: Sequence[Shard], decode: Callable[[IntArray], str]) -> pa.Table:
    """Add the prefixes as text to the rows of `table`. Decoding is slow, so select the rows first."""
    wanted, texts = table["key"].to_numpy(), dict[int, str]()
    for shard in shards:
        for row in np.flatnonzero(np.isin(shard.states["key"], wanted)).tolist():
            texts[int(shard.states["key"][row])] = decode(shard.prefix(row))
    return table.append_column("prefix", pa.array([texts[key] for key in wanted.tolist()], pa.string()))


def _shard_table(shard: Shard, newest: int) -> pa.Table:
    states, chain = shard.states, shard.states["trajectory"]
    success = shard.success()
    tried, solved = states["tried"].astype(np.int64), states["solved"].astype(np.int64)
    return pa.table(
        {
            "problem": pa.array([shard.names[i] for i in states["problem"].tolist()], pa.string()),
            "key": states["key"],
            "parent": states["parent"],  # 0: the root; no nulls, for which pandas would make floats of the keys
            "depth": states["length"],
            "response_tokens": shard.trajectories["size"][chain],
            "value": states["value"],
            "priority": states["priority"],
            "success": pa.array(success, mask=np.isnan(success)),  # of a continuation, as the ranking expects it
            "tried": tried,
            "solved": solved,
            "solve_rate": pa.array(solved / np.maximum(tried, 1), mask=tried == 0),
            "provenance": pa.array([Provenance(p).name.lower() for p in states["provenance"].tolist()], pa.string()),
            "reward": shard.trajectories["reward"][chain],
            "version": states["version"],
            "age": newest - states["version"],
            "rests": pa.array(shard.why_not(), pa.string()),
            "root_tried": shard.problems["tried"][states["problem"]],
            "root_solved": shard.problems["solved"][states["problem"]],
        }
    )


def select(
    table: pa.Table, *, problem: str | None = None, provenance: str | None = None, depth: tuple[int, int] | None = None
) -> pa.Table:
    """Rows of a problem, a provenance (the names of `Provenance`, in lower case), a depth range in tokens (ends
    included). Raises StoreError for an unknown problem or provenance."""
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
        table = table.filter((pc.field("depth") >= depth[0]) & (pc.field("depth") <= depth[1]))
    return table


def by_provenance(table: pa.Table) -> dict[str, dict[str, int]]:
    """Of each provenance that is there: states, those that may be drawn, their continuations and the solved ones."""
    counts = {}
    for provenance in table["provenance"].unique().to_pylist():
        rows = table.filter(pc.equal(table["provenance"], provenance))
        tried, solved = (int(pc.sum(rows[name]).as_py()) for name in ("tried", "solved"))
        drawable = int(pc.sum(pc.is_finite(rows["priority"])).as_py())
        counts[provenance] = {"states": rows.num_rows, "drawable": drawable, "tried": tried, "solved": solved}
    return counts


def first_states(table: pa.Table, problems: int, per_problem: int) -> pa.Table:
    """The first `per_problem` states of each of the first `problems` problems."""
    names = table["problem"].to_pylist()
    rows_of_each = (rows for _, rows in groupby(range(len(names)), names.__getitem__))  # rows of a problem are adjacent
    chosen = [row for rows in islice(rows_of_each, problems) for row in islice(rows, per_problem)]
    return table.take(pa.array(chosen, pa.int64()))


def parents_of(table: pa.Table) -> dict[int, int]:
    """State key -> key of its parent (0: the root)."""
    return dict(zip(table["key"].to_pylist(), table["parent"].to_pylist(), strict=True))


def lineage(parents: Mapping[int, int], key: int) -> list[int]:
    """The state, its parent, the parent's parent, and so on, up to a root or an evicted state."""
    chain, at = [key], parents.get(key, 0)
    while at != 0 and at not in chain:
        chain.append(at)
        at = parents.get(at, 0)
    return chain


def printable(line: str) -> str:
    """A line of a model or a data set as a terminal may get it: without control characters."""
    line = line.expandtabs(4)
    return "".join("?" if category(character) in ("Cc", "Cf", "Cs") else character for character in line)


def states_text(table: pa.Table, whole: pa.Table, prompts: Mapping[str, str]) -> str:
    """The rows as text for a terminal. `whole`: unfiltered, for the lineage; `prompts`: problem id -> its text."""
    lines: list[str] = []
    parents = parents_of(whole)
    current = None
    for row in table.to_pylist():
        if row["problem"] != current:
            current = row["problem"]
            lines.append(f"problem {current}: solved from the root {row['root_solved']}/{row['root_tried']}")
            lines += [f"    {printable(part)}" for part in prompts.get(current, "").splitlines()]
        rate = "untried" if row["solve_rate"] is None else f"solved {row['solved']}/{row['tried']}"
        rests = f"rests: {row['rests']}" if row["rests"] else f"{row['chance']:.0%} of its problem's draws"
        expected = "" if row["success"] is None else f"  expected success {row['success']:.1%}"
        line = " <- ".join(f"{key:016x}" for key in lineage(parents, row["key"]))
        lines.append(
            f"  {row['depth']}/{row['response_tokens']} tokens  value {row['value']:.3f}  priority "
            f"{row['priority']:.3f}{expected}  {rate}  {row['provenance']}  age {row['age']}  {rests}  {line}"
        )
        if "prefix" in row:
            lines += [f"    | {printable(part)}" for part in row["prefix"].splitlines()]
    return "\n".join(lines) if lines else "no state matches"


def store_summary(stats: StoreStats) -> str:
    """The store in a few lines: its size, and its counters since it was created."""

    def _solved(correct: int, of: int) -> str:
        return f"{correct / of:.1%} of {of:,}" if of else "none"

    return "\n".join(
        (
            f"{stats.states:,} states of {stats.problems:,} problems in {stats.trajectories:,} trajectories,"
            f" {stats.replayable:,} may be drawn;"
            f" {stats.memory_bytes / 2**20:.1f} MiB, {stats.token_bytes / 2**20:.1f} of tokens",
            f"offered {stats.offered:,}: {stats.merged:,} merged, {stats.rejected:,} rejected by their problem's quota;"
            f" evicted {stats.evicted:,}",
            f"solved: of continuations {_solved(stats.solved, stats.outcomes)}, of rollouts from the root"
            f" {_solved(stats.root_solved, stats.root_outcomes)}; {stats.lost_outcomes:,} outcomes of evicted states",
        )
    )


def export(table: pa.Table, path: str) -> None:
    """Write the table as one Parquet file."""
    try:
        pq.write_table(table, path)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written ({first_line(error)}); name another file with --export") from error
