"""A shard with its files: every acknowledged write survives, a half-written one is dropped."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from core.config import ReplayConfig
from core.errors import LostShardError, StoreError
from replay.store.journal import Journal, read_journal
from replay.store.server import ShardServer, recover
from replay.store.snapshot import FORMAT
from replay.store.stats import shard_stats
from replay.store.writes import pack_states
from tests.replay.made import best, states

ROOT = Path(__file__).parents[2]
CONFIG = ReplayConfig(ranking="value")


def server(folder: Path, store_id: str = "a") -> ShardServer:
    return ShardServer(0, CONFIG, 100, folder, store_id)


def fill(shard: ShardServer, first: int, last: int) -> None:
    """Writes `first` to `last`, one problem each."""
    for number in range(first, last + 1):
        tokens = np.random.default_rng(number).integers(0, 100, 60).astype(np.int32)
        made = states(f"p{number}", tokens, [2, 4], [0.25, 0.5])
        shard.write(number - 1, pack_states([made], number, 100))


def content(shard: ShardServer) -> set[tuple[str, tuple[int, ...]]]:
    return {(state.problem_id, tuple(state.prefix_ids)) for state in shard.read(0, best)}


def test_a_repeated_write_counts_once(tmp_path: Path) -> None:
    shard = server(tmp_path)
    fill(shard, 1, 2)
    before = content(shard)
    fill(shard, 2, 2)
    assert content(shard) == before
    assert shard.read(2, shard_stats).offered == 4


@pytest.mark.parametrize("saved", [None, 0, 3, 5])
def test_a_shard_that_is_started_again_has_every_write(tmp_path: Path, saved: int | None) -> None:
    shard = server(tmp_path / "live")
    if saved is not None:
        fill(shard, 1, saved)
        shard.save(saved, tmp_path / "checkpoint" / "shard-0.parquet")
    fill(shard, (saved or 0) + 1, 5)
    again = server(tmp_path / "live")
    assert again.read(5, shard_stats) == shard.read(5, shard_stats)
    assert content(again) == content(shard)
    fill(again, 6, 6)
    assert content(server(tmp_path / "live")) == content(again)


def test_the_journal_begins_anew_at_a_checkpoint(tmp_path: Path) -> None:
    shard = server(tmp_path)
    fill(shard, 1, 50)
    size = (tmp_path / "shard-0.journal").stat().st_size
    shard.save(50, tmp_path / "checkpoint" / "shard-0.parquet")
    assert (tmp_path / "shard-0.journal").stat().st_size < size / 10
    fill(shard, 51, 51)
    shard.save(51, tmp_path / "checkpoint" / "shard-0.parquet")
    assert len(list(tmp_path.glob("*.parquet"))) == 1


@pytest.mark.parametrize("damage", ["missing snapshot", "half a snapshot", "empty journal", "foreign journal"])
def test_a_shard_whose_files_cannot_be_read_says_so_and_can_be_restored(tmp_path: Path, damage: str) -> None:
    shard, saved = server(tmp_path / "live"), tmp_path / "checkpoint" / "shard-0.parquet"
    fill(shard, 1, 3)
    shard.save(3, saved)
    copy = saved.read_bytes()
    (snapshot,), journal = (tmp_path / "live").glob("*.parquet"), tmp_path / "live" / "shard-0.journal"
    match damage:
        case "missing snapshot":
            snapshot.unlink()
        case "half a snapshot":
            snapshot.write_bytes(copy[: len(copy) // 2])
        case "empty journal":
            journal.write_bytes(b"")
        case _:
            journal.write_bytes((20).to_bytes(8, "little") + b"something else there")
    again = server(tmp_path / "live")
    with pytest.raises(LostShardError, match="0 of 3 writes"):
        again.read(3, best)
    again.restore(3, [saved], 1)
    assert content(again) == content(shard)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"/file/shard-0\."):
        server(tmp_path / "file")


def test_files_of_an_earlier_store_are_not_read(tmp_path: Path) -> None:
    fill(server(tmp_path, "a"), 1, 3)
    assert content(server(tmp_path, "b")) == set()


def test_a_journal_of_another_format_is_refused(tmp_path: Path) -> None:
    fill(server(tmp_path), 1, 3)
    journal = tmp_path / "shard-0.journal"
    header, writes, _ = read_journal(journal)
    assert writes
    Journal(journal).begin(header | {"format": FORMAT - 1})
    with pytest.raises(StoreError, match=rf"/shard-0\.journal: .*{FORMAT - 1}"):
        recover(journal, CONFIG)
    assert content(server(tmp_path)) == set()


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_half_a_write_at_the_end_is_dropped(tmp_path: Path, share: float) -> None:
    shard, journal = server(tmp_path), tmp_path / "shard-0.journal"
    fill(shard, 1, 3)
    before, size = content(shard), journal.stat().st_size
    fill(shard, 4, 4)
    whole = journal.read_bytes()
    journal.write_bytes(whole[: size + int(share * (len(whole) - size))])
    again = server(tmp_path)
    assert content(again) == before
    with pytest.raises(LostShardError, match="3 of 4 writes"):
        again.read(4, shard_stats)
    fill(again, 4, 4)
    assert content(server(tmp_path)) == content(shard)


FULL_DISK = """
import resource, sys
from pathlib import Path
from core.errors import StoreError
from tests.replay.test_server import content, fill, server
shard = server(Path(sys.argv[1]))
fill(shard, 1, 5)
before = content(shard)
used = (Path(sys.argv[1]) / "shard-0.journal").stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (used + 40, resource.RLIM_INFINITY))  # the next write does not fit
try:
    fill(shard, 6, 6)
