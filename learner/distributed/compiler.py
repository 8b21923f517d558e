"""Who compiles the part that DeepSpeed brings as source. Used by `learner.engine`; no torch here.

torch marks a compilation that is under way with a file named lock and waits until it is gone: for ever, if its process was killed.
"""

import contextlib
import fcntl
import time
from collections.abc import Iterator
from pathlib import Path

STALE = 600.0
"""Seconds after which torch's lock is one of a process that was killed, where the file system has no locks that tell; compiling
takes about one minute."""


@contextlib.contextmanager
def sole_compiler(build: Path) -> Iterator[bool]:
    """Be the only rank that compiles in this folder, once those before it are ready or have ended; yields whether one of them had
    left torch's lock there, which is gone.

    The guard is the kernel's own lock of a file: it is free as soon as its process ends, however that happens. Where the file
    system has none, torch's lock is removed only when it is STALE. Nodes that share the folder must see each other's locks; where
    they do not, TORCH_EXTENSIONS_DIR names a folder of each node's own.
    """
    build.mkdir(parents=True, exist_ok=True)
    with (build / ".guard").open("w") as guard:
        try:
            fcntl.flock(guard, fcntl.LOCK_EX)
        except OSError:  # some network file systems
            yield remove(build / "lock", older=STALE)
        else:
            yield remove(build / "lock")


def remove(lock: Path, older: float | None = None) -> bool:
    """Whether there was a lock (and `older` than so many seconds) to be removed."""
    with contextlib.suppress(FileNotFoundError):  # another rank has just removed it
        if older is None or time.time() - lock.stat().st_mtime > older:
            lock.unlink()
            return True
    return False
