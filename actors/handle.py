"""The driver's handle of a rollout actor. Invariant: requests are answered in order; the first has a deadline."""

import logging
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import ray

from actors.actor import Process, RolloutActor
from actors.vllm_setup import environment
from core.config import Device, ResolvedRollout
from core.errors import ActorError, RetrospectError
from core.run_directory import tail
from core.startup import ENGINE, in_group

NAME_TRIES, NAME_PAUSE = 300, 0.1
"""Tries, and seconds between them, until Ray frees a killed actor's name; then it counts as another pool's."""
START_SECONDS = 600.0
"""Deadline for a process to start, and again for its engine to load the model (large models on slow disks)."""
EXIT_SECONDS = 1.0  # how long a process may take to exit when Ray asks it to. A suspended process never does.
LOG_LINES, LOG_BYTES = 3, 4096  # how much of the end of an actor's log goes into the line about its failure
DIED = "its process died"
SLOW_SHARE = 0.25  # share of the deadline after which an actor that has not answered is reported as slow

logger = logging.getLogger("retrospect.actors")


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """The arguments to start an engine with, the first time and after every failure."""

    model_path: str
    config: ResolvedRollout
    dtype: str
    device: Device
    seed: int
    cpus: float
    gpus: float = 0.0

    def create(self, name: str, index: int) -> Any:
        """Create an actor process; `start` adds its engine. Raises ValueError while the name is taken."""
        options = ray.remote(RolloutActor).options(
            name=name,
            num_cpus=self.cpus,
            num_gpus=self.gpus,
            runtime_env={"env_vars": environment(self.device, self.config.threads)},
            max_restarts=0,  # the pool restarts: it alone knows the current weights and what was in flight
            max_task_retries=0,
            **in_group(ENGINE, index),
        )
        return options.remote(name, index)

    def start(self, actor: Any) -> Any:
        """Ask an actor to load the model; returns the object reference of its answer."""
        return actor.start.remote(self.model_path, self.config, self.dtype, self.device, self.seed)


Kind = Literal["load", "generate", "ask"]


@dataclass(eq=False, slots=True)
class Request:
    """A call that an actor has not answered yet."""

    answer: Any  # object reference
    accept: Callable[[Any], None]  # what to do with the answer
    seconds: float  # deadline, counted from `begun`
    kind: Kind
    begun: float  # when it became the first of the actor's requests
    slow: bool = False  # whether it has been reported as slow


class ActorHandle:
    """The rollout actor named rollout-`index`. Its process may be replaced."""

    def __init__(self, index: int, spec: EngineSpec) -> None:
        self.index = index
        self.name = f"rollout-{index}"
        self.serving = False  # its engine is loaded
        self.process: Process | None = None  # the current or last one
        self.acknowledged: tuple[int, str] | None = None  # version and digest of its weights
        self.requests: deque[Request] = deque()
        self._spec = spec
        self._actor: Any = None

    def launch(self, ready: Callable[[Any], None]) -> None:
        """Create a process and ask it to load the model; `ready` is called when it can serve."""

        def _placed(process: Process) -> None:
            self.process = process

        self.process = self.acknowledged = None
        self._actor = self._named_actor()
        self.ask(lambda actor: actor.process.remote(), START_SECONDS, _placed)
        self.ask(self._spec.start, START_SECONDS, ready)

    def ask(
        self, call: Callable[[Any], Any], seconds: float, accept: Callable[[Any], None], kind: Kind = "ask"
    ) -> Request:
        """Send a request. The actor answers its requests in order."""
        request = Request(call(self._actor), accept, seconds, kind, begun=time.monotonic())
        self.requests.append(request)
        return request

    def answer(self) -> tuple[Request, Any]:
        """Remove the first request, which is done: (it, its result or exception; a RetrospectError unwrapped)."""
        request = self.requests.popleft()
        if self.requests:
            self.requests[0].begun = time.monotonic()
        try:
            return request, ray.get(request.answer)
        except ray.exceptions.RayTaskError as error:
            return request, error.cause if isinstance(error.cause, RetrospectError) else error
        except ray.exceptions.RayError as error:
            return request, error

    def seconds_left(self) -> float:
        """Seconds until the deadline of the first request."""
        return self.requests[0].begun + self.requests[0].seconds - time.monotonic()

    def kill(self) -> None:
        """End the process, even a suspended one that does not react to Ray, and drop its requests."""
        self.requests.clear()
        self.serving = False
        if self._actor is None:
            return
        ray.kill(self._actor, no_restart=True)
        if self.process is not None and _here(self.process):
            _await_end(self.process.pid)
        self._actor = None

    def explain(self, error: BaseException) -> str:
        """Why the actor failed, with the end of its log, in one line. Ray may report a death late as unreachable."""
        process = self.process
        unreachable = isinstance(error, ray.exceptions.ActorUnavailableError)
        dead = unreachable and process is not None and _here(process) and not _is_worker(process.pid)
        return (DIED if dead else error_text(error)) + self.log_end()

    def log_end(self) -> str:
        """The last lines of the actor's log, or its path if it is on another node; begins with a semicolon."""
        if self.process is None:
            return ""
        if not _here(self.process):
            return f"; its log: {self.process.log} on node {self.process.node[:12]}"
        with suppress(OSError):  # it is no file that can be read
            kept = [line.strip()[:200] for line in tail(Path(self.process.log), LOG_BYTES)]
            lines = [line for line in kept if line][-LOG_LINES:]
            return f"; its log ends: {' | '.join(lines)}" if lines else ""
        return ""

    def _named_actor(self) -> Any:
        """Create an actor; wait while Ray has not freed its name. Raises ActorError if another pool has it."""
        for _ in range(NAME_TRIES):
            with suppress(ValueError):
                return self._spec.create(self.name, self.index)
            time.sleep(NAME_PAUSE)
        raise ActorError(
            f"{self.name}: an actor of this name is already running in this Ray namespace; "
            f"close the other pool or use another namespace"
        )


