"""Ends of processes, as tests wait for them."""

import time
from pathlib import Path

LONG = 400.0
"""Seconds that anything may take on a busy machine."""


def ends(process: int) -> bool:
    """Whether a process that was killed ends: the kernel may take a moment."""
    deadline = time.monotonic() + LONG
    while running(process) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not running(process)


def running(process: int) -> bool:
    """Whether the process still is there (one that has ended and waits for its parent is not)."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
