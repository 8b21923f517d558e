"""Files that are damaged, missing or belong to another store: one line that names them, nothing read wrongly."""

from pathlib import Path

import pyarrow as pa
import pytest

from core.config import ReplayConfig
from core.errors import StoreError
from core.records import Outcome
from replay import server as service
from replay.batch import pack_outcomes
from replay.log import frame_at, recover
from replay.ops import Evict, Operation, decode
from replay.shard import Shard
from replay.storage import Folder
from replay.store import ReplayStore
from tests.replay.crashes import least
from tests.replay.test_durability import contents, filled, server

IDENTITY: dict[str, int | str] = {"index": 0, "shards": 1, "vocabulary": 4, "fingerprint": "f"}


def damage(folder: Path, at: int) -> Path:
    path = next((folder / "shard-0").glob("log-*.arrow"))
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)
    return path


def test_a_damaged_middle_is_refused_and_salvage_says_what_was_dropped(tmp_path: Path) -> None:
    shard = filled(tmp_path)
    shard.close()
    path = next((tmp_path / "shard-0").glob("log-*.arrow"))
    damage(tmp_path, path.stat().st_size // 2)  # in the third of five writes
    with pytest.raises(StoreError, match=rf"{path.name}: bytes \d+ to \d+ are damaged; start with --salvage"):
        server(tmp_path).extent()
    saved = server(tmp_path)
    lines = saved.salvage()
    assert [line.split("arrow: ")[1].split(" ", 1)[0] for line in lines] == ["bytes", "operations"]
    assert lines[1].endswith("operations 3 to 3 before it are missing")
    assert {problem for problem, _ in contents(saved)} == {"p0", "p1", "p3", "p4"}
    saved.close()
    assert {problem for problem, _ in contents(server(tmp_path))} == {"p0", "p1", "p3", "p4"}  # clean again


def test_a_missing_segment_is_refused(tmp_path: Path) -> None:
    for turn in range(3):
        shard = server(tmp_path)
        shard.write(turn + 1, Evict(0, 0))
        shard.close()
    sorted((tmp_path / "shard-0").glob("log-*.arrow"))[1].unlink()
    with pytest.raises(StoreError, match="operations 2 to 2 before it are missing"):
        server(tmp_path).extent()


@pytest.mark.parametrize(("field", "value"), [("fingerprint", "g"), ("vocabulary", 9), ("index", 0)])
def test_files_of_another_store_are_refused(tmp_path: Path, field: str, value: object) -> None:
    shard = filled(tmp_path)
    if field == "index":
        shard.close()
        next((tmp_path / "shard-0").glob("log-*.arrow")).write_bytes(b"PAR1 something else")
        message = "not a log of a replay store"
    else:
        shard.close()
        message = f"written for {field} .*, but this run has {value!r}"
    with pytest.raises(StoreError, match=message):
        server(tmp_path, **{field: value}).extent()


@pytest.mark.parametrize("table", ["states", "trajectories", "problems"])
def test_a_damaged_snapshot_is_refused(tmp_path: Path, table: str) -> None:
    shard = filled(tmp_path)
    shard.compact()
    shard.close()
    path = tmp_path / "shard-0" / f"snapshot-0000000000000005-0-{table}.parquet"
    data = bytearray(path.read_bytes())
    for at in (40, len(data) // 2, len(data) - 20):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(
            StoreError, match=rf"{path.name}: its hash does not match its manifest; .* restore a checkpoint"
        ):
            server(tmp_path).extent()
    path.write_bytes(data)
    assert len(contents(server(tmp_path))) == 10
    path.unlink()
    with pytest.raises(StoreError, match=rf"cannot read .*{path.name}: "):
        server(tmp_path).extent()


@pytest.mark.parametrize(("field", "value"), [("fingerprint", "g"), ("vocabulary", 9)])
def test_a_snapshot_of_another_store_is_refused(tmp_path: Path, field: str, value: object) -> None:
    shard = filled(tmp_path)
    shard.compact()
    shard.close()
    with pytest.raises(StoreError, match=rf"shard\.json: written for {field} .*, but this run has {value!r}"):
        server(tmp_path, **{field: value}).extent()


@pytest.mark.parametrize("text", [b"{}", b"\0\1", b'{"hash": "0", "manifest": {"sequence": 5}}'])
def test_a_foreign_or_damaged_manifest_is_refused(tmp_path: Path, text: bytes) -> None:
    shard = filled(tmp_path)
    shard.compact()
    shard.close()
    (tmp_path / "shard-0" / "shard.json").write_bytes(text)
    with pytest.raises(StoreError, match=r"shard\.json: (not a manifest of a replay store|its hash does not match)"):
        server(tmp_path).extent()


@pytest.mark.parametrize("name", ["snapshot-0000000000000005-0-states.parquet", "shard.json"])
def test_salvage_goes_on_without_a_damaged_snapshot(tmp_path: Path, name: str) -> None:
    """Two writes after the snapshot: one stands by itself, the other is about a problem that was in the snapshot."""
    shard = filled(tmp_path)
    shard.compact()
    shard.write(6, pack_outcomes([Outcome(1, "p0", True, 5)]))
    added = filled(tmp_path / "other", writes=6)
    shard.write(7, last_add(tmp_path / "other"))
    added.close()
    shard.close()
    path = tmp_path / "shard-0" / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data if name.startswith("snapshot") else b"")
    with pytest.raises(StoreError, match=rf"{name}: .*--salvage to go on without (it|its snapshot)$"):
        server(tmp_path).extent()
    saved = server(tmp_path)
    lines = saved.salvage()
    assert lines[0].endswith(": the whole snapshot")
    assert name in lines[0]
    assert lines[1].endswith("operations 1 to 5 before it are missing")
    assert lines[2].endswith("operation 6: replay-shard-0: problem 'p0' is unknown: no trajectory of it was ever added")
    assert len(lines) == 3
    assert {problem for problem, _ in contents(saved)} == {"p5"}
    saved.write(8, least(saved, 1))
    saved.close()
    assert len(contents(server(tmp_path))) == 1  # clean again


