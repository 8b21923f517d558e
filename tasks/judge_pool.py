"""The judges that run a verifier: worker processes with hard limits on the time of a verdict, or this process.

Invariants: there is one verdict per case, in the order of the cases. A verifier that raises, hangs, crashes or exhausts
memory gives a verdict of `failed_reward` with the reason, within its time limit. The limit is of processor time, so a
verdict does not depend on the machine's load; a much longer one of wall-clock time ends what sleeps. Only a verifier
that cannot be imported is an error: a ConfigError at the start, an ActorError when a lost worker cannot be replaced.
"""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from core.child import PythonProcess
from core.errors import ActorError, ConfigError
from core.parts.judge import Asks, Case
from core.records import Verdict
from tasks.judge_worker import dump_cases, judge_cases, load_cases, load_verdict, load_verifier, seconds_of

CHUNK = 64  # cases per message to a worker: few messages, but small enough that the workers finish together
PATIENCE = 10.0  # wall-clock limit of a verdict in multiples of that on processor time: others may want the cores
WORKER_START_LIMIT = 120.0  # seconds in which a worker must import its verifier


class LocalJudge:
    """One verifier in this process (`task.judge_workers: 0`), for breakpoints. Nothing bounds its time or memory."""

    def __init__(self, verifier: str, failed_reward: float = 0.0, settings: str | None = None) -> None:
        """Arguments as for `JudgePool`. Raises ConfigError when the verifier cannot be imported."""
        self._reward = load_verifier(verifier, settings)
        self._failed_reward = failed_reward
        self.asks = Asks()  # as `JudgePool.asks`

    def wait_until_ready(self) -> None:
        """See `JudgePool.wait_until_ready`."""
        self.asks = self._reward.asks

    def judge(self, cases: Sequence[Case]) -> list[Verdict]:
        """See `core.parts.judge.Judge`. A verifier gets what it would get in a judging process."""
        sent = load_cases(dump_cases(cases, self.asks))
        return judge_cases(self._reward, sent, self._failed_reward) if sent else []

    def close(self) -> None:
        """Do nothing: there is no process to end."""


class _Worker(PythonProcess):
    """One judging process (`tasks/judge_worker.py`)."""

    def __init__(self, arguments: Sequence[str]) -> None:
        super().__init__("tasks.judge_worker", arguments)
        self._ready = False
        self.asks = Asks()

    def wait_until_ready(self) -> None:
        """Wait until the verifier is imported. Raises ConfigError when it cannot be."""
        if self._ready:
            return
        self.asks = Asks(*self.ready("judge", WORKER_START_LIMIT))
        self._ready = True


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
        patience: float | None = None,
    ) -> None:
        """`limit`: seconds of processor time per verdict; `patience`: on the wall clock, by default PATIENCE x limit.
        `memory_gib`: of a worker, 0 for no bound. `settings`: if given, the function returns the verifier for them."""
        self._limit, self._patience = limit, patience or PATIENCE * limit
        self._failed_reward = failed_reward
        self._arguments = [verifier, str(limit), str(self._patience), str(memory_gib), str(failed_reward)]
        self._arguments += [] if settings is None else [settings]
        self._workers = [_Worker(self._arguments) for _ in range(workers)]  # they import while the caller continues
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="judge")
        self.replaced = 0  # workers killed or lost so far
        self.asks = Asks()  # a task's own verifier gets reference and response, whatever it asks for
        self._closed = False

    def wait_until_ready(self) -> None:
        """Wait until every worker has imported the verifier, and ask for what it asks. If it cannot be imported, close
        and raise ConfigError."""
        try:
            for worker in self._workers:
                worker.wait_until_ready()
                self.asks = worker.asks
        except ConfigError:
            self.close()
            raise

    def judge(self, cases: Sequence[Case]) -> list[Verdict]:
        """See `core.parts.judge.Judge`. Raises ConfigError when the verifier cannot be imported, ActorError when a lost
        worker cannot be replaced."""
        size = max(1, -(-len(cases) // len(self._workers)))
        size = size if self.asks.batch else min(CHUNK, size)
        begins = iter(range(0, len(cases), size))  # the threads share it
        verdicts: dict[int, list[Verdict]] = {}

        def _drain(slot: int) -> None:
            for begin in begins:
                verdicts[begin] = self._judge_chunk(slot, cases[begin : begin + size])

        list(self._threads.map(_drain, range(len(self._workers))))
        return [verdict for begin in sorted(verdicts) for verdict in verdicts[begin]]

    def _judge_chunk(self, slot: int, cases: Sequence[Case]) -> list[Verdict]:
        """Judge on one worker. When it hangs or dies, its case fails and a new worker gets the remaining cases. If all
        were judged in one call, nobody knows which case it was: then each gets a call of its own."""
        done: list[Verdict] = []
        size = len(cases)
        while len(done) < len(cases):
            worker = self._worker(slot)
            part = cases[len(done) : len(done) + size]
            seconds = seconds_of(len(part), self._limit, self._patience) if worker.asks.batch else self._patience
            detail = f"judge timed out after {seconds:g} s"
            try:
                worker.send(dump_cases(part, self.asks).encode() + b"\n", time.monotonic() + seconds)
                for _ in part:
                    self._check_open()
                    done.append(load_verdict(worker.line(time.monotonic() + seconds)))
                continue
            except TimeoutError:
                pass
            except EOFError:
                ending = worker.ending()
                used_up = f"judge timed out after {self._limit:g} s of processor time"
                detail = f"judge crashed: {ending}" if ending else used_up
            if worker.asks.batch and len(part) > 1:
                size = 1
            else:
                done.append(Verdict(self._failed_reward, False, detail, judge_failed=True))
            self._replace(slot)
        return done

    def _worker(self, slot: int) -> _Worker:
        try:
            self._workers[slot].wait_until_ready()
        except ConfigError as error:
            self._check_open()
            if not self.replaced:
                raise
            raise ActorError(f"a judging worker died and cannot be restarted: {error}") from None
        return self._workers[slot]

    def _check_open(self) -> None:
        if self._closed:  # never return fewer verdicts than cases
            raise ActorError("the judges were closed during a call of judge")

    def _replace(self, slot: int) -> None:
        self._check_open()
        self._workers[slot].kill()
        self._workers[slot] = _Worker(self._arguments)
        if self._closed:  # `close` ran in between and did not see the new worker
            self._workers[slot].stop()
        self.replaced += 1

    def close(self) -> None:
        """End all workers at once, also during a call of `judge` whose caller was interrupted."""
        self._closed = True
        for worker in self._workers:
            worker.stop()
        self._threads.shutdown(wait=True)
        for worker in self._workers:
            worker.kill()
