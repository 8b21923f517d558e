"""The journal: a shard's writes since its last snapshot, on disk. A shard that died is recovered from both.

Used by `replay/server.py`. A journal is a file of entries. An entry is the length of an Arrow IPC stream, and the stream. The first
entry is a header that names the snapshot; each other entry is the record batch of one write. Invariants: an entry is on disk when
`append` returns. A half-written last entry is an unacknowledged write and is dropped. `begin` replaces the file atomically.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from core.errors import StoreError, first_line

_LENGTH = 8
"""Size of the length field of an entry, in bytes."""


class Journal:
    """One shard's journal, opened for writing."""

    def __init__(self, path: Path) -> None:
        """`path`: of the file. Call `begin` or `reopen` before the first `append`."""
        self.path = path
        self._file = -1

    def begin(self, header: Mapping[str, str]) -> None:
        """Replace the file by one that has only a header."""
        fresh = self.path.with_suffix(".new")
        self.close()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            self._write(_entry(pa.record_batch({}).replace_schema_metadata(dict(header))))
            os.replace(fresh, self.path)
        except OSError as error:
            self.close()
            raise unwritable(self.path, error) from error

    def reopen(self, size: int) -> None:
        """Continue after the first `size` bytes, which are complete entries."""
        self._file = os.open(self.path, os.O_WRONLY)
        os.ftruncate(self._file, size)
        os.lseek(self._file, 0, os.SEEK_END)

    def append(self, write: pa.RecordBatch) -> None:
        """Put a write on disk. Raises StoreError when the disk is full or cannot be written; then the file is unchanged."""
        size = os.lseek(self._file, 0, os.SEEK_CUR)
        try:
            self._write(_entry(write))
        except OSError as error:
            os.ftruncate(self._file, size)
            os.lseek(self._file, size, os.SEEK_SET)
            raise unwritable(self.path, error) from error

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _write(self, entry: bytes) -> None:
        view = memoryview(entry)
        while view:
            view = view[os.write(self._file, view) :]
        os.fsync(self._file)


def read_journal(path: Path) -> tuple[dict[str, str], list[pa.RecordBatch], int]:
    """Header, writes, and the bytes up to the end of the last complete entry. StoreError names a file that cannot be read."""
    entries, at = list[pa.RecordBatch](), 0
    try:
        content = path.read_bytes()
        while at + _LENGTH <= len(content):
            size = int.from_bytes(content[at : at + _LENGTH], "little")
            if size == 0 or at + _LENGTH + size > len(content):
                break
            entry = pa.py_buffer(content)[at + _LENGTH : at + _LENGTH + size]
            entries.append(pa.ipc.open_stream(entry).read_next_batch())
            at += _LENGTH + size
    except (OSError, pa.ArrowInvalid) as error:
        raise StoreError(f"{path}: cannot be read ({first_line(error)}); resume the run from its checkpoint") from error
    if not entries:
        raise StoreError(f"{path}: has no complete entry; resume the run from its checkpoint")
    header = {key.decode(): value.decode() for key, value in (entries[0].schema.metadata or {}).items()}
    return header, entries[1:], at


def unwritable(path: Path, error: OSError) -> StoreError:
    """The error for a file that cannot be written."""
    return StoreError(f"{path}: cannot be written ({error.strerror}); free space there or choose another run.root")


def _entry(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    payload: bytes = sink.getvalue().to_pybytes()
    return len(payload).to_bytes(_LENGTH, "little") + payload
