"""The pool on a thread of its own: generation goes on whatever the learner does (asynchronous mode).

Made by `trainer/build.py`; the loop and the learner's broadcast use it like a pool. Invariant: only the thread changes the
pool. A call is carried out between two rounds of it; an error that ends the rounds is raised to whoever asks next.
"""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from actors.ledger import Queues
from core.errors import ActorError
from core.records import FloatArray, IntArray, Start, Trajectory
from core.sampling import Sampling
from core.weights import Acknowledgement, WeightHandle

if TYPE_CHECKING:
    from actors.pool import RolloutPool

R = TypeVar("R")
Finished = tuple[str, list[Trajectory]]
"""A start id and its trajectories by sample; none if the start was quarantined."""

PATIENCE = 0.5
"""Seconds between two looks whether the thread or its work has ended."""


class RolloutStream:
    """Generates what was submitted until it is closed; the pool stays with whoever made it."""

    def __init__(self, pool: "RolloutPool") -> None:
        self._pool = pool
        self._calls: queue.Queue[tuple[Callable[[], Any], Future[Any]]] = queue.Queue()
        self._finished: queue.Queue[Finished] = queue.Queue()
        self._owed = 0  # starts submitted and not handed out
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="rollout-stream", daemon=True)
        self._thread.start()

    @property
    def restarts(self) -> int:
        """Restarts of rollout actors since the run began."""
        return self._pool.restarts

    @property
    def quarantined(self) -> int:
        """Starts that no engine could generate since the run began."""
        return self._pool.quarantined

    def submit(self, starts: Sequence[Start], sampling: Sampling) -> None:
        """Queue starts; returns when they are in the books."""
        self._call(lambda: self._pool.submit(starts, sampling))
        self._owed += len(starts)

    def finished(self) -> list[Finished]:
        """The starts that were completed since the last call; waits for the first.

        Raises what has ended the rounds, and ActorError when no start is left to wait for.
        """
        found: list[Finished] = []
        while not found or not self._finished.empty():
            try:
                found.append(self._finished.get(timeout=PATIENCE))
            except queue.Empty:
                self._check()
                if self._call(self._lost):
                    raise ActorError(
                        f"{self._owed} starts are owed, but no engine has them: a defect of the pool"
                    ) from None
        self._owed -= len(found)
        return found

    def _lost(self) -> bool:
        """On the thread: whether nothing is under way, nor finished. Raises ActorError when nothing can be."""
        self._pool.check()
        queues = self._pool.queues()
        return not queues.waiting and not queues.running and self._finished.empty()

    def abandon(self) -> None:
        """Forget everything that was submitted."""
        self._call(self._pool.abandon)
        self._owed = 0
        while not self._finished.empty():
            self._finished.get()

    def generate(self, starts: Sequence[Start], sampling: Sampling) -> list[Trajectory]:
        """As `RolloutPool.generate`: before all that has been submitted."""
        return self._call(lambda: self._pool.generate(starts, sampling))

    def load_weights(self, handle: WeightHandle) -> list[Acknowledgement]:
        """As `RolloutPool.load_weights`: each engine swaps between two turns, with what it has in flight."""
        return self._call(lambda: self._pool.load_weights(handle))

    def make_room(self) -> None:
        """As `RolloutPool.make_room`."""
        self._call(self._pool.make_room)

    def sequence_logprobs(self, sequences: Sequence[IntArray]) -> list[list[FloatArray]]:
        """As `RolloutPool.sequence_logprobs`."""
        return self._call(lambda: self._pool.sequence_logprobs(sequences))

    def queues(self) -> Queues:
        """As `RolloutPool.queues`, looked at from outside: also when the rounds have ended."""
        return self._pool.queues()

    def close(self) -> None:
        """End the thread; the pool may be used without it again, and what was not handed out is in its books still."""
        self._pool.stop()
        self._thread.join()
        self._pool.resume()

    def _call(self, function: Callable[[], R]) -> R:
        """Carry out `function` on the thread. Raises what it raises, or what has ended the rounds."""
        future: Future[R] = Future()
        self._check()
        self._calls.put((function, future))
        while True:
            try:
                return future.result(timeout=PATIENCE)
            except TimeoutError:
                if future.done():  # its own TimeoutError, or an answer that has come since
                    return future.result()
                self._check()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while True:
                self._serve(wait=self._pool.idle)
                self._pool.pump()
                for item in self._pool.collect():
                    self._finished.put(item)
        except BaseException as error:
            self._error = error

    def _serve(self, wait: bool) -> None:
        """Carry out the calls that are there; `wait` a moment for the first."""
        try:
            function, future = self._calls.get(timeout=PATIENCE) if wait else self._calls.get_nowait()
        except queue.Empty:
            return
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)


@contextmanager
def streaming(pool: "RolloutPool") -> Iterator[RolloutStream]:
    """A stream over `pool` that ends with the block."""
    stream = RolloutStream(pool)
    try:
        yield stream
    finally:
        stream.close()
