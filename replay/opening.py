"""How a shard is read from its files: a snapshot in pieces, and the log that goes on from it.

Used by `replay/server.py`, which writes the files, and by `replay/inspect.py`. A large shard is written piece by piece, so that
there is never a second snapshot beside the first; a piece holds some groups of problems as they were after a write. Invariant: as
writes concern each problem by itself, a piece that is newer than others goes on from its own write, and the others from theirs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from core.config import ReplayConfig
from core.errors import StoreError
from replay import snapshot
from replay.keys import GROUPS, group_of
from replay.log import Recovered, check_identity, damage, recover
from replay.ops import apply, check, decode, restrict
from replay.shard import Shard
from replay.storage import Folder, Manifest, find_manifest, read_snapshot

MANIFEST = "shard.json"
"""Names the pieces of the snapshot that a shard's log goes on from."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Which shard of which store this is; written into its files and checked when they are read."""

    index: int
    shards: int
    vocabulary: int
    fingerprint: str

    def as_dict(self) -> dict[str, int | str]:
        """For the files."""
        return {
            "index": self.index,
            "shards": self.shards,
            "vocabulary": self.vocabulary,
            "fingerprint": self.fingerprint,
        }


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a shard's snapshot; the groups of all its pieces are all groups."""

    groups: range  # the problems it holds
    sequence: int  # last write in it
    part: Manifest  # see `replay.storage.write_snapshot`


class Loaded(NamedTuple):
    """A shard as its files describe it."""

    shard: Shard
    sequence: int  # last write in it
    log: Recovered
    pieces: list[Piece]


def pieces_to_json(pieces: Sequence[Piece]) -> list[Manifest]:
    """For the manifest."""
    return [{"groups": [p.groups.start, p.groups.stop], "sequence": p.sequence, "part": p.part} for p in pieces]


def cut(pieces: int) -> list[range]:
    """All groups in so many ranges.

    >>> cut(3)
    [range(0, 85), range(85, 170), range(170, 256)]
    """
    return [range(i * GROUPS // pieces, (i + 1) * GROUPS // pieces) for i in range(pieces)]


def load_shard(folder: Folder, identity: Identity, config: ReplayConfig, *, salvage: bool) -> Loaded:
    """Read a shard's snapshot and apply its log; writes nothing. What salvage passes over is in `log.dropped`."""
    shard = Shard(config, identity.vocabulary, f"replay-shard-{identity.index}")
    pieces, dropped = _pieces(folder, identity, salvage=salvage)
    ahead = sorted(pieces, key=lambda piece: piece.sequence)
    newest = ahead[-1].sequence if ahead else 0
    first = ahead[0].sequence if ahead and not dropped else 0  # what was dropped may be in the log as a whole
    found = recover(folder, identity.as_dict(), first, salvage=salvage)
    end = found.frames[-1].sequence if found.frames else first
    if end < newest:
        damage(found, f"{folder.named('log')}: operations {end + 1} to {newest} are missing", salvage=salvage)
    found.dropped[:0] = dropped
    for frame in found.frames:
        ahead = _enter(shard, folder, ahead, frame.sequence - 1)
        operation = decode(frame.kind, frame.payload, identity.vocabulary)
        if ahead:  # these hold the write already
            held = {group for piece in ahead for group in piece.groups}
            operation = restrict(operation, lambda name, held=held: group_of(name) not in held)  # type: ignore[misc]
        try:
            check(shard, operation)
        except StoreError as error:  # it goes on from something that was dropped
            if not found.dropped:
                raise
            found.dropped.append(f"{folder.named('log')}: operation {frame.sequence}: {error}")
            continue
        apply(shard, operation)
    _enter(shard, folder, ahead, newest)
    return Loaded(shard, max(end, newest), found, pieces)


def _enter(shard: Shard, folder: Folder, ahead: list[Piece], sequence: int) -> list[Piece]:
    """Put in the pieces that hold no write after `sequence`; the others."""
    while ahead and ahead[0].sequence <= sequence:
        content = _read(folder, ahead[0])
        snapshot.restore(shard, content)
        shard.counters = content.counters
        ahead = ahead[1:]
    return ahead


def _read(folder: Folder, piece: Piece) -> snapshot.Snapshot:
    try:
        return read_snapshot(folder, piece.part)
    except StoreError as error:
        raise StoreError(f"{error}, or --resume with --salvage to go on without it") from error


def _pieces(folder: Folder, identity: Identity, *, salvage: bool) -> tuple[list[Piece], list[str]]:
    """The pieces that the manifest names; with salvage those that can be read, and a line for each that cannot."""
    try:
        manifest = find_manifest(folder, MANIFEST)
    except StoreError as error:
        if not salvage:
            raise StoreError(f"{error}, or --resume with --salvage to go on without its snapshot") from error
        return [], [f"{error}: the whole snapshot"]
    if manifest is None:
        return [], []
    check_identity(folder.named(MANIFEST), manifest["identity"], identity.as_dict())
    if "pieces" not in manifest:
        raise StoreError(
            f"{folder.named(MANIFEST)}: of a snapshot that an older version wrote. Remove the store's folder: --resume fills it"
            " anew from the checkpoint"
        )
    pieces = [Piece(range(*entry["groups"]), entry["sequence"], entry["part"]) for entry in manifest["pieces"]]
    dropped: list[str] = []
    for piece in list(pieces) if salvage else []:
        try:
            read_snapshot(folder, piece.part)
        except StoreError as error:
            pieces.remove(piece)
            of = f" of groups {piece.groups.start} to {piece.groups.stop - 1}"
            dropped.append(f"{error}: the whole snapshot{of if len(piece.groups) < GROUPS else ''}")
    return pieces, dropped
