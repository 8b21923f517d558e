"""Storages other than the local disk, through pyarrow's file system interface: they cannot append, rename or sync."""

import json
import os
import signal
from pathlib import Path

import numpy as np
import pyarrow.fs as pafs
import pytest
import ray

from core.config import ReplayConfig
from core.errors import StoreError
from core.records import Candidate, Outcome, Provenance
from replay.batch import pack
from replay.inspect import read_live
from replay.log import pack_frame
from replay.opening import Identity
from replay.ops import encode
from replay.server import ReplayShard
from replay.storage import Folder, find_manifest, joined, read_manifest, shown, write_manifest
from replay.store import ReplayStore
from tests.replay.crashes import least
from tests.replay.test_durability import contents


def server(uri: str) -> ReplayShard:
    return ReplayShard(Identity(0, 1, 4, "f"), ReplayConfig(per_problem=4), uri)


def candidate(turn: int) -> Candidate:
    lengths, values = np.array([2], np.int32), np.array([0.5], np.float32)
    tokens = np.array([turn % 4, 1, 2], np.int32)
    return Candidate(f"p{turn}", tokens, lengths, values, Provenance.OWN_FAILED, 0.0, 0)


def names(uri: str, start: str) -> list[str]:
    return [name for name in Folder(uri).child("shard-0").names() if name.startswith(start)]


def test_options_of_a_uri_stay_at_its_end_and_are_not_shown() -> None:
    uri = "s3://key:secret@bucket/runs/?region=eu-west-1&scheme=http"
    assert joined(uri, "shard-0") == "s3://key:secret@bucket/runs/shard-0?region=eu-west-1&scheme=http"
    assert shown(joined(uri, "log")) == "s3://bucket/runs/log"
    assert joined("/tmp/a?b/", "c") == "/tmp/a?b/c"
    assert shown("/tmp/a?b") == "/tmp/a?b"


def test_a_storage_that_cannot_append_gets_one_object_per_write() -> None:
    """An object store in memory, behind pyarrow's interface to fsspec."""
    uri = "fsspec+memory://bucket/one-object"
    assert not isinstance(pafs.FileSystem.from_uri(uri)[0], pafs.LocalFileSystem)
    shard = server(uri)
    for turn in range(4):
        shard.write(turn + 1, pack([candidate(turn)], 4))
    assert names(uri, "log-") == [f"log-{first:016d}.arrow" for first in range(1, 5)]
    before = contents(shard)
    assert contents(server(uri)) == before  # without a word to the first: it might have been killed
    shard.compact()
    shard.write(5, least(shard, 1))
    shard.close()
    assert names(uri, "log-") == ["log-0000000000000005.arrow"]
    assert len(names(uri, "snapshot-")) == 3
    again = server(uri)
    assert len(contents(again)) == 3
    again.write(6, pack([candidate(9)], 4))
    assert len(contents(server(uri))) == 4


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_torn_object_is_an_unacknowledged_write(share: float) -> None:
    uri = f"fsspec+memory://bucket/torn-{share}"
    shard = server(uri)
    shard.write(1, pack([candidate(0)], 4))
    before = contents(shard)
    identity = pack_frame(1, 0, b'{"index": 0, "shards": 1, "vocabulary": 4, "fingerprint": "f"}')
    whole = b"".join([*identity, *pack_frame(2, *encode(pack([candidate(1)], 4)))])
    folder = Folder(uri).child("shard-0")
    folder.write_whole("log-0000000000000002.arrow", whole[: round(share * len(whole))])
    again = server(uri)
    assert len(contents(again)) == (2 if share == 1.0 else 1)
    assert contents(again).items() >= before.items()
    again.write(again.extent().sequence + 1, pack([candidate(2)], 4))
    assert len(contents(server(uri))) == (3 if share == 1.0 else 2)


def test_many_objects_are_compacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replay.server.COMPACT_FILES", 5)
    uri = "fsspec+memory://bucket/many"
    for first in range(0, 8, 4):
        shard = server(uri)  # the second one counts the files that it finds
        for turn in range(first, first + 4):
            shard.write(turn + 1, pack([candidate(turn)], 4))
        shard.close()
    assert names(uri, "log-") == ["log-0000000000000007.arrow", "log-0000000000000008.arrow"]
    assert len(contents(server(uri))) == 8


