"""Looking inside a store: the table, filters, lineage, and what pandas and DuckDB read of the export."""

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest

from core.config import ReplayConfig
from core.errors import StoreError
from core.records import Candidate, Outcome, Provenance
from replay import opening
from replay.inspect import describe, export, lineage, parents_of, read_live, select, states_table, with_prefixes
from replay.log import Recovered, recover
from replay.store import ReplayStore

CONFIG = ReplayConfig(shards=2)
EMPTY = np.zeros(2, np.int32), np.zeros(0, np.int32), np.zeros(0, np.float32)  # a trajectory without states


def decode(ids: object) -> str:
    return "".join(chr(97 + int(i)) for i in np.asarray(ids))


def whole(directory: Path) -> pa.Table:
    shards = read_live(str(directory / "live"), CONFIG)
    return with_prefixes(states_table(shards), shards, decode)


@pytest.fixture
def store(tmp_path: Path) -> ReplayStore:
    made = ReplayStore(CONFIG, vocabulary=26, directory=str(tmp_path / "live"), fingerprint="f", local=True)
    lengths, values = np.array([1, 3], np.int32), np.array([0.25, 0.75], np.float32)
    made.add([Candidate("p", np.arange(5, dtype=np.int32), lengths, values, Provenance.OWN_FAILED, 0.0, 1)])
    deep = made.top(1)[0]
    child = Candidate(
        "p",
        np.array([0, 1, 2, 9, 9, 9], np.int32),
        np.array([5], np.int32),
        np.array([0.5], np.float32),
        Provenance.OWN_SUCCESSFUL,
        1.0,
        3,
        parent=deep.key,
    )
    made.add([child, Candidate("q", np.arange(5, dtype=np.int32), lengths, values, Provenance.CANONICAL, 1.0, 3)])
    made.record([Outcome(deep.key, "p", True, 3), Outcome(deep.key, "p", False, 3)])
    return made


def test_the_table_says_what_the_store_holds(store: ReplayStore, tmp_path: Path) -> None:
    table = whole(tmp_path)
    rows = {(r["problem"], r["prefix"]): r for r in table.to_pylist()}
    assert set(rows) == {("p", "a"), ("p", "abc"), ("p", "abcjj"), ("q", "a"), ("q", "abc")}
    deep = rows["p", "abc"]
    assert (deep["tried"], deep["solved"], deep["solve_rate"], deep["posterior"], deep["age"]) == (2, 1, 0.5, 0.5, 2)
    assert lineage(parents_of(table), rows["p", "abcjj"]["key"]) == [rows["p", "abcjj"]["key"], deep["key"]]
    text = describe(select(table, problem="p", per_problem=1), table)
    assert text.splitlines()[0] == "problem p"
    assert "3/5 tokens  value 0.750  promise 0.750  posterior 0.50" in text
    assert "solved 1/2  own_failed  age 2" in text
    assert text.endswith("    | abc")


def test_filters(store: ReplayStore, tmp_path: Path) -> None:
    table = whole(tmp_path)
    assert select(table, provenance="canonical")["prefix"].to_pylist() == ["abc", "a"]
    assert select(table, depth=(2, 4))["depth"].to_pylist() == [3, 3]
    assert select(table, per_problem=1).num_rows == 2
    with pytest.raises(StoreError, match="no state of problem 'x'"):
        select(table, problem="x")
    with pytest.raises(StoreError, match="provenance 'mine' is unknown; one of own_failed, own_successful, canonical"):
        select(table, provenance="mine")
    with pytest.raises(StoreError, match="no replay store here"):
        read_live(str(tmp_path), CONFIG)


def test_the_export_is_read_by_pandas_and_duckdb(store: ReplayStore, tmp_path: Path) -> None:
    table: pa.Table = whole(tmp_path)
    path = str(tmp_path / "states.parquet")
    export(table, path)
    read = pd.read_parquet(path)
    assert read["prefix"].tolist() == table["prefix"].to_pylist()
    children = read[read["parent"] != 0].merge(read, left_on="parent", right_on="key")
    assert children[["prefix_x", "prefix_y"]].to_numpy().tolist() == [["abcjj", "abc"]]
    counted = duckdb.sql(f"select problem, count(*) from '{path}' group by problem order by problem")
    assert counted is not None
    assert counted.fetchall() == [("p", 3), ("q", 2)]


def test_a_shard_that_is_compacted_while_it_is_read_is_read_anew(
    store: ReplayStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compaction comes between the reading of the snapshot and that of the log, and a write after it."""
    expected = whole(tmp_path)["prefix"].to_pylist()
    held: list[None] = []

    def compacted_first(*given: Any, **options: Any) -> Recovered:
        if not held:
            held.append(None)
            for shard in store._actors:
                shard.compact()
                shard._wait_for_compaction()
            store.add([Candidate(p, *EMPTY, Provenance.OWN_FAILED, 0.0, 4) for p in "pq"])
        return recover(*given, **options)

    monkeypatch.setattr(opening, "recover", compacted_first)
    assert whole(tmp_path)["prefix"].to_pylist() == expected
    assert held


def test_damage_is_not_taken_for_a_compaction(store: ReplayStore, tmp_path: Path) -> None:
    for path in (tmp_path / "live").glob("shard-*/log-*.arrow"):
        path.write_bytes(b"PAR1 something else")
    with pytest.raises(StoreError, match="not a log of a replay store"):
        read_live(str(tmp_path / "live"), CONFIG)
