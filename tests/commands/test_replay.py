"""`launch.py replay` on the files of a run: what it prints, filters and exports."""

import shutil
from pathlib import Path

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import launch
from core.load import dump_config, load_config, override
from core.records import Provenance
from core.run_directory import RunDirectory, write_atomically
from replay.rankings.base import SuccessModel
from replay.store.server import ShardServer
from replay.store.writes import pack_outcomes, pack_states
from tasks.synthetic.corpus import character_tokenizer
from tests.monitor.continued import continued
from tests.replay.made import best, outcome, states


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's directory with configuration, tokenizer and a store: a failure, and a success that goes on from it."""
    made = RunDirectory.create(tmp_path, "r", "demo")
    config = override(load_config("configs/arithmetic.yaml"), ["--replay.ranking", "value"])
    write_atomically(made.config, dump_config(config))
    tokenizer = character_tokenizer("0123456789=abcd\n")
    tokenizer.save_pretrained(made.tokenizer)
    pq.write_table(pa.table({"problem": ["1+1"], "level": ["easy"], "prompt": ["1 + 1 = ?"]}), made.problems)
    shard = ShardServer(0, config.replay, len(tokenizer), made.replay, "id")

    def add(number: int, text: str, length: int, provenance: Provenance, parent: int | None = None) -> None:
        found = states("1+1", tokenizer.encode(text, add_special_tokens=False), [length], [0.5], provenance)
        found = found if parent is None else continued(found, parent)
        shard.write(number - 1, pack_states([found], 1, len(tokenizer)))

    add(1, "a=2\nb=4\n", 4, Provenance.OWN_FAILED)
    first = shard.read(1, best)[0].key
    add(2, "a=2\nb=3\nc=5\n", 8, Provenance.OWN_SUCCESSFUL, first)
    add(3, "c=7\nd=8\n", 4, Provenance.CANONICAL)
    shard.write(3, pack_outcomes([outcome(first, "1+1", correct, 1) for correct in (True, False)], SuccessModel()))
    return made.path


def test_states_are_shown_with_their_text_and_lineage(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert launch.main(["replay", str(run)]) == 0
    shown = capsys.readouterr().out
    assert shown.splitlines()[:2] == ["problem 1+1: solved from the root 0/1", "    1 + 1 = ?"]
    assert "    | a=2\n    | b=3\n" in shown
    assert "solved 1/2  own_failed" in shown
    assert " <- " in next(line for line in shown.splitlines() if "own_successful" in line)
    assert "3 states of 1 problems in 3 trajectories, 3 may be drawn" in shown
    assert "solved: of continuations 50.0% of 2, of rollouts from the root 0.0% of 1; 0 outcomes" in shown
    assert shown.endswith("3 of 3 states match\n")


def test_filters_choose_states(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert launch.main(["replay", str(run), "--provenance", "canonical", "--depth", "1", "6"]) == 0
    shown = capsys.readouterr().out
    assert "    | c=7\n3 states of 1 problems" in shown
    assert shown.endswith("1 of 3 states match\n")
    assert launch.main(["replay", str(run), "--top", "1"]) == 0
    assert capsys.readouterr().out.count("tokens  value") == 1
    assert launch.main(["replay", str(run), "--problem", "2+2"]) == 2
    assert capsys.readouterr().err == "error: no state of problem '2+2' in the store\n"
    assert launch.main(["replay", str(run), "--depth", "6", "1"]) == 2
    assert capsys.readouterr().err == "error: --depth 6 1: give the smaller one first\n"


def test_an_empty_store_is_told_in_one_line(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = RunDirectory.open(run)
    shutil.rmtree(made.replay)
    ShardServer(0, load_config(made.config).replay, 20, made.replay, "id")
    assert launch.main(["replay", str(run)]) == 0
    assert "no state" in capsys.readouterr().out


def test_a_run_that_replays_nothing_has_no_store(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(RunDirectory.open(run).replay)
    assert launch.main(["replay", str(run)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "replay.ratio" in line


def test_the_export_joins_children_with_their_parents(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run / "states.parquet"
    assert launch.main(["replay", str(run), "--export", str(path)]) == 0
    assert capsys.readouterr().out == f"3 states written to {path}\n"
    states = pd.read_parquet(path)
    joined = states.merge(states, left_on="parent", right_on="key")
    assert joined[["prefix_x", "prefix_y"]].to_numpy().tolist() == [["a=2\nb=3\n", "a=2\n"]]


def test_a_run_that_has_not_read_its_task_yet_is_told_in_one_line(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(RunDirectory.open(run).tokenizer)
    assert launch.main(["replay", str(run)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{run}: no tokenizer.json" in line
