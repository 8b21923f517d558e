"""One place in the pool: the Ray actor that fills it now, the call it is busy with, and how it ends.

Used by `actors/pool.py` alone. Invariant: a slot has at most one call under way, and that call has a deadline.
"""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray

from actors.actor import Ready, RolloutActor
from actors.engine import environment
from core.config import Device, RolloutConfig
from core.errors import ActorError, RetrospectError
from core.weights import WeightHandle

NAME_SECONDS = 30.0
"""How long Ray may take to free the name of a killed actor."""
START_SECONDS = 600.0
"""How long an engine may take to load its model; large ones come from slow disks."""


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

    def start(self, actor: Any, handle: WeightHandle | None) -> Any:
        """Reference to the `Ready` of an actor that loads the model and then the weights of `handle`."""
        return actor.start.remote(self.model_path, self.config, self.dtype, self.device, self.seed, handle)


class Slot:
    """Place number `index`, with an actor of the name rollout-`index`."""

    def __init__(self, index: int, recipe: EngineRecipe) -> None:
        self.name = f"rollout-{index}"
        self.unfinished = 0  # samples in flight, as last heard
        self.call: Any = None  # the object reference of the call under way
        self._recipe = recipe
        self._actor: Any = None
        self.patience = 0.0  # seconds that the call under way was given
        self._end = 0.0
        self._process: Ready | None = None

    def launch(self, handle: WeightHandle | None) -> None:
        """Start a fresh actor that will serve with the weights of `handle`; `call` becomes its `Ready`."""
        self._process = None
        self.unfinished = 0
        self._actor = self._named_actor()
        self.begin(lambda actor: self._recipe.start(actor, handle), START_SECONDS)

    def begin(self, call: Callable[[Any], Any], seconds: float) -> None:
        """Start a call on the actor that may take `seconds`."""
        self.call = call(self._actor)
        self.patience = seconds
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds that the call under way may still take."""
        return self._end - time.monotonic()

    def answer(self) -> Any:
        """The result of a call that is done, or the exception that it raised (one of ours as itself)."""
        reference, self.call = self.call, None
        try:
            result = ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            return error.cause if isinstance(error.cause, RetrospectError) else error
        except ray.exceptions.RayError as error:
            return error
        if isinstance(result, Ready):
            self._process = result
        return result

    def kill(self) -> None:
        """End the process, also one that is stopped and deaf to Ray, and forget the call."""
        self.call = None
        if self._actor is None:
            return
        ray.kill(self._actor, no_restart=True)
        here = self._process is not None and self._process.node == ray.get_runtime_context().get_node_id()
        if self._process is not None and here and _is_worker(self._process.pid):
            os.kill(self._process.pid, signal.SIGKILL)
        self._actor = None

    def _named_actor(self) -> Any:
        """Launch under the slot's name, which Ray may still be freeing from the predecessor."""
        end = time.monotonic() + NAME_SECONDS
        while True:
            try:
                return self._recipe.create(self.name)
            except ValueError as error:
                if time.monotonic() > end:
                    raise ActorError(
                        f"{self.name}: an actor of this name is already running in this Ray namespace; "
                        f"close the other pool or use another namespace"
                    ) from error
            time.sleep(0.1)


def describe(error: BaseException) -> str:
    """The cause of a failed call in one line."""
    if isinstance(error, ray.exceptions.RayTaskError):
        error = error.cause
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, ray.exceptions.RayActorError):
        exits = [line for line in lines if line.startswith(("Worker exit", "The actor died", "The actor is dead"))]
        return "its process died" + (f" ({' '.join(exits)[:300]})" if exits else "")
    return f"{type(error).__name__}: {lines[0][:300] if lines else ''}"


def _is_worker(pid: int) -> bool:
    """Whether `pid` still is a Ray worker: a number may have been given to another process since."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return b"ray::" in file.read()
    except OSError:
        return False