def answers(actors: Sequence[ActorHandle], seconds: float) -> Iterator[tuple[ActorHandle, Request, Any]]:
    """Wait up to `seconds`; yields (actor, request, result or exception) that arrived, TimeoutError past a deadline."""
    busy = [actor for actor in actors if actor.requests]
    if not busy:
        return
    first = [actor.requests[0].answer for actor in busy]
    ray.wait(first, num_returns=1, timeout=max(0.0, min(seconds, *(actor.seconds_left() for actor in busy))))
    done, _ = ray.wait(first, num_returns=len(first), timeout=0)  # all that have arrived, not just the first
    arrived = set(done)
    for actor in busy:
        request = actor.requests[0]
        if request.answer in arrived:
            yield actor, *actor.answer()
        elif actor.seconds_left() <= 0:
            yield actor, request, TimeoutError(f"it hangs: no answer within {request.seconds:g} s")
        elif actor.serving and not request.slow and actor.seconds_left() < (1 - SLOW_SHARE) * request.seconds:
            request.slow = True
            limit = SLOW_SHARE * request.seconds
            logger.warning("%s is slow: no answer within %g s%s", actor.name, limit, actor.log_end())


def error_text(error: BaseException) -> str:
    """The cause of a failed request in one line."""
    if isinstance(error, ray.exceptions.RayTaskError):
        error = error.cause
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, ray.exceptions.ActorUnavailableError):
        return f"it cannot be reached ({lines[0][:300] if lines else ''})"
    if isinstance(error, ray.exceptions.RayActorError):
        exits = [line for line in lines if line.startswith(("Worker exit", "The actor died", "The actor is dead"))]
        return DIED + (f" ({' '.join(exits)[:300]})" if exits else "")
    return f"{type(error).__name__}: {lines[0][:300] if lines else ''}"


def weights_lost(error: BaseException) -> bool:
    """Whether a request failed because the process that published the weights, or its node, has died."""
    cause = error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
    lost, late = ray.exceptions.ObjectLostError, ray.exceptions.ObjectFetchTimedOutError
    return isinstance(cause, lost) and not isinstance(cause, late)


def _here(process: Process) -> bool:
    return bool(process.node == ray.get_runtime_context().get_node_id())


def _await_end(pid: int) -> None:
    """Wait EXIT_SECONDS for a process that Ray was told to end, then kill it (at once, Ray would print a crash)."""
    end = time.monotonic() + EXIT_SECONDS
    while _is_worker(pid):
        if time.monotonic() > end:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            return
        time.sleep(0.01)


def _is_worker(pid: int) -> bool:
    """Whether `pid` is still a Ray worker, and not another process that reuses the number."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return b"ray::" in file.read()
    except OSError:
        return False
