"""The start of a process that imports large libraries: less garbage collection, and how OpenMP's threads wait.

Called at the top of such a process, before torch is imported. Invariant: a variable that the user has set keeps its value.
"""

import atexit
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "3000"}
"""How OpenMP's threads wait for each other, read when torch is imported. Engines, ranks and the system share the cores. Threads that
spin for long cost 40x on a busy machine (128 against 5,055 tokens/s); threads that sleep at once make two slower than one (an
update of 3.97 s against 2.68 s). A short spin takes 2.26 s, and 5.5 s beside two busy processes."""


atexit.register(gc.unfreeze)  # else Triton reports a leak when the process ends


def waiting() -> dict[str, str]:
    """`WAITING`, where the user has set nothing else."""
    return {name: os.environ.get(name, value) for name, value in WAITING.items()}


@contextmanager
def uncollected() -> Iterator[None]:
    """Collect no garbage inside the block, and never walk what exists at its end (modules, classes, data) again.

    torch, DeepSpeed and vLLM make a million lasting objects. Walking them takes a tenth to a fourth of the time, and every
    `gc.collect()` of a library half a second.
    """
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if running:
            gc.enable()
