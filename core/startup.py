"""How processes that import large libraries begin: with less garbage collection, and with OpenMP's threads told how to wait.

Used where such a process begins; no torch here. Invariant: a variable that the user has set stays as it is.
"""

import atexit
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "3000"}
"""How threads of one process wait for each other, read by OpenMP when torch is imported. Engines, ranks and the system share the
cores: threads that spin for long at the barriers of small passes cost 40x on a busy machine (128 against 5,055 tokens/s seen).
Those that go to sleep at once (passive means a count of 0) make two threads slower than one: an update of 3.97 s against 2.68 s. With
a short spin it is 2.26 s, and with two other busy processes on the same two cores 5.9 s instead of 5.5 s. An engine with two threads
takes 1.88 s instead of 2.12 s for 256 samples (1.79 s as OpenMP would wait by itself)."""


atexit.register(gc.unfreeze)  # the last collection of a process frees everything: Triton complains of what is left


def waiting() -> dict[str, str]:
    """`WAITING`, where the user has set nothing else."""
    return {name: os.environ.get(name, value) for name, value in WAITING.items()}


@contextmanager
def uncollected() -> Iterator[None]:
    """Leave what has been made until the end of the block, and is to stay (modules, classes, data), out of all garbage collection.

    Inside the block nothing is collected; afterwards the collector runs as before it. torch, DeepSpeed and vLLM make a million
    such objects. Python's collector would walk them again and again and find nothing, for a tenth to a fourth of the time, and
    every `gc.collect()` of a library (vLLM starts an engine with five) takes half a second.
    """
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if running:
            gc.enable()
