"""The append-only log of a shard: what makes an acknowledged write survive a kill.

Used by `replay/server.py`. The log is a sequence of segment files `log-FIRST.arrow`; a segment is a sequence of frames,
each a header with length, sequence number and checksums, then Arrow IPC bytes. The first frame of a segment says whose it
is. One `append` is one group commit: a whole batch of states in one frame, on disk when it returns. Local storage grows
one file; storages that cannot append (object stores) get one segment per commit.

Invariants: sequence numbers grow by one; a frame that was acknowledged is either read back or its damage is reported; a
torn last frame was never acknowledged and is dropped.
"""

import json
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import xxhash

from core.errors import StoreError
from replay.storage import Folder, explained

_MAGIC = b"RRL4"  # two bits from every older one: a wrong bit is damage
_OLD = b"RRL1", b"RRL2"  # without the checksum of the header; with evictions by their number
_FIELDS = struct.Struct("<4sIQB3xQ")  # magic, payload bytes, sequence, kind, checksum of all but the magic
_CHECK = struct.Struct("<I")  # of the fields: the size must be right for a torn end to be told from a damaged one
_HEADER = _FIELDS.size + _CHECK.size  # 32 bytes
Owner = Mapping[str, int | str]
"""Whose files these are: see `replay.opening.Identity`."""
_IDENTITY = 0
"""Kind of the frame that opens a segment."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One committed operation."""

    sequence: int
    kind: int
    payload: pa.Buffer


@dataclass(slots=True)
class Recovered:
    """What a log holds after the snapshot."""

    frames: list[Frame] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)  # one line per damage that salvage skipped
    torn: dict[str, int] = field(default_factory=dict)  # segment -> length of its valid part
    nbytes: int = 0
    segments: int = 0  # files


def segment_name(first: int) -> str:
    """Name of the segment whose first operation has this sequence number."""
    return f"log-{first:016d}.arrow"


def segments(folder: Folder) -> list[str]:
    """The segments of a folder, in order."""
    return [name for name in folder.names() if name.startswith("log-") and name.endswith(".arrow")]


def pack_frame(sequence: int, kind: int, payload: bytes | pa.Buffer) -> list[bytes | memoryview]:
    """Header and payload of a frame."""
    body = memoryview(payload)
    fields = _FIELDS.pack(_MAGIC, len(body), sequence, kind, _checksum(sequence, kind, body))
    return [fields + _CHECK.pack(xxhash.xxh32_intdigest(fields)), body]


def _checksum(sequence: int, kind: int, body: memoryview) -> int:
    state = xxhash.xxh3_64(struct.pack("<QBQ", sequence, kind, len(body)))
    state.update(body)
    return state.intdigest()


def _header(data: pa.Buffer, offset: int) -> tuple[int, int, int, int] | None:
    """Payload bytes, sequence, kind and checksum of the undamaged header at a byte offset; None when there is none."""
    fields = memoryview(data)[offset : offset + _FIELDS.size]
    check = memoryview(data)[offset + _FIELDS.size : offset + _HEADER]
    if len(check) < _CHECK.size or _CHECK.unpack(check)[0] != xxhash.xxh32_intdigest(fields):
        return None
    magic, size, sequence, kind, body = _FIELDS.unpack(fields)
    return (size, sequence, kind, body) if magic == _MAGIC else None


def frame_at(data: pa.Buffer, offset: int) -> tuple[Frame, int] | None:
    """The valid frame at a byte offset and the offset after it; None when there is none."""
    header = _header(data, offset)
    if header is None:
        return None
    size, sequence, kind, check = header
    start, end = offset + _HEADER, offset + _HEADER + size
    if end > data.size or _checksum(sequence, kind, memoryview(data)[start:end]) != check:
        return None
    return Frame(sequence, kind, data.slice(start, size)), end


def next_frame(data: pa.Buffer, offset: int) -> int | None:
    """Offset of the first valid frame after `offset`, if any."""
    raw = data.to_pybytes()
    while (offset := raw.find(_MAGIC, offset + 1)) >= 0:
        if frame_at(data, offset) is not None:
            return offset
    return None


def recover(folder: Folder, identity: Owner, after: int, *, salvage: bool) -> Recovered:
    """All frames with a sequence number above `after`, in order.

    An unfinished frame at the end of the last segment is a torn write: dropped. Any other damage, a missing segment or a
    foreign file raise StoreError; with `salvage` what can be read is kept and `dropped` says what was not.
    """
    found = Recovered()
    names = segments(folder)
    found.segments = len(names)
    expected = after + 1
    for name in names:
        data = folder.read(name)
        where = folder.named(name)
        last = name == names[-1]
        for frame, hole in _frames(data, where, identity, last=last, found=found, name=name):
            if hole is not None:
                damage(found, hole, salvage=salvage)
            if frame is None or frame.kind == _IDENTITY or frame.sequence <= after:
                continue
            if frame.sequence != expected:
                gap = f"{where}: operations {expected} to {frame.sequence - 1} before it are missing"
                damage(found, gap, salvage=salvage)
            found.frames.append(frame)
            expected = frame.sequence + 1
        found.nbytes += found.torn.get(name, data.size)
    return found


