"""Calls to all ranks of the learner. Invariant: a call returns a result from every rank within the deadline, or ends
the group with a `LearnerError` that names the rank (or its own `RetrospectError`): the others could only hang."""

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import ray

from core.config import Device, LearnerConfig
from core.errors import CheckpointError, LearnerError, RetrospectError
from core.startup import RANK, in_group
from core.weights import copied
from learner.distributed.worker import RankWorker

R = TypeVar("R")
GRACE_SECONDS = 5.0
"""Seconds to wait for more failures after the first: the death of a rank says more than its peers' lost connections."""


class Ranks:
    """The Ray actors "learner-rank-I", and calls of methods of `RankWorker` on them."""

    def __init__(self, config: LearnerConfig, *, device: Device, cpus: float, gpus: float) -> None:
        self._deadline = config.deadline
        taken = set(ray.util.list_named_actors())
        actor = ray.remote(RankWorker)
        self._actors = [
            actor.options(
                name=_free_name(f"learner-rank-{rank}", taken),
                num_cpus=cpus,
                num_gpus=gpus,
                runtime_env={"env_vars": rank_environment(device, config.threads)},
                **in_group(RANK, rank),
            ).remote(ray.put)
            for rank in range(config.ranks)
        ]

    def __len__(self) -> int:
        return len(self._actors)

    def begin(self, method: Callable[..., R], *args: Sequence[Any]) -> Callable[[], list[R]]:
        """Start a call; the returned function waits for the results. Ranks work on calls in the order of their arrival."""
        if not self._actors:  # without ranks a save would "succeed" and write an empty checkpoint
            raise LearnerError(
                f"learner: {method.__name__} after its ranks have ended; resume from the last checkpoint"
            )
        asked = {
            getattr(actor, method.__name__).remote(*(arg[rank] for arg in args)): rank
            for rank, actor in enumerate(self._actors)
        }
        return lambda: self._gather(asked, method.__name__)

    def call(self, method: Callable[..., R], *args: Sequence[Any]) -> list[R]:
        """Call on every rank, `args[k][rank]` being argument k. Raises LearnerError; then the group has ended."""
        return self.begin(method, *args)()

    def call_same(self, method: Callable[..., R], *args: Any) -> list[R]:
        """Call on every rank with the same arguments."""
        return self.call(method, *([arg] * len(self) for arg in args))

    def join(self, device: Device, deadline: float) -> None:
        """Bring the ranks into one process group. Raises LearnerError."""
        count, address = len(self), self.call_same(RankWorker.listen, deadline)[0]
        same = [[value] * count for value in (count, address, device, deadline)]
        self.call(RankWorker.join, range(count), *same)

    def close(self) -> None:
        """End the ranks. Idempotent."""
        for actor in self._actors:
            with contextlib.suppress(Exception):
                ray.kill(actor)
        self._actors = []

    def _gather(self, asked: dict[Any, int], method: str) -> list[Any]:
        results: dict[int, Any] = {}
        failures: dict[int, Exception] = {}
        end = time.monotonic() + self._deadline
        while asked:
            ready, _ = ray.wait(list(asked), timeout=max(0.0, end - time.monotonic()))
            if not ready:  # decides instead of the clock: results that came while this process was suspended count
                break
            for reference in ready:
                rank = asked.pop(reference)
                try:
                    results[rank] = ray.get(reference)
                except Exception as error:
                    end = min(end, time.monotonic() + GRACE_SECONDS)
                    failures[rank] = error
        if failures:
            self.close()
            raise _explain(failures, method)
        if asked:
            self.close()
            late = ", ".join(f"learner-rank-{rank}" for rank in asked.values())
            raise LearnerError(
                f"{late}: no answer to {method} within {self._deadline:.0f} s; raise learner.deadline or resume the run"
            )
        return [results[rank] for rank in sorted(results)]


def _explain(failures: dict[int, Exception], method: str) -> RetrospectError:
    """Choose the error to report: a rank's own RetrospectError, else a death, else what the lowest rank raised. A death
    comes before a CheckpointError, because a rank that loses its connection to a dead one raises that."""
    dead = {rank: error for rank, error in failures.items() if isinstance(error, ray.exceptions.RayActorError)}
    for error in failures.values():
        cause = getattr(error, "cause", None)
        if isinstance(cause, RetrospectError) and not (dead and isinstance(cause, CheckpointError)):
            return cause
    rank, error = min((dead or failures).items())
    what = "died" if dead else "failed"
    text = str(getattr(error, "cause", None) or error).strip().replace("\n", " ")
    kind = type(getattr(error, "cause", None) or error).__name__
    return LearnerError(f"learner-rank-{rank} {what} during {method}: {kind}: {text}; resume from the last checkpoint")


class LocalRanks(Ranks):
    """One rank in this process (`launch.py train --local`), for debuggers; with the variables of `rank_environment`."""

    def __init__(self) -> None:
        self._worker = RankWorker(publish=copied)

    def __len__(self) -> int:
        return 1

    def begin(self, method: Callable[..., R], *args: Sequence[Any]) -> Callable[[], list[R]]:
        """Make the call at once: nothing runs in parallel within one process."""
        results = [method(self._worker, *(arg[0] for arg in args))]
        return lambda: results

    def close(self) -> None:
        """Nothing to do: the next rank of this process takes its place."""


def _free_name(name: str, taken: set[str]) -> str:
    """`name`, or `name-2`, ... if another run in this namespace has it."""
    if name not in taken:
        return name
    return next(f"{name}-{k}" for k in range(2, len(taken) + 3) if f"{name}-{k}" not in taken)


def rank_environment(device: Device, threads: int) -> dict[str, str]:
    """Environment of a rank's process: threads and accelerator."""
    environment = {"OMP_NUM_THREADS": str(threads), "DS_ACCELERATOR": device}
    return environment | ({"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {})
