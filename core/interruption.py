"""SIGINT and SIGTERM while a run trains: the first signal ends the run in order, the second ends the process.

Invariant: a step whose update or store writes have begun is finished, so what is saved is always the state after a
complete iteration.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130
"""Exit status of a process that a signal ends at once."""

DROPPABLE = ("generate", "reward", "score", "evaluate")
"""Phases that change neither the learner nor the replay store: they end at the first signal, and a resumed run repeats
them."""


class Interruption:
    """Whether a signal, or the user's code, has asked the run to end, and the phase in which the signal came."""

    def __init__(self) -> None:
        self.asked = False  # by a signal: the next one ends the process
        self.ended = False  # by the user's code
        self._phase = DROPPABLE[0]  # start-up changes nothing that is saved either

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

    def announcing(self, announce: Callable[[str], object]) -> Callable[[str], None]:
        """`announce`, to be called with the name of a phase that begins; it raises KeyboardInterrupt as `check`
        does."""

        def _begin(phase: str) -> None:
            self._phase = phase
            if phase in DROPPABLE:
                self.check()
            announce(phase)

        return _begin

    def hold(self) -> None:
        """Finish what follows, until the next phase begins: a signal only asks."""
        self._phase = ""

    def check(self) -> None:
        """Raises KeyboardInterrupt when the run has been asked to end."""
        if self.asked or self.ended:
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 (the signature of a signal handler)
        if self.asked:
            print("stopped at once: what came after the last checkpoint is lost", file=sys.__stderr__, flush=True)
            os._exit(INTERRUPTED)
        self.asked = True
        if self._phase in DROPPABLE:
            print("interrupted: saving and closing; a second signal stops at once", file=sys.__stderr__, flush=True)
            raise KeyboardInterrupt
        print("interrupted: finishing the update; a second signal stops at once", file=sys.__stderr__, flush=True)