def cut_off(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Let the next write of a file that is no part of a snapshot end after so many bytes, with an error."""
    whole = Folder.write_whole

    def partly(folder: Folder, name: str, data: bytes) -> None:
        monkeypatch.undo()
        whole(folder, name, data[:at])
        raise StoreError(f"cannot write {name}: the storage is gone")

    monkeypatch.setattr(Folder, "write_whole", partly)


def test_a_manifest_that_was_cut_at_any_byte_leaves_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Folder("fsspec+memory://bucket/manifest").make()
    assert find_manifest(folder, "shard.json") is None
    size = len(json.dumps({"hash": "0" * 16, "manifest": {"sequence": 1}}, indent=1))
    for first in (True, False):  # without and with a manifest before it
        for at in range(size):
            cut_off(monkeypatch, at)
            with pytest.raises(StoreError, match="the storage is gone"):
                write_manifest(folder, "shard.json", {"sequence": 2})
            assert find_manifest(folder, "shard.json") == (None if first else {"sequence": 1})
        write_manifest(folder, "shard.json", {"sequence": 1})
        assert find_manifest(folder, "shard.json") == {"sequence": 1}
        assert len(folder.names()) == 1  # the rest is cleared away
    cut_off(monkeypatch, size)  # all of it, only the answer was lost
    with pytest.raises(StoreError, match="the storage is gone"):
        write_manifest(folder, "shard.json", {"sequence": 3})
    assert read_manifest(folder, "shard.json") == {"sequence": 3}


def test_a_damaged_manifest_of_such_a_storage_is_no_cut_one(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Folder("fsspec+memory://bucket/damaged").make()
    write_manifest(folder, "shard.json", {"sequence": 1})
    (name,) = folder.names()
    folder.write_whole(name, folder.read(name).to_pybytes().replace(b'"sequence": 1', b'"sequence": 2'))
    with pytest.raises(StoreError, match=rf"{name}: its hash does not match"):
        find_manifest(folder, "shard.json")
    with pytest.raises(StoreError, match=r"store\.json: not there"):
        read_manifest(folder, "store.json")


def test_a_snapshot_whose_manifest_is_cut_off_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    uri = "fsspec+memory://bucket/cut"
    shard = server(uri)
    for turn in range(3):
        shard.write(turn + 1, pack([candidate(turn)], 4))
    shard.compact()
    shard.close()
    for turn, at in enumerate((0, 1, 300), start=3):
        shard = server(uri)
        shard.write(turn + 1, pack([candidate(turn)], 4))
        before = contents(shard)
        cut_off(monkeypatch, at)
        shard.compact()
        with pytest.raises(StoreError, match=r"compaction failed: cannot write shard-.*: the storage is gone"):
            shard.close()
        assert contents(server(uri)) == before
    shard.compact()
    shard.close()
    assert contents(server(uri)) == before
    assert names(uri, "shard-") == ["shard-0000000000000005.json"]


def test_a_storage_that_pyarrow_does_not_know_is_one_line() -> None:
    with pytest.raises(StoreError, match="cannot open nowhere://bucket/runs: Unrecognized filesystem type") as error:
        server("nowhere://key:secret@bucket/runs?region=x").extent()
    assert "secret" not in str(error.value)


def test_killed_shards_on_a_storage_without_append_lose_nothing(ray_cluster: None, tmp_path: Path) -> None:
    """Shard actors over a file system that is only reached through pyarrow's interface to fsspec."""
    uri = f"fsspec+file://{tmp_path}/live"
    config = ReplayConfig(shards=2)
    store = ReplayStore(config, vocabulary=4, directory=uri, fingerprint="f")
    for turn in range(3):
        store.add([candidate(10 * turn + i) for i in range(10)])
    store.record([Outcome(state.key, state.problem_id, True, 1) for state in store.sample(5, seed=0)])
    expected = [(state.key, state.value) for state in store.sample(12, seed=1)]
    for actor in store._actors:
        os.kill(ray.get(actor.__ray_call__.remote(lambda _: os.getpid())), signal.SIGKILL)
    assert [(state.key, state.value) for state in store.sample(12, seed=1)] == expected
    assert store.stats().outcomes == 5
    store.save(f"fsspec+file://{tmp_path}/saved")
    store.close()
    assert sum(shard.states for shard in read_live(uri, config)) == 30
    other = ReplayStore(config, vocabulary=4, directory=str(tmp_path / "other"), fingerprint="f", local=True)
    other.restore(f"fsspec+file://{tmp_path}/saved")
    assert [(state.key, state.value) for state in other.sample(12, seed=1)] == expected