def last_add(directory: Path) -> Operation:
    """The last write in the log of a shard."""
    folder = Folder(str(directory)).child("shard-0")
    frame = recover(folder, IDENTITY, 0, salvage=False).frames[-1]
    return decode(frame.kind, frame.payload, 4)


def test_salvage_is_for_the_first_opening_only(tmp_path: Path) -> None:
    """A shard that is opened again later, as a restarted actor is, refuses damage as ever."""
    shard = filled(tmp_path)
    assert shard.salvage() == []
    shard.close()
    path = next((tmp_path / "shard-0").glob("log-*.arrow"))
    damage(tmp_path, path.stat().st_size // 2)
    with pytest.raises(StoreError, match="start with --salvage"):
        shard.extent()


def test_a_store_is_salvaged_with_an_unreadable_directory_file(tmp_path: Path) -> None:
    made = store(tmp_path)
    made.close()
    (tmp_path / "directory.json").write_bytes(b"")
    with pytest.raises(StoreError, match=r"directory\.json: not a manifest"):
        store(tmp_path)
    saved = store(tmp_path, salvage=True)
    assert [line.rpartition("/")[2] for line in saved.dropped] == ["directory.json: not a manifest of a replay store"]
    saved.close()
    assert store(tmp_path).dropped == []


def store(directory: Path, salvage: bool = False) -> ReplayStore:
    given = {"vocabulary": 4, "directory": str(directory), "fingerprint": "f"}
    return ReplayStore(ReplayConfig(shards=2), **given, salvage=salvage, local=True)  # type: ignore[arg-type]


def test_the_last_write_with_a_wrong_byte_is_damage_and_half_of_it_is_a_torn_write(tmp_path: Path) -> None:
    filled(tmp_path).close()
    path = next((tmp_path / "shard-0").glob("log-*.arrow"))
    whole = path.read_bytes()
    damage(tmp_path, len(whole) - 1)
    with pytest.raises(StoreError, match=rf"{path.name}: bytes \d+ to {len(whole)} are damaged; start with --salvage"):
        server(tmp_path).extent()
    saved = server(tmp_path)
    (line,) = saved.salvage()
    assert line.endswith("are damaged")
    assert {problem for problem, _ in contents(saved)} == {"p0", "p1", "p2", "p3"}
    saved.write(5, least(saved, 1))
    saved.close()
    assert len(contents(server(tmp_path))) == 7
    for path in (tmp_path / "shard-0").iterdir():
        path.unlink()
    path = tmp_path / "shard-0" / "log-0000000000000001.arrow"
    path.write_bytes(whole[:-1])
    assert {problem for problem, _ in contents(server(tmp_path))} == {"p0", "p1", "p2", "p3"}
    path.write_bytes(whole + bytes(5000))  # a file system that has room for what it had no time to write
    assert len(contents(server(tmp_path))) == 10


@pytest.mark.parametrize("frame", [0, 5])  # the first, which says whose log it is, and the last one acknowledged
def test_no_wrong_bit_in_a_header_loses_a_write(tmp_path: Path, frame: int) -> None:
    """In the size of the last write it makes a torn one of it, were the size not checked; in the first four bytes a foreign file."""
    filled(tmp_path).close()
    path = next((tmp_path / "shard-0").glob("log-*.arrow"))
    whole = path.read_bytes()
    at = [place for place in range(len(whole)) if frame_at(pa.py_buffer(whole), place) is not None][frame]
    for bit in range(0, 32 * 8, 5):
        data = bytearray(whole)
        data[at + bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        with pytest.raises(StoreError, match=rf"{path.name}: bytes {at} to \d+ are damaged; start with --salvage"):
            server(tmp_path).extent()
    path.write_bytes(whole)
    assert len(contents(server(tmp_path))) == 10


def test_a_log_of_the_format_before_is_refused(tmp_path: Path) -> None:
    filled(tmp_path).close()
    path = next((tmp_path / "shard-0").glob("log-*.arrow"))
    path.write_bytes(path.read_bytes().replace(b"RRL4", b"RRL2"))
    with pytest.raises(
        StoreError, match=rf"{path.name}: a log of format RRL2, .* reads RRL4 only\. Remove the store's"
    ):
        server(tmp_path).extent()
    with pytest.raises(StoreError, match="RRL2"):
        server(tmp_path).salvage()


def test_a_write_that_is_on_disk_but_cannot_be_applied_stops_the_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a repetition of it would be taken for done."""
    shard = filled(tmp_path)

    def broken(*_: object) -> None:
        raise MemoryError("no room")

    three = least(shard, 3)
    monkeypatch.setattr(Shard, "evict", broken)
    with pytest.raises(MemoryError):
        shard.write(6, three)
    for sequence in (6, 7):
        with pytest.raises(StoreError, match="write 6 is on disk but could not be applied: no room"):
            shard.write(sequence, three)
    monkeypatch.undo()
    shard.close()
    assert len(contents(shard)) == 7  # read anew, with the write


def test_a_compaction_that_fails_before_the_end_is_said_once(tmp_path: Path) -> None:
    shard = filled(tmp_path)
    (tmp_path / "shard-0" / "snapshot-0000000000000005-0-states.parquet").mkdir()  # the name is taken
    shard.compact()
    with pytest.raises(StoreError, match="replay-shard-0: compaction failed: cannot write"):
        shard.close()
    shard.close()
    assert len(contents(shard)) == 10


def test_a_compaction_that_cannot_begin_does_not_undo_the_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = filled(tmp_path)

    def unreachable(_: Folder) -> list[str]:
        raise StoreError("cannot list the bucket")

    monkeypatch.setattr(service, "COMPACT_BYTES", 1)
    monkeypatch.setattr(service, "segments", unreachable)
    assert shard.write(6, least(shard, 1)).sequence == 6
    with pytest.raises(StoreError, match="replay-shard-0: compaction failed: cannot list the bucket"):
        shard.write(7, Evict(0, 0))
    monkeypatch.undo()
    shard.close()
    assert len(contents(shard)) == 9
