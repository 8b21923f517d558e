"""One place in the pool: the Ray actor that fills it now, the call it is busy with, and how it ends.

Used by `actors/pool.py` alone. Invariant: a slot has at most one call under way, and that call has a deadline.
"""

import logging
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from actors.actor import Process, RolloutActor
from actors.engine import environment
from core.config import Device, RolloutConfig
from core.errors import ActorError, RetrospectError

NAME_TRIES, NAME_PAUSE = 300, 0.1
"""How often Ray is asked for the name of a killed actor before it is taken for that of another pool, and the seconds in between:
a number of answers and not a time, which a machine that stands still for a while would use up."""
START_SECONDS = 600.0
"""How long a process may take to begin, and then an engine to load its model; large ones come from slow disks."""
EXIT_SECONDS = 1.0
"""How long a process may take to end when Ray asks it to: one that is stopped would never."""
LOG_LINES, LOG_BYTES, LOG_SECONDS = 3, 4096, 10.0
"""How much of the end of an actor's log goes into the line about its end, and how long another node may take to send it."""
DIED = "its process died"
SLOW = 0.25
"""Share of the deadline after which an actor that has not answered is named."""

logger = logging.getLogger("retrospect.actors")

Accept = Callable[[Any], None]
"""What is done with the answer of a call."""


@dataclass(frozen=True, slots=True)
class EngineRecipe:
    """All that is needed to start an engine, the first time and after every death."""

    model_path: str
    config: RolloutConfig
    dtype: str
    device: Device
    seed: int
    cpus: float

    def create(self, name: str) -> Any:
        """A new actor process, without its engine yet. Raises ValueError while the name is taken."""
        cuda = self.device == "cuda"
        options = ray.remote(RolloutActor).options(
            name=name,
            num_cpus=self.cpus,
            num_gpus=self.config.tensor_parallel * self.config.gpus if cuda else 0,
            runtime_env={"env_vars": environment(self.device, self.config.threads)},
            max_restarts=0,  # the pool restarts: it alone knows the current weights and what was in flight
            max_task_retries=0,
        )
        return options.remote(name)

    def start(self, actor: Any) -> Any:
        """Reference to the `Ready` of an actor that loads the model."""
        return actor.start.remote(self.model_path, self.config, self.dtype, self.device, self.seed)


@dataclass(frozen=True, slots=True)
class Duty:
    """A call that an engine must answer before it generates on."""

    call: Callable[[Any], Any]
    accept: Accept
    loads: bool = False  # whether it brings the current weights


@dataclass(frozen=True, slots=True)
class Asked:
    """A call that an actor has been given."""

    call: Any  # the object reference of its answer
    accept: Accept  # what is done with the answer
    seconds: float  # that it may take once it is under way
    generating: bool  # whether it is a turn
    samples: int  # new ones that it brings


