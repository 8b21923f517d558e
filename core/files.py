"""Reads files that a user names. Invariant: what has no end is not read."""

import errno
import os
import stat
from pathlib import Path


def read_whole(file: Path, most: int) -> bytes:
    """The content of a regular file of at most `most` bytes. Raises OSError, also for pipes and devices, which may have
    no end."""
    with os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK), "rb") as handle:
        about = os.fstat(handle.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, "a pipe or a device, and no file", str(file))
        if about.st_size > most:
            raise OSError(errno.EFBIG, f"larger than {most / 2**20:,.0f} MiB", str(file))
        return handle.read()
