"""What a machine and its processes have."""

import os
import sys
import time

import numpy as np

from core.child import ChildProcess
from core.machine import Memory, largest, peak_memory

BIG = 64 * 2**20  # bytes


def test_the_peak_of_a_process_stays_when_its_memory_is_freed() -> None:
    before = peak_memory().resident
    block = np.ones(BIG, np.uint8)
    del block
    assert peak_memory().resident > before
    assert peak_memory(os.getpid()).resident == peak_memory().resident


def test_a_child_that_has_ended_has_no_memory() -> None:
    script = f"import sys; block = b'x' * {BIG}; print('ready', flush=True); sys.stdin.read()"
    child = ChildProcess([sys.executable, "-c", script])
    assert child.line(time.monotonic() + 60) == b"ready"
    assert child.peak_memory > BIG
    child.kill()
    assert child.peak_memory == 0


def test_the_largest_of_several_processes() -> None:
    assert largest([Memory(3, 0), Memory(1, 2)]) == Memory(3, 2)
    assert largest([]) == Memory()
