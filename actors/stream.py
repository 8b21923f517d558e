"""Runs the pool on a thread, so that generation continues while the learner works (asynchronous mode). Invariant: only
the thread changes the pool, between two rounds. An error that ends it is raised in every later call."""

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any, TypeVar

from actors.ledger import Queues
from core.errors import ActorError
from core.records import FloatArray, IntArray, Rollout, Sampling, Start
from core.weights import Acknowledgement, WeightHandle

if TYPE_CHECKING:
    from actors.pool import RolloutPool

R = TypeVar("R")
Finished = tuple[str, list[Rollout]]  # a start id and its trajectories by sample; none if the start was quarantined
POLL_SECONDS = 0.5  # seconds between two checks for new calls, or for the end of the thread


class RolloutStream:
    """Generates the submitted starts until it is closed. The pool stays open."""

    def __init__(self, pool: "RolloutPool") -> None:
        self._pool = pool
        self._calls: queue.Queue[tuple[Callable[[], Any], Future[Any]]] = queue.Queue()
        self._finished: queue.Queue[Finished] = queue.Queue()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="rollout-stream", daemon=True)
        self._thread.start()

    @property
    def restarts(self) -> int:
        """As of `RolloutPool`."""
        return self._pool.restarts

    @property
    def quarantined(self) -> int:
        """As of `RolloutPool`."""
        return self._pool.quarantined

    @property
    def dropped(self) -> int:
        """As of `RolloutPool`."""
        return self._pool.dropped

    def submit(self, starts: Sequence[Start], sampling: Sampling) -> None:
        """Queue starts. Raises ConfigError when one does not fit."""
        self._call(lambda: self._pool.submit(starts, sampling))

    def finished(self) -> list[Finished]:
        """Starts completed meanwhile, at least one. Raises the thread's error; ActorError if none can come."""
        finished: list[Finished] = []
        while not finished or not self._finished.empty():
            try:
                finished.append(self._finished.get(timeout=POLL_SECONDS))
            except queue.Empty:
                self._call(self._check_progress)
        return finished

    def abandon(self) -> None:
        """Drop everything that was submitted."""
        self._call(self._pool.abandon)
        while not self._finished.empty():
            self._finished.get()

    def generate(self, starts: Sequence[Start], sampling: Sampling) -> list[Rollout]:
        """As `RolloutPool.generate`: before all that was submitted."""
        return self._call(lambda: self._pool.generate(starts, sampling))

    def load_weights(self, handle: WeightHandle) -> list[Acknowledgement]:
        """As `RolloutPool.load_weights`: an engine swaps between two steps and continues the samples that it has."""
        return self._call(lambda: self._pool.load_weights(handle))

    def sequence_logprobs(self, sequences: Sequence[IntArray]) -> list[list[FloatArray]]:
        """As `RolloutPool.sequence_logprobs`."""
        return self._call(lambda: self._pool.sequence_logprobs(sequences))

    def take_lost(self) -> list[Start]:
        """As `RolloutPool.take_lost`, also after the thread has ended."""
        return self._pool.take_lost()

    def queues(self) -> Queues:
        """As `RolloutPool.queues`, also after the thread has ended."""
        return self._pool.queues()

    def close(self) -> None:
        """End the thread. The pool can still be used, and has the results that were not returned."""
        self._pool.stopping = True
        self._thread.join()
        self._pool.stopping = False

    def _call(self, function: Callable[[], R]) -> R:
        """Run `function` on the thread. Raises what it raises, or the error that ended the thread."""
        future: Future[R] = Future()
        self._calls.put((function, future))
        while not wait([future], POLL_SECONDS).done:
            if self._error is not None:
                raise self._error
        return future.result()

    def _check_progress(self) -> None:
        """Runs on the thread. Raises ActorError when nothing is finished and nothing can finish."""
        self._pool.check()
        queues = self._pool.queues()
        if not queues.waiting and not queues.running and self._finished.empty():
            raise ActorError("no engine has any of the submitted starts: a bug of the pool")

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
        """Run the next call. If there is none: return, or with `wait` wait POLL_SECONDS for one."""
        try:
            function, future = self._calls.get(timeout=POLL_SECONDS) if wait else self._calls.get_nowait()
        except queue.Empty:
            return
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)
