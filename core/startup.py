"""A faster start of processes that import large libraries.

Used where such a process begins. Invariant: what was running before the block (the garbage collector) runs again after it.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Leave what is made inside the block, which is to stay (modules, classes, functions), out of all garbage collection.

    torch, DeepSpeed and vLLM make a million such objects; Python's collector would walk them again and again and find nothing, for a
    tenth to a fifth of the time, and every `gc.collect()` of a library (vLLM starts an engine with five) takes half a second.
    """
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if running:
            gc.enable()
