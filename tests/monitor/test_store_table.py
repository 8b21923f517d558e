"""Looking inside a store: the table, filters, lineage, and what pandas and DuckDB read of the export."""

from pathlib import Path

import duckdb
import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest

from core.config import ReplayConfig
from core.errors import StoreError
from core.records import Provenance
from monitor.store_table import (
    by_provenance,
    export,
    first_states,
    lineage,
    parents_of,
    printable,
    read_shards,
    select,
    states_table,
    states_text,
    with_prefixes,
)
from replay.cutting import States
from replay.rankings.base import SuccessModel
from replay.store.server import ShardServer
from replay.store.shard import Shard
from replay.store.store import ReplayStore
from replay.store.writes import pack_outcomes, pack_states
from tests.monitor.continued import continued
from tests.replay.made import best, outcome, states

CONFIG = ReplayConfig(ranking="value")
NEWEST = 2**31 - 1


def decode(ids: object) -> str:
    return "".join(chr(97 + int(i)) for i in np.asarray(ids))


def whole(directory: Path) -> pa.Table:
    shards = read_shards(directory / "live", directory / "checkpoint", CONFIG)
    return with_prefixes(states_table(shards), shards, decode)


def two_states(problem: str, provenance: Provenance = Provenance.OWN_FAILED) -> States:
    return states(problem, range(5), [1, 3], [0.25, 0.75], provenance)


@pytest.fixture
def store(tmp_path: Path) -> ReplayStore:
    made = ReplayStore(CONFIG, vocabulary=26, directory=tmp_path / "live", fingerprint="f", local=True)
    made.add([two_states("p")], version=1)
    deep = made.top(1, NEWEST)[0]
    # a success that was started from the state (0, 1, 2)
    child = continued(states("p", [0, 1, 2, 9, 9, 9], [5], [0.5], Provenance.OWN_SUCCESSFUL), deep.key)
    made.add([child, two_states("q", Provenance.CANONICAL)], version=3)
    made.record([outcome(deep.key, "p", True, 3), outcome(deep.key, "p", False, 3)])
    made.save(tmp_path / "checkpoint")
    return made


def test_counts_of_each_provenance(store: ReplayStore, tmp_path: Path) -> None:
    assert by_provenance(whole(tmp_path)) == {
        "own_failed": {"states": 2, "drawable": 2, "tried": 2, "solved": 1},
        "own_successful": {"states": 1, "drawable": 1, "tried": 0, "solved": 0},
        "canonical": {"states": 2, "drawable": 2, "tried": 0, "solved": 0},
    }


def test_the_table_says_what_the_store_holds(store: ReplayStore, tmp_path: Path) -> None:
    table = whole(tmp_path)
    rows = {(r["problem"], r["prefix"]): r for r in table.to_pylist()}
    assert set(rows) == {("p", "a"), ("p", "abc"), ("p", "abcjj"), ("q", "a"), ("q", "abc")}
    deep = rows["p", "abc"]
    assert (deep["tried"], deep["solved"], deep["solve_rate"], deep["success"], deep["age"]) == (2, 1, 0.5, None, 2)
    assert lineage(parents_of(table), rows["p", "abcjj"]["key"]) == [rows["p", "abcjj"]["key"], deep["key"]]
    text = states_text(first_states(select(table, problem="p"), 1, 1), table, {"p": "1+1=?"})
    # the first candidate is from the root and failed; the child is a continuation of a state
    assert text.splitlines()[:2] == ["problem p: solved from the root 0/1", "    1+1=?"]
    assert "  3/5 tokens  value 0.750  " in text
    assert "priority 3.354  solved 1/2  own_failed  age 2  70% of its problem's draws  " in text
    assert text.endswith("    | abc")


