"""Judging in worker processes, under a hard time limit per verdict.

Called by `tasks/task.py` with the texts of an iteration's responses. Invariants: one verdict per item in the order of the
items; nothing a verifier does (raise, hang, crash its process, print, exhaust memory) raises here or takes more than its
limit: it becomes a verdict of `failed_reward` with its reason. Only a verifier that cannot even be imported is an error: a ConfigError
at the start, an ActorError when a lost worker cannot be replaced.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from core.errors import ActorError, ConfigError
from core.records import Verdict
from tasks.pipes import readable, writable

ROOT = Path(__file__).resolve().parents[1]
CHUNK = 64
"""Items sent to a worker at once: few messages, yet the workers finish together."""
EXIT_LIMIT = 10.0
"""Seconds in which a worker that has closed its output must have ended."""
START_LIMIT = 120.0
"""Seconds in which a worker must have imported its verifier."""


class _WorkerEnded(Exception):
    """The worker process is gone."""


class _Worker:
    """One judging process and its two pipes."""

    def __init__(self, command: Sequence[str]) -> None:
        paths = [str(ROOT), *(path for path in sys.path if path), os.getcwd()]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tasks.judge_worker", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)), "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # its process group is its own, so that what the verifier started ends with it
        )
        assert self._process.stdin
        assert self._process.stdout
        self._input = self._process.stdin.fileno()
        self._output = self._process.stdout.fileno()
        os.set_blocking(self._input, False)
        self._pending = b""
        self._started = False

    def wait_until_ready(self) -> None:
        """Raises ConfigError when the verifier cannot be imported."""
        if self._started:
            return
        try:
            line = self._line(START_LIMIT)
        except TimeoutError:
            raise ConfigError(f"a judge did not start in {START_LIMIT:g} s; see its output above") from None
        except _WorkerEnded as ended:
            raise ConfigError(f"a judge ended before it was ready ({ended}); see its output above") from None
        if line != "ready":
            raise ConfigError(f"judge {line}")
        self._started = True

    def send(self, items: Sequence[tuple[str, str]], limit: float) -> None:
        """Raises TimeoutError when the worker does not read, _WorkerEnded when it is gone."""
        data = memoryview(json.dumps(items).encode("ascii") + b"\n")
        deadline = time.monotonic() + limit
        while data:
            if not writable(self._input, deadline):
                raise TimeoutError
            try:
                data = data[os.write(self._input, data) :]
            except BrokenPipeError:
                raise self._ended() from None

    def receive(self, limit: float) -> Verdict:
        """The next verdict. Raises TimeoutError after `limit` seconds, _WorkerEnded when the process is gone."""
        reward, correct, detail, judge_failed = json.loads(self._line(limit))
        return Verdict(reward, correct, detail, judge_failed)

    def _line(self, limit: float) -> str:
        deadline = time.monotonic() + limit
        while b"\n" not in self._pending:
            if not readable(self._output, deadline):
                raise TimeoutError
            data = os.read(self._output, 1 << 16)
            if not data:
                raise self._ended()
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        return line.decode("ascii")

    def _ended(self) -> Exception:
        """Why nothing more comes. A TimeoutError of one that ended itself by its timer, before a driver that stood still looked."""
        try:
            code = self._process.wait(EXIT_LIMIT)
        except subprocess.TimeoutExpired:
            return _WorkerEnded("it closed its output and ran on")
        if code == -signal.SIGALRM:
            return TimeoutError()
        return _WorkerEnded(f"killed by signal {-code}" if code < 0 else f"exit status {code}")

    def stop(self) -> None:
        """End the process with the children of its group; whoever reads from it meets the end."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def kill(self) -> None:
        """The same, waited for, and close its pipes."""
        self.stop()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(BrokenPipeError):
                pipe.close()  # type: ignore[union-attr]


class JudgePool:
    """Worker processes that run one verifier, named by its import path 'module:function'."""

    def __init__(
        self,
        verifier: str,
        *,
        workers: int,
        limit: float,
        memory_gib: float,
        failed_reward: float = 0.0,
        settings: str | None = None,
    ) -> None:
        """`limit`: seconds per verdict. `memory_gib`: address space of a worker, 0 for no bound.

        `failed_reward`: of an item that the verifier fails on. `settings`: when given, the function makes the verifier of them.
        """
        self._limit = limit
        self._failed_reward = failed_reward
        self._command = [verifier, str(limit), str(memory_gib), str(failed_reward)]
        self._command += [] if settings is None else [settings]
        self._workers = [self._start() for _ in range(workers)]  # they import side by side, and beside the caller
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="judge")
        self.replaced = 0  # workers killed or lost so far
        self._closed = False

    def _start(self) -> _Worker:
        return _Worker(self._command)

    def _failed(self, detail: str) -> Verdict:
        return Verdict(self._failed_reward, False, detail, judge_failed=True)

    def wait_until_ready(self) -> None:
        """Return when every worker has imported the verifier. Raises ConfigError when it cannot be imported."""
        for worker in self._workers:
            worker.wait_until_ready()

    def judge(self, items: Sequence[tuple[str, str]]) -> list[Verdict]:
        """Verdicts of (reference, response) pairs, in order.

        Raises ConfigError only if the verifier cannot be loaded, ActorError if it cannot be loaded any more.
        """
        verdicts: list[Verdict | None] = [None] * len(items)
        size = max(1, min(CHUNK, -(-len(items) // len(self._workers))))
        chunks = deque(range(i, min(i + size, len(items))) for i in range(0, len(items), size))

        def drain(slot: int) -> None:
            while True:
                try:
                    chunk = chunks.popleft()
                except IndexError:
                    return
                for index, verdict in zip(chunk, self._judge_chunk(slot, [items[i] for i in chunk]), strict=True):
                    verdicts[index] = verdict

        list(self._threads.map(drain, range(min(len(self._workers), len(chunks)))))
        return [verdict for verdict in verdicts if verdict is not None]

    def _judge_chunk(self, slot: int, items: list[tuple[str, str]]) -> list[Verdict]:
        """Judge on one worker; whenever it hangs or dies, the item it was at fails and a new worker takes the rest."""
        done: list[Verdict] = []
        while len(done) < len(items):
            worker = self._ready(slot)
            try:
                worker.send(items[len(done) :], self._limit)
                while len(done) < len(items):
                    self._check_open()
                    done.append(worker.receive(self._limit))
            except TimeoutError:
                done.append(self._failed(f"judge timed out after {self._limit:g} s"))
                self._replace(slot)
            except _WorkerEnded as ended:
                done.append(self._failed(f"judge crashed: {ended}"))
                self._replace(slot)
        return done

    def _ready(self, slot: int) -> _Worker:
        try:
            self._workers[slot].wait_until_ready()
        except ConfigError as error:
            self._check_open()
            if not self.replaced:
                raise
            raise ActorError(f"a judge was lost and cannot be started anew: {error}") from None
        return self._workers[slot]

    def _check_open(self) -> None:
        if self._closed:  # a short list of verdicts must not pass for a whole one
            raise ActorError("the judges were closed while they judged")

    def _replace(self, slot: int) -> None:
        self._check_open()
        self._workers[slot].kill()
        self._workers[slot] = self._start()
        if self._closed:  # meanwhile: it was not there to be stopped with the others
            self._workers[slot].stop()
        self.replaced += 1

    def close(self) -> None:
        """End all workers at once: a judgement under way, whose caller was interrupted, goes no further."""
        self._closed = True
        for worker in self._workers:
            worker.stop()
        self._threads.shutdown(wait=True)
        for worker in self._workers:
            worker.kill()