except StoreError as error:
    print(error)
assert content(shard) == before == content(server(Path(sys.argv[1])))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
fill(shard, 6, 6)
assert len(content(server(Path(sys.argv[1])))) == len(before) + 2
"""


def test_a_full_disk_is_one_clear_line_and_loses_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == (
        f"{tmp_path}/shard-0.journal: cannot be written (File too large); free space there or choose another run.root"
    )


def test_a_snapshot_that_cannot_be_written_or_read_names_the_file(tmp_path: Path) -> None:
    shard = server(tmp_path / "live")
    fill(shard, 1, 2)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"/file/shard-0\.parquet"):
        shard.save(2, tmp_path / "file" / "shard-0.parquet")
    (tmp_path / "damaged.parquet").write_bytes(b"PAR1 something else")
    with pytest.raises(StoreError, match=r"/damaged\.parquet"):
        shard.restore(2, [tmp_path / "damaged.parquet"], 1)


WRITER = """
import sys, time
from pathlib import Path
from tests.replay.test_server import fill, server
shard = server(Path(sys.argv[1]))
for number in range(1, 100_000):
    fill(shard, number, number)
    print(number, flush=True)
    if number % 7 == 0:
        shard.save(number, Path(sys.argv[1]) / "checkpoint" / "shard-0.parquet")
"""


@pytest.mark.parametrize("acknowledged", [1, 6, 7, 40])
def test_every_acknowledged_write_survives_kill_9(tmp_path: Path, acknowledged: int) -> None:
    """Killed in the middle of a later write or of a checkpoint."""
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    with (
        (tmp_path / "errors.txt").open("w") as errors,
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors) as process,
    ):
        assert process.stdout is not None
        seen = 0
        for line in process.stdout:
            seen = int(line)
            if seen >= acknowledged:
                break
        os.kill(process.pid, signal.SIGKILL)
        seen = max([seen, *(int(line) for line in process.stdout)])
    assert seen >= acknowledged, (tmp_path / "errors.txt").read_text()[-2000:]
    problems = {problem for problem, _ in content(server(tmp_path))}
    assert {f"p{number}" for number in range(1, seen + 1)} <= problems
    assert len(problems) <= seen + 1  # at most the write that was not acknowledged yet
