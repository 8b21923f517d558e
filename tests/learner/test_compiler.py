"""Locks of compilations: torch's own, and the guard that a killed process does not keep."""

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from learner.distributed.compiler import STALE, remove, sole_compiler
from tests.processes import LONG

COMPILES = """
import sys, time
from pathlib import Path
from learner.distributed.compiler import sole_compiler
with sole_compiler(Path(sys.argv[1])):
    Path(sys.argv[1], "lock").touch()
    print("compiling", flush=True)
    time.sleep(float(sys.argv[2]))
    Path(sys.argv[1], "compiled").touch()
"""


def compiling(folder: Path, seconds: float) -> "subprocess.Popen[str]":
    """A process that is in the middle of it."""
    command = [sys.executable, "-c", COMPILES, str(folder), str(seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "compiling\n"
    return process


def test_one_that_is_killed_leaves_nothing_that_anybody_waits_for(tmp_path: Path) -> None:
    process = compiling(tmp_path, LONG)
    process.kill()
    with sole_compiler(tmp_path) as left_behind:
        assert left_behind
    assert not (tmp_path / "lock").exists()
    process.communicate()
    with sole_compiler(tmp_path) as left_behind:
        assert not left_behind


def test_one_that_lives_is_waited_for(tmp_path: Path) -> None:
    process = compiling(tmp_path, 1.0)
    with sole_compiler(tmp_path):
        assert (tmp_path / "compiled").exists()
    process.communicate()


def test_where_files_cannot_be_locked_only_an_old_lock_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    lock = tmp_path / "lock"
    lock.touch()
    with sole_compiler(tmp_path) as left_behind:
        assert not left_behind
        assert lock.exists()
    os.utime(lock, (0, time.time() - 2 * STALE))
    with sole_compiler(tmp_path) as left_behind:
        assert left_behind
        assert not lock.exists()


def test_a_lock_that_is_gone_when_it_is_looked_at_is_nobodys(tmp_path: Path) -> None:
    assert not remove(tmp_path / "lock", older=STALE)
    assert not remove(tmp_path / "lock")
