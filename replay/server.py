"""One shard as a service: a `Shard` with its log, its snapshots and what the driver needs to know after a write.

`ReplayStore` runs `ReplayShard` as a Ray actor; without Ray it is a plain object, which is how it is tested. It opens
itself on the first call, so a restarted actor serves again as soon as the log is read. Invariants: a write is validated,
then on disk, then applied, then acknowledged; a write with a sequence number that was applied already does nothing, so
a driver may repeat what it got no answer to. Compaction writes its files in a thread and never blocks a write.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from core.config import ReplayConfig
from core.errors import StoreError, first_line
from replay import snapshot
from replay.keys import Keys, Reals, Rows, owned_groups
from replay.log import Log, mend, segments
from replay.opening import MANIFEST, Identity, Piece, cut, load_shard, pieces_to_json
from replay.ops import Operation, apply, check, encode
from replay.records import Granted, Selected, Wish
from replay.shard import Shard
from replay.stats import ShardStats, shard_stats
from replay.storage import Folder, Manifest, find_manifest, read_snapshot, shown, write_manifest, write_snapshot

DIRECTORY = "directory.json"
"""Says who uses a live directory: number of shards, vocabulary, fingerprint."""
COMPACT_BYTES = 16 << 20
"""The log is compacted when it has grown by this much since the last snapshot, ..."""
COMPACT_SHARE = 0.25
"""... and by this share of what the shard holds. So the disk holds a snapshot and a log of a quarter of it; while a compaction is
under way the log twice, and of the snapshot one piece (of a small shard: all of it) twice."""
PIECES, PIECES_BYTES = 8, 32 << 20
"""In how many pieces the snapshot of a shard of at least so many bytes is written, each in the place of its predecessor."""
COMPACT_FILES = 1024
"""Or by this many files: an object store has one per write, and a restart must read them all."""
SHARE = 0.02
"""Of the time that compaction may be busy: it shares the interpreter with writes. When the next one is half due it hurries."""


@dataclass(frozen=True, slots=True)
class Extent:
    """What the driver must know of a shard to plan samples and keep the bounds; every write returns it."""

    sequence: int  # last write applied
    states: int
    replayable: Rows  # [pools]
    nbytes: int
    masses: Reals  # [pools, GROUPS]
    latest: int  # newest weight version seen


def claim(folder: Folder, shards: int, vocabulary: int, fingerprint: str, *, salvage: bool) -> list[str]:
    """Write down who uses a live directory, and refuse one that another number of shards wrote.

    With `salvage` an unreadable note of that is dropped, which is what the returned lines say: shards know whose they are.
    """
    dropped: list[str] = []
    try:
        found = find_manifest(folder, DIRECTORY)
    except StoreError as error:
        if not salvage:
            raise
        found = None
        dropped.append(str(error))
    if found is not None:
        if found["shards"] == shards:
            return []
        raise StoreError(
            f"{shown(folder.uri)}: written by {found['shards']} shards, but replay.shards is {shards}; set it to"
            f" {found['shards']}, or restore a checkpoint into a new directory"
        )
    write_manifest(folder, DIRECTORY, {"shards": shards, "vocabulary": vocabulary, "fingerprint": fingerprint})
    return dropped


class ReplayShard:
    """One shard. `ReplayStore` alone calls it."""

    def __init__(self, identity: Identity, config: ReplayConfig, directory: str) -> None:
        self._identity, self._config = identity, config
        self._name = f"replay-shard-{identity.index}"
        self._folder = Folder(directory).child(f"shard-{identity.index}")
        self._shard: Shard | None = None
        self._log: Log
        self._pieces: list[Piece] = []  # of the snapshot on disk
        self._compaction: threading.Thread | None = None
        self._failure: str | None = None  # why this object can serve no more
        self._told = False  # whether a caller has heard of it
        self._hurry = threading.Event()

    # -- writes

    def write(self, sequence: int, operation: Operation) -> Extent:
        """Apply the write with this sequence number, once."""
        shard = self._opened()
        if sequence == self._log.sequence:
            return self.extent()  # a repeated call
        if sequence != self._log.sequence + 1:
            raise StoreError(
                f"{self._name}: asked for write {sequence} after write {self._log.sequence}; another driver uses this store"
            )
        check(shard, operation)
        self._log.append(*encode(operation))
        try:
            apply(shard, operation)
        except BaseException as error:  # on disk but not in memory: whoever reads the files anew gets it
            self._failure = f"write {sequence} is on disk but could not be applied: {first_line(error)}"
            self._told = True
            raise
        try:
            self._compact_when_due(shard)
        except Exception as error:  # the write itself is done, and must not be taken for refused
            self._failure = f"compaction failed: {first_line(error)}"
        return self._extent(shard)

    def restore(self, uri: str, parts: list[Manifest]) -> Extent:
        """Replace everything by what snapshots (of any number of shards) hold of this shard's problems."""
        self._opened()
        index, shards = self._identity.index, self._identity.shards
        shard = self._empty()
        for number, part in enumerate(parts):
            content = read_snapshot(Folder(uri), part)
            snapshot.restore(shard, content, owned_groups(index, shards))
            if number % shards == index:
                shard.counters = shard.counters.plus(content.counters)
        self._wait_for_compaction()
        try:
            self._write_snapshot(shard, self._log.sequence + 1)
            self._folder.remove(segments(self._folder))
        except BaseException as error:  # the files hold the one or the other
            self._failure, self._told = f"restoring a checkpoint failed: {first_line(error)}", True
            raise
        self._log.sequence += 1
        self._log.roll()
        self._shard = shard
        return self.extent()

    # -- reads

    def extent(self) -> Extent:
        """Sequence number, size and masses."""
        return self._extent(self._opened())

    def salvage(self) -> list[str]:
        """Open damaged files with what can be read of them; what could not, one line each.

        Asked for by a call and not when the shard is made, so that an actor which is restarted later drops nothing.
        """
        return self._read(salvage=True)[1] if self._shard is None else []

    def least(self, count: int) -> tuple[Keys, Keys]:
        """See `Shard.least`."""
        return self._opened().least(count)

    def grant(self, wishes: list[Wish]) -> list[Granted]:
        """What this shard has to offer for each wish."""
        shard = self._opened()
        return [shard.grant(wish) for wish in wishes]

    def top(self, count: int, older_than: int | None) -> tuple[Selected, Keys]:
        """The most promising states, with standings."""
        shard = self._opened()
        where, ranks = shard.top(count, older_than)
        return shard.select(where), ranks

    def stats(self) -> ShardStats:
        """Counts."""
        return shard_stats(self._opened())

    def save(self, uri: str, tag: str) -> Manifest:
        """Write a snapshot elsewhere; the part of the store's manifest that belongs to this shard."""
        return write_snapshot(Folder(uri), f"{tag}-{self._identity.index}", snapshot.capture(self._opened()))

    # -- inside

    def _extent(self, shard: Shard) -> Extent:
        return Extent(
            self._log.sequence,
            shard.states,
            shard.replayable(),
            shard.content_bytes,
            shard.masses(),
            shard.version,
        )

    def _empty(self) -> Shard:
        return Shard(self._config, self._identity.vocabulary, self._name)

    def _opened(self) -> Shard:
        """The shard, read from its files on the first call."""
        if self._failure is not None:
            self._told = True
            raise StoreError(f"{self._name}: {self._failure}")
        return self._read(salvage=False)[0] if self._shard is None else self._shard

    def _read(self, *, salvage: bool) -> tuple[Shard, list[str]]:
        """Open the files; the shard and what was dropped of them."""
        folder = self._folder.make()
        found = load_shard(folder, self._identity, self._config, salvage=salvage)
        self._log, self._pieces = Log(folder, self._identity.as_dict(), found.sequence), found.pieces
        if found.log.dropped:  # nothing of the log is cut before a snapshot holds all that was read
            self._write_snapshot(found.shard, found.sequence)
            folder.remove(segments(folder))
        else:
            mend(folder, found.log.torn)
            self._log.nbytes, self._log.segments = found.log.nbytes, found.log.segments
        self._shard = found.shard
        return found.shard, found.log.dropped

    def _compact_when_due(self, shard: Shard) -> None:
        if self._failure is not None:
            return
        allowed = max(COMPACT_BYTES, COMPACT_SHARE * shard.content_bytes)
        due = max(self._log.nbytes / allowed, self._log.segments / COMPACT_FILES)
        if self._compaction is not None and self._compaction.is_alive():
            if due > 0.5:
                self._hurry.set()
        elif due > 1.0:
            self.compact()

    def compact(self) -> None:
        """Start writing a snapshot that replaces the log so far; writes go on meanwhile."""
        frozen, sequence = self._opened().frozen(), self._log.sequence
        self._wait_for_compaction()
        covered = segments(self._folder)
        self._log.roll()
        arguments = (frozen, sequence, covered)
        self._compaction = threading.Thread(target=self._compact, args=arguments, daemon=True)
        self._compaction.start()

    def _compact(self, frozen: Shard, sequence: int, covered: list[str]) -> None:
        try:
            if len(self._pieces) == self._cut(frozen) > 1:
                prefix = unused_prefix(self._folder, sequence)
                for number in range(len(self._pieces)):
                    self._write_piece(frozen, sequence, f"{prefix}-{number}", number)
            else:
                self._write_snapshot(frozen, sequence, self._rest)
            self._folder.remove(covered)
        except BaseException as error:  # handed to the next call, which raises it
            self._failure = f"compaction failed: {error}"

    def _cut(self, shard: Shard) -> int:
        return PIECES if shard.content_bytes >= PIECES_BYTES else 1

    def _write_snapshot(self, shard: Shard, sequence: int, rest: Callable[[float], object] | None = None) -> None:
        """Write all pieces, and then let them count at once."""
        prefix, made = unused_prefix(self._folder, sequence), list[Piece]()
        for number, groups in enumerate(cut(self._cut(shard))):
            part = write_snapshot(self._folder, f"{prefix}-{number}", snapshot.capture(shard, groups), rest)
            made.append(Piece(groups, sequence, part))
        self._commit(made)

    def _write_piece(self, shard: Shard, sequence: int, name: str, number: int) -> None:
        """Write a piece anew, which counts from then on beside the older ones."""
        groups = self._pieces[number].groups
        part = write_snapshot(self._folder, name, snapshot.capture(shard, groups), self._rest)
        pieces = [*self._pieces]
        pieces[number] = Piece(groups, sequence, part)
        self._commit(pieces)

    def _commit(self, pieces: list[Piece]) -> None:
        """Write the manifest that makes these pieces the snapshot, then delete what others there are."""
        folder = self._folder
        write_manifest(folder, MANIFEST, {"identity": self._identity.as_dict(), "pieces": pieces_to_json(pieces)})
        self._pieces = pieces
        named = {entry["name"] for piece in pieces for entry in piece.part["files"].values()}
        folder.remove([name for name in folder.names() if name.startswith("snapshot-") and name not in named])

    def _rest(self, busy: float) -> None:
        """Keep compaction to its share of the time, unless somebody waits for it."""
        self._hurry.wait(busy * (1.0 / SHARE - 1.0))

    def _wait_for_compaction(self) -> None:
        if self._compaction is not None:
            self._hurry.set()
            self._compaction.join()
            self._hurry.clear()

    def close(self) -> None:
        """Finish what runs in the background; the next call opens the files anew.

        StoreError when compaction has failed and no call has said so yet.
        """
        self._wait_for_compaction()
        if self._shard is not None:
            self._log.close()
        self._shard = None
        failure, self._failure = self._failure, None
        if failure is not None and not self._told:
            raise StoreError(f"{self._name}: {failure}")


def unused_prefix(folder: Folder, sequence: int) -> str:
    """What the files of a snapshot begin with: never as files that are there, which the manifest may need until the end.

    Two snapshots after the same write: of a log that was salvaged, or when nothing was written in between.
    """
    plain, there = f"snapshot-{sequence:016d}", folder.names()
    prefixes = (f"{plain}-{number}" if number else plain for number in count())
    return next(prefix for prefix in prefixes if not any(name.startswith(f"{prefix}-") for name in there))
