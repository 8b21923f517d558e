"""A shard with its files: every write is in the journal before it is acknowledged, and a checkpoint is a snapshot.

It runs in a Ray actor (`ShardActor` in `replay/store.py`); with `--local` it runs in the driver's process, without files.
Invariants: a write that is sent several times is applied once. A shard that Ray restarts has every acknowledged write, or
raises `LostShardError` when its files are missing.
"""

import logging
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from core.config import ReplayConfig
from core.errors import LostShardError, StoreError
from replay.journal import Journal, read_journal, unwritable
from replay.keys import shard_of
from replay.records import Counters
from replay.shard import Shard
from replay.snapshot import load_snapshot, write_snapshot

JOURNAL = "shard-{}.journal"
R = TypeVar("R")
logger = logging.getLogger("retrospect.replay")


@dataclass(frozen=True, slots=True)
class ShardSize:
    """The size of a shard."""

    states: int
    nbytes: int


class ShardServer:
    """One shard, its journal, and the number of the last write."""

    def __init__(
        self, index: int, config: ReplayConfig, vocabulary: int, directory: Path | None = None, store_id: str = ""
    ) -> None:
        """Open an empty shard, or recover it if `directory` has a journal of the same `store_id`.

        `directory`: of the live files; None: no files. `store_id`: names the `ReplayStore` object, so that the files of an earlier
        one are never read.
        """
        self._index, self._config, self._vocabulary, self._store_id = index, config, vocabulary, store_id
        self._sequence = 0  # of the last write
        self._shard = Shard(config, vocabulary)
        self._journal = None if directory is None else Journal(directory / JOURNAL.format(index))
        self._unusable: StoreError | None = None  # raised at the first call: Ray hides what a constructor raises
        if self._journal is None:
            return
        try:
            if not self._recover():
                self._begin_journal(snapshot="")
        except StoreError as error:
            self._unusable = error

    def _recover(self) -> bool:
        """Continue with the files of this store's shard, if they are there. What cannot be read is lost, see `require`."""
        assert self._journal is not None
        if not self._journal.path.exists():
            return False
        try:
            found = recover(self._journal.path, self._config)
        except StoreError as error:
            logger.warning("%s", error)
            return False
        if found.store_id != self._store_id:
            return False
        self._shard, self._sequence = found.shard, found.sequence
        self._journal.reopen(found.size)
        return True

    def write(self, sequence: int, write: pa.RecordBatch) -> ShardSize:
        """Apply write number `sequence`. A write that is already applied is only acknowledged again."""
        self.require(sequence - 1)
        if sequence > self._sequence:
            self._shard.check(write)
            if self._journal is not None:
                self._journal.append(write)
            self._shard.apply(write)
            self._sequence = sequence
        return self.size()

    def read(self, sequence: int, method: Callable[..., R], *arguments: Any) -> R:
        """Call a function of the shard that changes nothing."""
        self.require(sequence)
        return method(self._shard, *arguments)

    def save(self, sequence: int, path: Path) -> None:
        """Write a snapshot to `path`, and start a new journal after it."""
        self.require(sequence)
        if self._journal is None:
            write_snapshot(self._shard, path)
            return
        live = self._snapshot()
        _link(live, path)
        self._begin_journal(live.name)

    def restore(self, sequence: int, paths: Sequence[Path], shards: int) -> ShardSize:
        """Replace the content by what this shard owns of snapshots of any number of shards; the next write is `sequence` + 1."""
        self.require(0)
        self._shard = Shard(self._config, self._vocabulary)
        found = [load_snapshot(self._shard, path, lambda name: shard_of(name, shards) == self._index) for path in paths]
        if self._index == 0 and found:  # counters are only summed over the store, so one shard may have them all
            self._shard.counters = Counters(*map(sum, zip(*map(astuple, found), strict=True)))
        self._sequence = sequence
        if self._journal is not None:
            self._begin_journal(self._snapshot().name if paths else "")
        return self.size()

    def size(self) -> ShardSize:
        """The size of the shard."""
        return ShardSize(len(self._shard.states), self._shard.nbytes)

    def require(self, sequence: int) -> None:
        """LostShardError when this shard does not have write number `sequence`; StoreError when its folder cannot be written."""
        if self._unusable is not None:
            raise self._unusable
        if self._sequence < sequence:
            raise LostShardError(
                f"replay-shard-{self._index}: died, and its files are gone (it has {self._sequence} of {sequence} writes)"
            )

    def _snapshot(self) -> Path:
        """Write a snapshot into the journal's folder. Returns its path."""
        assert self._journal is not None
        path = self._journal.path.with_name(f"shard-{self._index}.{self._store_id}.{self._sequence}.parquet")
        write_snapshot(self._shard, path.with_suffix(".new"))
        os.replace(path.with_suffix(".new"), path)  # a checkpoint may share the file of this name: it keeps its content
        return path

    def _begin_journal(self, snapshot: str) -> None:
        """Start an empty journal that follows a snapshot, and remove older snapshots."""
        assert self._journal is not None
        header = {"store": self._store_id, "sequence": str(self._sequence), "snapshot": snapshot}
        self._journal.begin(header | {"vocabulary": str(self._vocabulary)})
        for path in self._journal.path.parent.glob(f"shard-{self._index}.*"):
            if path.suffix in (".parquet", ".new") and path.name != snapshot:
                path.unlink()


@dataclass(frozen=True, slots=True)
class Recovered:
    """The content of a shard's files."""

    shard: Shard
    store_id: str
    sequence: int  # of the last write
    size: int  # bytes of the journal's complete entries


def recover(journal: Path, config: ReplayConfig) -> Recovered:
    """Recover a shard from its snapshot and the journal that follows it."""
    header, writes, size = read_journal(journal)
    shard = Shard(config, int(header["vocabulary"]))
    if header["snapshot"]:
        shard.counters = load_snapshot(shard, journal.with_name(header["snapshot"]))
    for write in writes:
        shard.apply(write)
    return Recovered(shard, header["store"], int(header["sequence"]) + len(writes), size)


def _link(source: Path, target: Path) -> None:
    """Hard-link a file, or copy it if the file system has no links."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        try:
            os.link(source, target)
        except OSError:
            shutil.copyfile(source, target)
    except OSError as error:
        raise unwritable(target, error) from error