def test_states_are_sorted_by_priority_and_their_chance_follows_from_it(store: ReplayStore, tmp_path: Path) -> None:
    rows = whole(tmp_path).to_pylist()
    # values 0.75, 0.5, 0.25 of p and 0.75, 0.25 of q have the deviation sqrt(0.05); p before q: their best states are
    # equal
    values = np.array([0.75, 0.5, 0.25, 0.75, 0.25])
    assert [row["priority"] for row in rows] == pytest.approx((values / np.sqrt(0.05)).tolist())
    # temperature 1: weights e^3.35, e^2.24, e^1.12 = 28.6, 9.36, 3.06 of 41.0, and of q 28.6, 3.06 of 31.7
    assert [row["chance"] for row in rows] == pytest.approx([0.697, 0.228, 0.075, 0.903, 0.097], abs=1e-3)
    assert {row["rests"] for row in rows} == {""}


def test_a_state_that_teaches_nothing_says_why() -> None:
    config = ReplayConfig(ranking="learnability")
    shard = Shard(config, 26)
    for problem, provenance in (("solved", Provenance.OWN_SUCCESSFUL), ("hard", Provenance.OWN_FAILED)):
        made = states(problem, range(9), [1], [0.5], provenance)
        for _ in range(3):  # root: (3 + 1) / (3 + 2) and 1 / 5; the first is above 1/2
            shard.apply(pack_states([made], 1, 26))
    table = states_table([shard])
    found = {row["problem"]: row["rests"] for row in table.to_pylist()}
    assert found == {"solved": "its problem is solved from the root", "hard": "its chance of success is below 5%"}
    # untried, so the model's chance alone: log odds at most 2 - 5 - 5 x 8/9, less for three failures of the root
    (hard,) = (row for row in table.to_pylist() if row["problem"] == "hard")
    assert 0.0 < hard["success"] < 1 / (1 + np.exp(3.0))
    text = states_text(table, table, {})
    assert (
        f"expected success {hard['success']:.1%}  untried  own_failed  age 0  rests: its chance of success is" in text
    )


def test_filters(store: ReplayStore, tmp_path: Path) -> None:
    table = whole(tmp_path)
    assert select(table, provenance="canonical")["prefix"].to_pylist() == ["abc", "a"]
    assert select(table, depth=(2, 4))["depth"].to_pylist() == [3, 3]
    assert [first_states(table, *few).num_rows for few in ((9, 1), (1, 2), (9, 9))] == [2, 2, 5]
    with pytest.raises(StoreError, match="problem 'x'"):
        select(table, problem="x")
    with pytest.raises(StoreError, match=r"provenance 'mine' .*own_failed"):
        select(table, provenance="mine")
    with pytest.raises(StoreError, match=r"replay\.ratio"):
        read_shards(tmp_path, None, CONFIG)


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


def test_empty_journals_of_a_run_that_starts_again_do_not_hide_its_checkpoint(
    store: ReplayStore, tmp_path: Path
) -> None:
    ShardServer(0, CONFIG, 26, tmp_path / "live", "id")
    assert whole(tmp_path).num_rows == 5


def test_the_live_journal_is_read_before_a_checkpoint(tmp_path: Path) -> None:
    server = ShardServer(0, CONFIG, 26, tmp_path / "live", "id")
    made = [two_states(problem) for problem in "pq"]
    server.write(0, pack_states(made[:1], 1, 26))
    server.save(1, tmp_path / "checkpoint" / "shard-0.parquet")
    server.write(1, pack_states(made[1:], 1, 26))
    first = server.read(2, best)[0]
    server.write(2, pack_outcomes([outcome(first.key, first.problem_id, True, 2)], SuccessModel()))
    assert whole(tmp_path)["problem"].to_pylist() == ["p", "p", "q", "q"]
    assert sum(whole(tmp_path)["tried"].to_pylist()) == 1


def test_a_terminal_gets_no_control_characters() -> None:
    assert printable("a\x1b[2Jb\x07") == "a?[2Jb?"
    assert printable("\treturn\u3000\xa01") == "    return\u3000\xa01"
