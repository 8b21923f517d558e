"""The peak memory of a Ray actor: resident memory on CPU, torch's allocations on a GPU."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
import torch

MIB = 2**20
EXACT = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_MAX_": "65536",
    "MALLOC_MMAP_THRESHOLD_": str(MIB),
    "MALLOC_TRIM_THRESHOLD_": str(MIB),
    "MALLOC_TOP_PAD_": "0",
}
"""Environment in which glibc returns each free block of 1 MiB or more to the system at once. Then resident memory is
that of the tensors. It makes the process slower."""


def memory_now(actor: Any) -> float:
    """MiB that the actor's process uses."""
    amount: float = ray.get(actor.__ray_call__.remote(_now))
    return amount


def peak_memory(actor: Any, work: Callable[[], object]) -> float:
    """The most MiB that the actor's process uses during `work`."""
    ray.get(actor.__ray_call__.remote(_forget_peak))
    work()
    amount: float = ray.get(actor.__ray_call__.remote(_peak))
    return amount


def _now(_actor: Any) -> float:
    if torch.cuda.is_available():
        return torch.cuda.memory_allocated() / MIB
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return _status("VmRSS")


def _forget_peak(_actor: Any) -> None:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        return
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def _peak(_actor: Any) -> float:
    return torch.cuda.max_memory_allocated() / MIB if torch.cuda.is_available() else _status("VmHWM")


def _status(field: str) -> float:
    """A figure of /proc/self/status in MiB (Linux)."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024
