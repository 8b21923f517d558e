"""What a machine and its processes have."""

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from core import ROOT, machine
from core.child import ChildProcess
from core.machine import Memory, largest, peak_memory, return_freed_memory

BIG = 64 * 2**20  # bytes


def test_the_peak_of_a_process_stays_when_its_memory_is_freed() -> None:
    """In a new process, whose peak is its present."""
    script = f"""
from core.machine import peak_memory
before = peak_memory().resident
block = b"x" * {BIG}
del block
print(peak_memory().resident - before)"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) > BIG / 2
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


def test_a_container_has_what_its_control_group_may_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, limit, used = machine.this_machine().memory, tmp_path / "memory.max", tmp_path / "memory.current"
    monkeypatch.setattr(machine, "CGROUPS", {str(limit): str(used), str(tmp_path / "none"): str(used)})
    limit.write_text(f"{2**30}\n", encoding="ascii")
    used.write_text(f"{2**29}\n", encoding="ascii")
    assert machine.this_machine().memory == 1.0
    limit.write_text("max\n", encoding="ascii")
    assert machine.this_machine().memory >= whole


def test_memory_is_short_when_less_than_a_quarter_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the machine, or of its container."""
    limit, used = tmp_path / "memory.max", tmp_path / "memory.current"
    monkeypatch.setattr(machine, "CGROUPS", {str(limit): str(used)})
    limit.write_text("1000\n", encoding="ascii")

    def short(available: int, of_container: int) -> bool:
        used.write_text(f"{of_container}\n", encoding="ascii")
        system = SimpleNamespace(total=1000, available=available)
        monkeypatch.setattr(psutil, "virtual_memory", lambda: system)
        return machine.memory_is_short()

    assert not short(250, 750)
    assert short(249, 0)
    assert short(1000, 751)
    limit.write_text("max\n", encoding="ascii")
    assert not short(1000, 751)


def test_what_a_process_has_freed_goes_back_to_the_system() -> None:
    process = psutil.Process()
    blocks = [bytearray(2**16) for _ in range(512)]
    used = process.memory_info().rss
    del blocks[:-1]  # the last one keeps the heap from shrinking by itself
    return_freed_memory()
    assert process.memory_info().rss < used - 2**24
