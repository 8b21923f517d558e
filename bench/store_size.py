"""What our shard takes of memory and of disk while it runs: part of `bench.store`.

Memory is also that of a process of its own, which has names, slack and the copy that a snapshot is written from; disk is
also the largest that it ever was, log and unfinished snapshots included.
"""

import ctypes
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import NamedTuple

from bench.report import Check, check, median
from core.config import ReplayConfig
from core.records import Candidate
from replay import snapshot
from replay.batch import pack
from replay.opening import Identity
from replay.ops import Evict
from replay.server import ReplayShard
from replay.shard import Shard
from replay.storage import Folder, write_snapshot

Batches = Callable[[int], Iterator[list[Candidate]]]
"""A number of trajectories in batches."""


class Setting(NamedTuple):
    """What is stored, and how."""

    batches: Batches
    trajectories: int
    config: ReplayConfig
    identity: Identity


class Grown(NamedTuple):
    """Bytes that a process has grown by."""

    states: int
    tokens: int  # of this, what the tokens take, each once
    own: int  # what the shard says of itself
    resident: int
    peak: int  # while a snapshot was written


def memory(setting: Setting) -> list[Check]:
    """Bytes per state against the goal: 1.2 x its share of the trajectory's tokens, and 64."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        grown = pool.submit(grow, setting).result()
    raw = grown.tokens / grown.states
    goal = 1.2 * raw + 64
    return [
        check("memory per state", grown.own / grown.states, "bytes", "<=", goal, raw),
        check("memory per state, growth of the process", grown.resident / grown.states, "bytes", "<=", goal, raw),
        check("memory per state, the same at its largest, in a snapshot", grown.peak / grown.states, "bytes", None, 0.0, raw),
    ]  # fmt: skip


def grow(setting: Setting) -> Grown:
    """Fill a shard in this process, and write a snapshot of it."""
    warm = _filled(setting._replace(trajectories=2048))  # what is compiled and imported is not counted
    _save(warm)
    del warm
    before = _resident("VmRSS")
    shard = _filled(setting)
    resident = _resident("VmRSS") - before
    Path("/proc/self/clear_refs").write_text("5")  # the largest size so far is the present one
    _save(shard)
    peak = _resident("VmHWM") - before
    return Grown(shard.states, shard.arena.itemsize * shard.arena.live, shard.nbytes, resident, peak)


def _filled(setting: Setting) -> Shard:
    shard = Shard(setting.config, setting.identity.vocabulary, "shard")
    for candidates in setting.batches(setting.trajectories):
        shard.add(pack(candidates, setting.identity.vocabulary))
    return shard


def _save(shard: Shard) -> None:
    with TemporaryDirectory() as folder:
        write_snapshot(Folder(folder), "snapshot", snapshot.capture(shard.frozen()))


def _resident(field: str) -> int:
    """Bytes of this process, without what it has freed."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


@dataclass(slots=True)
class Watch:
    """Keeps the largest size of a folder per state, as seen every few milliseconds."""

    folder: Path
    states: int = 0  # held at the moment
    enough: int = sys.maxsize  # states from which on it counts: before, the log's smallest bound is what is seen
    largest: float = 0.0
    stopped: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Until it is stopped."""
        while not self.stopped.wait(0.002):
            self.look()

    def look(self) -> float:
        """Bytes per state now."""
        found = occupied(self.folder) / max(self.states, 1)
        if self.states >= self.enough:
            self.largest = max(self.largest, found)
        return found


def occupied(folder: Path) -> int:
    """Bytes of all files; one that is deleted meanwhile is none."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total


def disk(setting: Setting, folder: Path) -> list[Check]:
    """Bytes on disk per state of a shard that compacts by itself, in the second half of a run, when it is full: as much is
    evicted as is added. Once with time between the writes, as the loop leaves it, and once at full speed.
    """
    raw, calm, largest, _ = running(setting, folder / "calm", pauses=True)
    _, _, hurried, rate = running(setting, folder / "hurried", pauses=False)
    goal = 1.2 * raw + 64
    return [
        check("disk per state, largest between compactions", calm, "bytes", "<=", goal, raw),
        check("disk per state, largest in a compaction, old and new snapshot", largest, "bytes", "<=", goal, raw),
        check("disk per state, largest in a compaction, adds at full speed", hurried, "bytes", "<=", goal, raw),
        check("add with log, fsync and compactions as they come", rate, "states/s"),
    ]


def running(setting: Setting, folder: Path, *, pauses: bool) -> tuple[float, float, float, float]:
    """Bytes per state: its share of the tokens at the end, largest between compactions, largest at all; states added per second."""
    shard = ReplayShard(setting.identity, setting.config, str(folder))
    watch, calm, full, seconds = Watch(folder), 0.0, sys.maxsize, list[float]()
    watcher = threading.Thread(target=watch.run)
    watcher.start()
    for turn, candidates in enumerate(setting.batches(setting.trajectories)):
        operation = pack(candidates, setting.identity.vocabulary)
        start = perf_counter()
        extent = shard.write(shard.extent().sequence + 1, operation)
        seconds.append((perf_counter() - start) / len(operation.lengths))
        if 2 * turn * len(candidates) >= setting.trajectories:
            full = min(full, extent.states)
        if extent.states > full:
            ranks, keys = shard.least(extent.states - full)
            extent = shard.write(extent.sequence + 1, Evict(int(ranks[-1]), int(keys[-1])))
        watch.states, watch.enough = extent.states, full
        if pauses:
            shard._wait_for_compaction()
            calm = max(calm, watch.look()) if extent.states >= full else 0.0
    watch.stopped.set()
    watcher.join()
    arena = shard._opened().arena
    raw = arena.itemsize * arena.live / watch.states
    shard.close()
    return raw, calm, watch.largest, 1 / median(seconds)
