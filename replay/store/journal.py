"""The journal: a shard's writes since its last snapshot, on disk. A shard that died is recovered from both.

It is a file of entries, each a length and so many bytes: a header that names the snapshot, then the writes. Invariants:
when `append` returns, the entry outlives the process. A half-written last entry is an unacknowledged write and is
dropped. `begin` replaces the file atomically.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from core.errors import StoreError, first_line
from core.files import open_regular

_LENGTH = 8  # size of the length field of an entry, in bytes


class Journal:
    """One shard's journal, opened for writing."""

    def __init__(self, path: Path) -> None:
        """`path`: of the file. Call `begin` or `reopen` before the first `append`."""
        self.path = path
        self._file = -1

    def begin(self, header: Mapping[str, Any]) -> None:
        """Replace the file by one with only a header. Raises StoreError when it cannot; then the old one stays."""
        fresh, entry = self.path.with_suffix(".new"), _entry(json.dumps(header).encode())
        try:
            fresh.write_bytes(entry)
            os.replace(fresh, self.path)
        except OSError as error:
            raise unwritable(self.path, error) from error
        self.reopen(len(entry))

    def reopen(self, size: int) -> None:
        """Continue after the first `size` bytes, which are complete entries."""
        if self._file >= 0:
            os.close(self._file)
        self._file = os.open(self.path, os.O_WRONLY)
        os.ftruncate(self._file, size)
        os.lseek(self._file, 0, os.SEEK_END)

    def append(self, write: bytes) -> None:
        """Append a write. Raises StoreError when the disk is full or cannot be written; then the file is unchanged."""
        size = os.lseek(self._file, 0, os.SEEK_CUR)
        rest = memoryview(_entry(write))
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError as error:
            os.ftruncate(self._file, size)
            os.lseek(self._file, size, os.SEEK_SET)
            raise unwritable(self.path, error) from error


def read_journal(path: Path) -> tuple[dict[str, Any], list[bytes], int]:
    """Header, writes, and the bytes up to the end of the last complete entry. Raises StoreError."""
    entries, at = list[bytes](), 0
    try:
        with open_regular(path) as file:
            content = file.read()
        while size := int.from_bytes(content[at : at + _LENGTH], "little"):
            end = at + _LENGTH + size
            if end > len(content):
                break
            entries.append(content[at + _LENGTH : end])
            at = end
        header = json.loads(entries[0])
    except (OSError, IndexError, ValueError) as error:
        raise unreadable(path, error) from error
    return header, entries[1:], at


def unreadable(path: Path, error: Exception) -> StoreError:
    """The error for a file that cannot be read."""
    return StoreError(f"{path}: cannot be read ({first_line(error)}); resume the run from its checkpoint")


def unwritable(path: Path, error: OSError) -> StoreError:
    """The error for a file that cannot be written."""
    return StoreError(f"{path}: cannot be written ({error.strerror}); free space there or choose another run.root")


def _entry(content: bytes) -> bytes:
    return len(content).to_bytes(_LENGTH, "little") + content
