"""Files that are damaged, missing or belong to another store: one line that names them, nothing read wrongly."""

from pathlib import Path

import pytest

from core.errors import StoreError
from replay.ops import Evict
from tests.replay.test_durability import contents, filled, server


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
    saved = server(tmp_path, salvage=True)
    lines = saved.dropped()
    assert [line.split("arrow: ")[1].split(" ", 1)[0] for line in lines] == ["bytes", "operations"]
    assert lines[1].endswith("operations 3 to 3 before it are missing")
    assert {problem for problem, _ in contents(saved)} == {"p0", "p1", "p3", "p4"}
    saved.close()
    assert {problem for problem, _ in contents(server(tmp_path))} == {"p0", "p1", "p3", "p4"}  # clean again


def test_a_missing_segment_is_refused(tmp_path: Path) -> None:
    for turn in range(3):
        shard = server(tmp_path)
        shard.write(turn + 1, Evict(1))
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
        server(tmp_path, False, **{field: value}).extent()


@pytest.mark.parametrize("table", ["states", "trajectories", "problems"])
def test_a_damaged_snapshot_is_refused(tmp_path: Path, table: str) -> None:
    shard = filled(tmp_path)
    shard.compact()
    shard.close()
    path = tmp_path / "shard-0" / f"snapshot-0000000000000005-{table}.parquet"
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
        server(tmp_path, False, **{field: value}).extent()


@pytest.mark.parametrize("text", [b"{}", b"\0\1", b'{"hash": "0", "manifest": {"sequence": 5}}'])
def test_a_foreign_or_damaged_manifest_is_refused(tmp_path: Path, text: bytes) -> None:
    shard = filled(tmp_path)
    shard.compact()
    shard.close()
    (tmp_path / "shard-0" / "shard.json").write_bytes(text)
    with pytest.raises(StoreError, match=r"shard\.json: (not a manifest of a replay store|its hash does not match)"):
        server(tmp_path).extent()
