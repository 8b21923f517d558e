"""SIGINT and SIGTERM while a run trains: the first signal ends the run in order, the second ends the process.

Invariant: work that changes what is saved is finished, so a checkpoint always holds the state after a complete
iteration. Only work inside `Interruption.interruptible` is dropped.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130
"""Exit status of a process that a signal ends at once."""


class Interruption:
    """Whether a signal, or the user's code, has asked the run to end, and whether a signal ends the work at once."""

    def __init__(self) -> None:
        self.asked = False  # by a signal: the next one ends the process
        self.ended = False  # by the user's code
        self._at_once = True  # start-up changes nothing that is saved

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle both signals inside the block. Only the main thread can: in another one they are left alone."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        earlier = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in earlier.items():
                signal.signal(number, handler)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """The block changes neither the learner nor the replay store, and a resumed run repeats it: a signal ends it
        with KeyboardInterrupt. Raises KeyboardInterrupt as `check` does."""
        self.check()
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False

    def hold(self) -> None:
        """From here on a signal only asks, except inside `interruptible`."""
        self._at_once = False

    def check(self) -> None:
        """Raises KeyboardInterrupt when the run has been asked to end."""
        if self.asked or self.ended:
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 (the signature of a signal handler)
        if self.asked:
            print("stopped at once: what came after the last checkpoint is lost", file=sys.__stderr__, flush=True)
            os._exit(INTERRUPTED)
        self.asked = True
        if self._at_once:
            print("interrupted: saving and closing; a second signal stops at once", file=sys.__stderr__, flush=True)
            raise KeyboardInterrupt
        print("interrupted: finishing the update; a second signal stops at once", file=sys.__stderr__, flush=True)