class Slot:
    """Place number `index`, with an actor of the name rollout-`index`.

    A guest's place is filled when the cluster has room for it (a waiting actor is what makes Ray's autoscaler add a node) and
    may be empty; the others must be filled. Which slots are guests may change: see `regard`.
    """

    def __init__(self, index: int, recipe: EngineRecipe, guest: bool = False) -> None:
        self.index = index
        self.name = f"rollout-{index}"
        self.guest = guest
        self.leaving = False  # gets no more work; ends when it has none
        self.serving = False  # its engine is loaded
        self.call: Any = None  # the object reference of the call under way
        self.accept: Accept = lambda _: None  # what is done with its answer
        self.generating = False  # whether that call is a turn
        self.brought = 0  # samples that it has brought to the engine
        self.queued: Asked | None = None  # the call that the actor carries out next
        self.failures = 0  # processes in a row that have ended before they could serve
        self.acknowledged: tuple[int, str] | None = None  # version and digest that it said last
        self.duties: deque[Duty] = deque()
        self.patience = 0.0  # seconds that the call under way was given
        self.begun = 0.0  # when it began
        self.slow = False  # whether it has been called slow
        self._recipe = recipe
        self._actor: Any = None
        self.process: Process | None = None  # where it runs, as soon as it does

    def launch(self, accept: Accept) -> None:
        """Create a fresh actor; the call under way is for its `Process`."""
        self.process = None
        self._actor = self._named_actor()
        self.begin(lambda actor: actor.process.remote(), self._placing(), accept)

    def regard(self, guest: bool) -> None:
        """As a guest from now on, or as one that must be there; one that waits for a place may do so for as long as its like."""
        changed, self.guest = guest != self.guest, guest
        if changed and self.call is not None and self.process is None:
            self.begun, self.patience = time.monotonic(), self._placing()

    def _placing(self) -> float:
        """Seconds that the cluster may take to find a place for it."""
        return float("inf") if self.guest else START_SECONDS

    def load(self, process: Process, accept: Accept) -> None:
        """There is a process: let it load the model; the call under way is for its `Ready`."""
        self.process = process
        self.begin(self._recipe.start, START_SECONDS, accept)

    def begin(
        self, call: Callable[[Any], Any], seconds: float, accept: Accept, generating: bool = False, samples: int = 0
    ) -> None:
        """Give the actor a call that may take `seconds`; beside the one under way it may have one, which follows at once."""
        self.queued = Asked(call(self._actor), accept, seconds, generating, samples)
        self.proceed()

    def proceed(self) -> None:
        """What was queued is under way once the call before it has been answered."""
        if self.call is None and self.queued is not None:
            asked, self.queued = self.queued, None
            self.call, self.accept, self.generating = asked.call, asked.accept, asked.generating
            self.patience, self.begun, self.slow, self.brought = asked.seconds, time.monotonic(), False, asked.samples

    def free(self) -> bool:
        """Whether its engine may be given a call: it has none, or just a turn."""
        return self.serving and self.queued is None and (self.call is None or self.generating)

    @property
    def busy(self) -> bool:
        """Whether it has anything to do."""
        return self.call is not None or self.queued is not None or bool(self.duties)

    def left(self) -> float:
        """Seconds that the call under way may still take."""
        return self.begun + self.patience - time.monotonic()

    def answer(self) -> Any:
        """The result of a call that is done, or the exception that it raised (one of ours as itself)."""
        reference, self.call = self.call, None
        try:
            return ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            return error.cause if isinstance(error.cause, RetrospectError) else error
        except ray.exceptions.RayError as error:
            return error

    def kill(self) -> None:
        """End the process, also one that is stopped and deaf to Ray, and forget the calls."""
        self.call = self.queued = None
        self.serving = False
        self.duties.clear()  # the successor gets the current weights by itself
        if self._actor is None:
            return
        ray.kill(self._actor, no_restart=True)
        if self.process is not None and self._here():
            _see_off(self.process.pid)
        self._actor = None

    def log(self) -> str:
        """The last lines of the actor's log in one, or where it is; empty when there is none."""
        if self.process is None:
            return ""
        if self._here():
            lines = _tail(self.process.log)
        else:
            try:
                lines = _tail_there(self.process)
            except (ray.exceptions.RayError, ValueError):  # with the node, its log is gone
                return f"its log: {self.process.log} on node {self.process.node[:12]}"
        return f"its log ends: {' | '.join(lines)}" if lines else ""

    @property
    def gone(self) -> bool:
        """Whether its process, on this node, has ended (of one on another node that is not known)."""
        return self.process is not None and self._here() and not _is_worker(self.process.pid)

    def _here(self) -> bool:
        """Whether the process runs on this node."""
        return self.process is not None and self.process.node == ray.get_runtime_context().get_node_id()

    def _named_actor(self) -> Any:
        """Launch under the slot's name, which Ray may still be freeing from the predecessor."""
        taken: ValueError | None = None
        for _ in range(NAME_TRIES):
            try:
                return self._recipe.create(self.name)
            except ValueError as error:
                taken = error
            time.sleep(NAME_PAUSE)
        raise ActorError(
            f"{self.name}: an actor of this name is already running in this Ray namespace; "
            f"close the other pool or use another namespace"
        ) from taken


