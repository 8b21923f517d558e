"""A shard as a Parquet file."""

from pathlib import Path

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pytest

from core.config import ReplayConfig
from replay.store.keys import shard_of
from replay.store.shard import Shard
from replay.store.snapshot import load_snapshot, write_snapshot
from replay.store.writes import pack_states
from tests.replay.made import states
from tests.replay.test_shard import add, evict, stored
from tests.replay.test_shard import shard_of as shard_with
from tests.replay.test_store import candidates


def test_a_snapshot_does_not_show_that_its_shard_was_restored(tmp_path: Path) -> None:
    straight = shard_with(states("p", [1, 2, 3], [2], [0.1]), states("q", [4, 5, 6], [2], [0.9]))
    evict(straight, 1)
    write_snapshot(straight, tmp_path / "first")
    resumed = shard_with()
    load_snapshot(resumed, tmp_path / "first")
    for shard, name in ((straight, "left"), (resumed, "right")):
        add(shard, states("q", [4, 7, 8], [2], [0.5]), states("a", [1, 1, 1], [1], [0.5]))
        write_snapshot(shard, tmp_path / name)
    left, right = pd.read_parquet(tmp_path / "left"), pd.read_parquet(tmp_path / "right")
    assert left["id"].tolist() == right["id"].tolist()
    assert str(left.to_dict()) == str(right.to_dict())


@pytest.mark.parametrize("part", [1, 7, 4096])
def test_any_split_of_a_snapshot_has_all_of_it(tmp_path: Path, part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replay.store.snapshot.PART", part)
    whole = Shard(ReplayConfig(ranking="value"), 100)
    whole.apply(pack_states(candidates(40), 1, 100))
    write_snapshot(whole, tmp_path / "file")
    parts = []
    for index in range(3):
        shard = Shard(ReplayConfig(ranking="value"), 100)
        load_snapshot(shard, tmp_path / "file", lambda name, index=index: shard_of(name, 3) == index)  # type: ignore[misc]
        parts.append(stored(shard))
    assert stored(whole) == parts[0] | parts[1] | parts[2]
    assert sum(map(len, parts)) == len(whole.states)


def test_an_empty_shard_is_written_and_read(tmp_path: Path) -> None:
    write_snapshot(Shard(ReplayConfig(ranking="value"), 100), tmp_path / "file")
    shard = Shard(ReplayConfig(ranking="value"), 100)
    load_snapshot(shard, tmp_path / "file")
    assert len(shard.states) == 0
    assert np.isfinite(shard.nbytes)
