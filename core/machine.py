"""What the machine of this process has."""

import ctypes
import importlib
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psutil

NVIDIA = "/proc/driver/nvidia/gpus"  # one entry per GPU; needs no CUDA library
CGROUPS = (
    ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),  # version 2
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),  # version 1
)
"""Folder of the control group; in it the most bytes, and the present ones; in its memory.stat those that hold files and
can be had back, which do not count as used (as Kubernetes counts)."""
SHORT = 0.25  # memory is short while a smaller share of it is free
BFLOAT16 = ("avx512_bf16", "amx_bf16")
"""What Linux calls a CPU's instructions for bfloat16, without which it computes several times slower than float32."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What a machine has."""

    cores: int
    memory: float  # GiB
    gpus: int = 0  # that its driver lists
    gpu_memory: float = 0.0  # GiB of the smallest of them; 0: not known
    bfloat16: bool = True  # whether its CPU has instructions for it


def this_machine() -> Machine:
    """The machine of this process."""
    gpus = len(os.listdir(NVIDIA)) if os.path.isdir(NVIDIA) else 0
    memory = min([psutil.virtual_memory().total, *(limit for limit, _ in _groups())]) / 2**30
    return Machine(os.cpu_count() or 1, memory, gpus, _gpu_memory() if gpus else 0.0, _has_bfloat16())


def memory_is_short() -> bool:
    """Whether less than a quarter of the memory is free that this machine, or its container, may have."""
    system = psutil.virtual_memory()
    free = [system.available / system.total, *(1 - used / limit for limit, used in _groups())]
    return min(free) < SHORT


def _groups() -> list[tuple[int, int]]:
    """Bytes that the control group of a container may have and has, if it is limited."""
    found = []
    for folder, limit, used, files in CGROUPS:
        with suppress(OSError, ValueError):  # not this version, or no limit
            most, has, stat = (Path(folder, name).read_text(encoding="ascii") for name in (limit, used, "memory.stat"))
            kinds = dict(line.split() for line in stat.splitlines())
            found.append((int(most), int(has) - int(kinds.get(files, 0))))
    return found


@cache
def _gpu_memory() -> float:
    """Asks the driver: torch would take memory on the GPU to answer."""
    try:
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
        gpus = map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))
        return float(min(nvml.nvmlDeviceGetMemoryInfo(gpu).total for gpu in gpus) / 2**30)
    except Exception:  # the package is only in the lock for GPUs; NVML has errors of its own
        return 0.0


@cache
def _has_bfloat16() -> bool:
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return any(flag in flags for flag in BFLOAT16)


@dataclass(frozen=True, slots=True)
class Memory:
    """The most that a process has had so far, in bytes."""

    resident: int = 0  # with the shared pages that it has touched; 0: not known, or the process has ended
    gpu: int = 0  # that its torch has reserved; 0: it has no GPU


UNKNOWN = Memory()


def peak_memory(pid: int | None = None) -> Memory:
    """Of this process, or of another one on this machine (without its GPU)."""
    resident = 0
    try:
        lines = Path(f"/proc/{pid or 'self'}/status").read_text(encoding="utf-8").splitlines()
        (resident,) = [1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")]
    except (OSError, ValueError):  # it has ended
        pass
    torch = sys.modules.get("torch")  # a process that has not imported it has nothing on a GPU
    if pid is not None or torch is None or not torch.cuda.is_initialized():
        return Memory(resident)
    return Memory(resident, torch.cuda.max_memory_reserved())


def return_freed_memory() -> None:
    """Give what this process has freed back to the system, if its C library can (glibc): a heap keeps its holes."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


def largest(memories: Iterable[Memory]) -> Memory:
    """The largest numbers of several processes; zeros of none."""
    found = [*memories, UNKNOWN]
    return Memory(max(one.resident for one in found), max(one.gpu for one in found))


def cpu_speed(dtype: str, threads: int) -> float:
    """Floating-point operations per second of a matrix product: the best of 30, however busy the machine is."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        left, right = (torch.ones(512, 512, dtype=getattr(torch, dtype)) for _ in range(2))
        took: list[float] = []
        while len(took) < 30 and sum(took) < 0.2:
            begun = time.perf_counter()
            left @ right
            took.append(time.perf_counter() - begun)
        return 2 * 512**3 / min(took)
    finally:
        torch.set_num_threads(before)


class NoEnd(BaseException):
    """Time is up. No Exception, because Jinja ignores those that it meets while it folds constants."""


@contextmanager
def bounded(seconds: float = 5.0, growth: int = 2**30) -> Iterator[None]:
    """Inside the block this process has `seconds` of processor time and `growth` bytes of memory more. Raises NoEnd (in
    the main thread only), MemoryError."""
    most, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    lower = used + growth if most == resource.RLIM_INFINITY else min(most, used + growth)
    main = threading.current_thread() is threading.main_thread()

    def _late(*_: object) -> None:
        raise NoEnd(f"no end after {seconds:g} s")

    before = signal.signal(signal.SIGVTALRM, _late) if main else None
    try:
        resource.setrlimit(resource.RLIMIT_AS, (lower, hard))
        if main:
            signal.setitimer(signal.ITIMER_VIRTUAL, seconds, 0.5)  # again: a callback of C may swallow it
        yield
    finally:
        if main:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))