def describe(error: BaseException) -> str:
    """The cause of a failed call in one line."""
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
    """Whether a call failed because the process that had published the weights, or its node, is gone."""
    cause = error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
    lost, late = ray.exceptions.ObjectLostError, ray.exceptions.ObjectFetchTimedOutError
    return isinstance(cause, lost) and not isinstance(cause, late)


def node_died(error: BaseException) -> bool:
    """Whether Ray says that an actor was lost with its node (that knows it only some seconds later)."""
    return isinstance(error, ray.exceptions.RayActorError) and "node has died" in str(error)


def nodes_alive() -> set[str]:
    """Ids of the nodes that the cluster believes to be there."""
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}


def rank(slots: Sequence[Slot], needed: int) -> None:
    """Those that serve, or else have a place, are the `needed` engines that must be there; the others are guests.

    Else a guest that has come to the place of a lost engine would keep it while the run ends for want of that engine.
    """
    if not any(slot.guest for slot in slots):
        return
    for place, slot in enumerate(sorted(slots, key=lambda slot: (not slot.serving, slot.process is None))):
        slot.regard(guest=place >= needed)


def answers(busy: Sequence[Slot], seconds: float) -> Iterator[tuple[Slot, Any]]:
    """Wait up to `seconds` for the next answer of the busy slots: (slot, result or exception). One past its deadline is hung."""
    if not busy:
        return
    patience = max(0.0, min(seconds, *(slot.left() for slot in busy)))
    calls = [slot.call for slot in busy]
    ray.wait(calls, num_returns=1, timeout=patience)
    done, _ = ray.wait(calls, num_returns=len(calls), timeout=0)  # all that are there, not just the first
    arrived = set(done)
    for slot in busy:
        if slot.call in arrived:
            yield slot, slot.answer()
        elif slot.left() <= 0:
            yield slot, TimeoutError(f"it hangs: no answer within {slot.patience:g} s")
        elif slot.serving and not slot.slow and slot.left() < (1 - SLOW) * slot.patience:
            slot.slow = True
            logger.warning("%s is slow: no answer within %g s%s", slot.name, SLOW * slot.patience, _also(slot.log()))


def explain(slot: Slot, error: BaseException) -> str:
    """What has happened to an actor, with the end of its log, in one line.

    Ray may find an actor unreachable before it has noticed, on a busy machine seconds later, that its process is gone.
    """
    gone = isinstance(error, ray.exceptions.ActorUnavailableError) and slot.gone
    return (DIED if gone else describe(error)) + _also(slot.log())


def _also(text: str) -> str:
    return f"; {text}" if text else ""


def _tail_there(process: Process) -> list[str]:
    """The end of the log of a process on another node, read by a task there. Raises what Ray raises when that cannot run."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = NodeAffinitySchedulingStrategy(process.node, soft=False)
    task = ray.remote(_tail).options(num_cpus=0, scheduling_strategy=there, max_retries=0)
    lines: list[str] = ray.get(task.remote(process.log), timeout=LOG_SECONDS)
    return lines


def _tail(name: str) -> list[str]:
    """The last few lines of a file that are not empty, cut to a readable length; none when it cannot be read."""
    path = Path(name)
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LOG_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return [line.strip()[:200] for line in text.splitlines() if line.strip()][-LOG_LINES:]


def _see_off(pid: int) -> None:
    """Wait a moment for a process that Ray was told to end, then kill it. (Ray calls one that we kill first a crash, in front of
    the user.)
    """
    end = time.monotonic() + EXIT_SECONDS
    while _is_worker(pid):
        if time.monotonic() > end:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            return
        time.sleep(0.01)


def _is_worker(pid: int) -> bool:
    """Whether `pid` still is a Ray worker: a number may have been given to another process since."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return b"ray::" in file.read()
    except OSError:
        return False
