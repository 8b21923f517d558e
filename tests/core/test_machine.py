"""What a machine and its processes have."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
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


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int, int], None]:
    """Sets the limit of this process's control group, the bytes that it has, and how many of these hold files."""
    names = ("memory.max", "memory.current", "inactive_file")
    monkeypatch.setattr(machine, "CGROUPS", ((str(tmp_path), *names), (str(tmp_path / "none"), *names)))

    def write(limit: str, used: int, files: int) -> None:
        (tmp_path / "memory.max").write_text(f"{limit}\n", encoding="ascii")
        (tmp_path / "memory.current").write_text(f"{used}\n", encoding="ascii")
        (tmp_path / "memory.stat").write_text(f"anon 1\ninactive_file {files}\n", encoding="ascii")

    return write


def test_a_container_has_what_its_control_group_may_have(group: Callable[[str, int, int], None]) -> None:
    whole = psutil.virtual_memory().total / 2**30
    group(str(2**30), 2**29, 0)
    assert machine.this_machine().memory == 1.0
    group("max", 2**29, 0)
    assert machine.this_machine().memory == whole


def test_memory_is_short_when_less_than_a_quarter_is_free(
    group: Callable[[str, int, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the machine, or of its container. What only holds files is free."""

    def short(available: int, limit: str, used: int, files: int = 0) -> bool:
        group(limit, used, files)
        system = SimpleNamespace(total=1000, available=available)
        monkeypatch.setattr(psutil, "virtual_memory", lambda: system)
        return machine.memory_is_short()

    assert not short(250, "1000", 750)
    assert short(249, "1000", 0)
    assert short(1000, "1000", 751)
    assert not short(1000, "1000", 951, files=201)
    assert not short(1000, "max", 751)


def test_what_a_process_has_freed_goes_back_to_the_system() -> None:
    process = psutil.Process()
    blocks = [bytearray(2**16) for _ in range(512)]
    used = process.memory_info().rss
    del blocks[:-1]  # the last one keeps the heap from shrinking by itself
    return_freed_memory()
    assert process.memory_info().rss < used - 2**24