def damage(found: Recovered, line: str, *, salvage: bool) -> None:
    """StoreError with this line, or with `salvage` a note of it."""
    if not salvage:
        raise StoreError(f"{line}; start with --salvage to drop what cannot be read, or restore a checkpoint")
    found.dropped.append(line)


def _frames(
    data: pa.Buffer, where: str, identity: Owner, *, last: bool, found: Recovered, name: str
) -> Iterator[tuple[Frame | None, str | None]]:
    """Frames of a segment, each with a line about the damage before it, if there was any."""
    offset, hole = 0, None
    begins = data.slice(0, min(data.size, len(_MAGIC))).to_pybytes()
    if begins in _OLD:
        raise StoreError(
            f"{where}: a log of format {begins.decode()}, which an older version wrote; this one reads {_MAGIC.decode()} only."
            " Remove the store's folder: --resume fills it anew from the checkpoint"
        )
    opening = frame_at(data, 0)
    if opening is not None:
        _check_opening(opening[0], where, identity)
    elif next_frame(data, 0) is None:
        if not last:
            yield None, f"{where}: no readable operation in {data.size} bytes"
            return
        if data.size >= len(_MAGIC) and begins not in (_MAGIC, b"\0\0\0\0"):
            raise StoreError(f"{where}: not a log of a replay store; remove the file or name another directory")
    while offset < data.size:
        read = frame_at(data, offset)
        if read is None:
            following = next_frame(data, offset)
            if following is None:
                if last:
                    found.torn[name] = offset
                if not last or not _unfinished(data, offset):
                    yield None, f"{where}: bytes {offset} to {data.size} are damaged"
                return
            hole = f"{where}: bytes {offset} to {following} are damaged"
            offset = following
            continue
        yield read[0], hole
        offset, hole = read[1], None


def _unfinished(data: pa.Buffer, offset: int) -> bool:
    """Whether what begins at a byte offset is a write that did not come to its end: cut off, or room never written to."""
    left = data.slice(offset)
    if left.size < _HEADER or not any(left.to_pybytes()):
        return True
    header = _header(data, offset)
    return header is not None and _HEADER + header[0] > left.size


def _check_opening(frame: Frame, where: str, identity: Owner) -> None:
    if frame.kind != _IDENTITY:
        raise StoreError(f"{where}: does not say whose log it is; it was not written by this store")
    check_identity(where, json.loads(frame.payload.to_pybytes()), identity)


def check_identity(where: str, theirs: Owner, mine: Owner) -> None:
    """StoreError when a file was written for another shard, vocabulary or task."""
    for key, value in mine.items():
        if theirs.get(key) != value:
            raise StoreError(
                f"{where}: written for {key} {theirs.get(key)!r}, but this run has {value!r}; name another directory"
            )


class Log:
    """The writing end."""

    def __init__(self, folder: Folder, identity: Owner, sequence: int) -> None:
        """Go on after operation `sequence`; `recover` and `mend` must have run."""
        self._folder, self._identity = folder, json.dumps(dict(identity)).encode()
        self.sequence = sequence
        self.nbytes = 0  # of the segments since the last roll
        self.segments = 0  # files since the last roll
        self._handle = -1
        self._length = 0

    def append(self, kind: int, payload: pa.Buffer) -> None:
        """Commit one operation. It is on disk when this returns, or StoreError and it is not."""
        sequence = self.sequence + 1
        name = segment_name(sequence)
        parts = pack_frame(sequence, kind, payload)
        if self._folder.local:
            self._append_local(name, parts)
        else:
            opening = pack_frame(self.sequence, _IDENTITY, self._identity)
            self._folder.write_whole(name, b"".join([*opening, *parts]))
            self.segments += 1
        self.nbytes += sum(len(part) for part in parts)
        self.sequence = sequence

    def _append_local(self, name: str, parts: list[bytes | memoryview]) -> None:
        with explained("write", self._folder.named(name)):
            if self._handle < 0:
                self._open(name)
            length = self._length
            try:
                for part in parts:
                    _write_all(self._handle, part)
                os.fdatasync(self._handle)
            except OSError:
                os.ftruncate(self._handle, length)  # what was not acknowledged must not be found later
                raise
            self._length = length + sum(len(part) for part in parts)

    def _open(self, name: str) -> None:
        handle = os.open(self._folder.where(name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            parts = pack_frame(self.sequence, _IDENTITY, self._identity)
            os.ftruncate(handle, 0)
            for part in parts:
                _write_all(handle, part)
        except OSError:
            os.close(handle)
            raise
        self._folder.sync("")
        self._handle, self._length = handle, sum(len(part) for part in parts)
        self.segments += 1

    def roll(self) -> None:
        """Let the next operation open a new segment."""
        self.close()
        self.nbytes = self.segments = 0

    def close(self) -> None:
        """Close the segment."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def _write_all(handle: int, part: bytes | memoryview) -> None:
    view = memoryview(part)
    while view:
        view = view[os.write(handle, view) :]


def mend(folder: Folder, torn: dict[str, int]) -> None:
    """Cut torn ends off, so that the log can go on."""
    for name, length in torn.items():
        if length == 0:
            folder.remove([name])
        else:
            folder.write_whole(name, folder.read(name).slice(0, length))
