"""Who compiles the parts that DeepSpeed brings as source. Used by `learner.engine`; no torch here.

Invariant: a compilation that was killed keeps nobody waiting. torch marks one that is under way with a file named lock, which a
killed process leaves behind, and waits for ever until it is gone.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

STALE = 600.0
"""Seconds after which torch's lock is one of a process that was killed, where the file system has no locks that tell; compiling
takes about one minute."""


@contextlib.contextmanager
def sole_compiler(extensions: Path) -> Iterator[list[Path]]:
    """Be the only rank that compiles in TORCH_EXTENSIONS_DIR, once those before it are ready or have ended; yields the locks that
    were left there, which are gone.

    The guard is the kernel's own lock of a file: it is free as soon as its process ends, however that happens.
    """
    extensions.mkdir(parents=True, exist_ok=True)
    with (extensions / ".guard").open("w") as guard:
        try:
            fcntl.flock(guard, fcntl.LOCK_EX)
            age = 0.0
        except OSError:  # some network file systems
            age = STALE
        yield drop_locks(extensions, time.time() - age)


def drop_locks(extensions: Path, before: float) -> list[Path]:
    """Remove torch's locks that were made before this time."""
    dropped = []
    for folder, _, files in os.walk(extensions):
        lock = Path(folder, "lock")
        with contextlib.suppress(FileNotFoundError):  # the compilation, or another rank, has just removed it
            if lock.name in files and lock.stat().st_mtime <= before:
                lock.unlink()
                dropped.append(lock)
    return dropped
