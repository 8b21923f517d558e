"""A shard with its files: every write is in the journal before it is acknowledged, and a checkpoint is a snapshot.

It runs in a Ray actor (`ShardActor`), or with `--local` in the driver, without files. Invariants:
a write that is sent several times is applied once. A shard that Ray restarts has every acknowledged write, or raises
`LostShardError` when its files are missing.
"""

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from core.config import ReplayConfig
from core.errors import LostShardError, StoreError
from replay.store.journal import Journal, read_journal, unreadable
from replay.store.keys import shard_of
from replay.store.records import Counters
from replay.store.shard import Shard
from replay.store.snapshot import FORMAT, check_format, load_snapshot, write_snapshot

JOURNAL = "shard-{}.journal"
R = TypeVar("R")
logger = logging.getLogger("retrospect.replay")


@dataclass(frozen=True, slots=True)
class ShardSize:
    """The size of a shard."""

    states: int
    nbytes: int


class ShardServer:
    """One shard and its journal. The `sequence` of every call is the number of the last acknowledged write."""

    def __init__(
        self, index: int, config: ReplayConfig, vocabulary: int, directory: Path | None = None, store_id: str = ""
    ) -> None:
        """Open an empty shard, or recover it if `directory` has a journal of the same `store_id`. `directory`: of the
        live files; None: no files. `store_id`: names the `ReplayStore` object, so that the files of an earlier one are
        never read. Raises StoreError when the directory cannot be written."""
        self._index, self._config, self._vocabulary, self._store_id = index, config, vocabulary, store_id
        self._shard, self._sequence = Shard(config, vocabulary), 0
        self._journal = None if directory is None else Journal(directory / JOURNAL.format(index))
        if self._journal is not None and not self._recover(self._journal):
            self._begin_journal(self._journal)

    def _recover(self, journal: Journal) -> bool:
        """Continue with this store's files, if there are any. What cannot be read is lost, see `_require`."""
        if not journal.path.exists():
            return False
        try:
            found = recover(journal.path, self._config)
        except StoreError as error:
            logger.warning("%s", error)
            return False
        if found.store_id != self._store_id:
            return False
        self._shard, self._sequence = found.shard, found.sequence
        journal.reopen(found.size)
        return True

    def write(self, sequence: int, write: bytes) -> ShardSize:
        """Apply the write after `sequence`. If it is already applied, it is only acknowledged again."""
        self._require(sequence)
        if sequence == self._sequence:
            if self._journal is not None:
                self._journal.append(write)
            self._shard.apply(write)
            self._sequence += 1
        return self._size()

    def read(self, sequence: int, method: Callable[..., R], *arguments: Any) -> R:
        """Call a function of the shard that changes nothing."""
        self._require(sequence)
        return method(self._shard, *arguments)

    def save(self, sequence: int, path: Path) -> None:
        """Write a snapshot to `path`, and start a new journal after it."""
        self._require(sequence)
        write_snapshot(self._shard, path)
        if self._journal is not None:
            self._begin_journal(self._journal)

    def restore(self, sequence: int, paths: Sequence[Path], shards: int) -> ShardSize:
        """Replace the content, if any, by what this shard owns of snapshots of any number of shards."""
        self._shard, self._sequence = Shard(self._config, self._vocabulary), sequence
        found = [load_snapshot(self._shard, path, lambda name: shard_of(name, shards) == self._index) for path in paths]
        if self._index == 0 and found:  # counters are only summed over the store, so one shard may have them all
            self._shard.counters = Counters(*map(sum, zip(*map(astuple, found), strict=True)))
        if self._journal is not None:
            self._begin_journal(self._journal)
        return self._size()

    def _size(self) -> ShardSize:
        return ShardSize(len(self._shard.states), self._shard.nbytes)

    def _require(self, sequence: int) -> None:
        """LostShardError when this shard does not have write number `sequence`."""
        if self._sequence < sequence:
            raise LostShardError(
                f"replay-shard-{self._index}: died, and its files are gone"
                f" (it has {self._sequence} of {sequence} writes)"
            )

    def _begin_journal(self, journal: Journal) -> None:
        """Write a snapshot beside the journal, start an empty journal after it, and remove older files."""
        path = journal.path.with_name(f"shard-{self._index}.{self._store_id}.{self._sequence}.parquet")
        write_snapshot(self._shard, path.with_suffix(".new"))
        os.replace(path.with_suffix(".new"), path)  # the old journal may refer to a file of this name
        about = {"format": FORMAT, "store": self._store_id, "sequence": self._sequence, "snapshot": path.name}
        journal.begin(about | {"vocabulary": self._vocabulary})
        for old in path.parent.glob(f"shard-{self._index}.*"):
            if old not in (path, journal.path):
                old.unlink()


@dataclass(frozen=True, slots=True)
class Recovered:
    """The content of a shard's files."""

    shard: Shard
    store_id: str
    sequence: int  # of the last write
    size: int  # bytes of the journal's complete entries


def recover(journal: Path, config: ReplayConfig) -> Recovered:
    """Recover a shard from its snapshot and the journal that follows it. StoreError names what cannot be read."""
    header, writes, size = read_journal(journal)
    check_format(journal, header)
    shard = Shard(config, header["vocabulary"])
    shard.counters = load_snapshot(shard, journal.with_name(header["snapshot"]))
    try:
        for write in writes:
            shard.apply(write)
    except pa.ArrowInvalid as error:
        raise unreadable(journal, error) from error
    return Recovered(shard, header["store"], header["sequence"] + len(writes), size)
