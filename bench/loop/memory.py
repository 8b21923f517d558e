"""The memory of a whole run: what its processes use together when they use most. Used by `bench.loop`."""

import threading
from collections import defaultdict
from typing import Any

import psutil

SECONDS = 0.5  # between two looks
OTHERS = "bench.loop.trl"  # in the command line of processes that are not of the run


class PeakMemory:
    """Looks at this process and its descendants until the end of the block; shared pages count once in all."""

    def __init__(self) -> None:
        self.peak: dict[str, float] = {}  # GiB by name of the process
        self._end = threading.Event()
        self._looking = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> "PeakMemory":
        self._looking.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._end.set()
        self._looking.join()

    def _look(self) -> None:
        while not self._end.wait(SECONDS):
            now = memory_by_process()
            if sum(now.values()) > sum(self.peak.values()):
                self.peak = now


def memory_by_process() -> dict[str, float]:
    """GiB that each kind of process of this run uses now."""
    own, found = psutil.Process(), defaultdict[str, float](float)
    for process in [own, *own.children(recursive=True)]:
        try:
            words = process.cmdline()
            if not words or OTHERS in words:
                continue
            actor = words[0].startswith("ray::")
            name = "driver" if process == own else words[0].removeprefix("ray::").split(".")[0] if actor else "Ray"
            found[name] += process.memory_full_info().pss / 2**30
        except psutil.Error:  # it has just ended
            continue
    return dict(found)
