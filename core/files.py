"""Reads files that a user names. Invariant: what has no end is not read."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(file: Path) -> BinaryIO:
    """A regular file, open to be read. Raises OSError, also for pipes and devices, which may have no end."""
    handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(mode := os.fstat(handle).st_mode):
        os.close(handle)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))
        raise OSError(errno.EINVAL, "a pipe or a device, and no file", str(file))
    return os.fdopen(handle, "rb")


def read_whole(file: Path, most: int) -> bytes:
    """The content of a regular file of at most `most` bytes. Raises OSError."""
    with open_regular(file) as handle:
        if os.fstat(handle.fileno()).st_size > most:
            raise OSError(errno.EFBIG, f"larger than {most / 2**20:,.0f} MiB", str(file))
        return handle.read()
