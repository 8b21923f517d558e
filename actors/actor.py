"""The Ray actor around one engine. Invariant: one thread serves one call at a time: weights change between steps."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from actors.engines import build_engine
from actors.jobs import Continuation, Job
from core.config import Device, ResolvedRollout
from core.records import FloatArray, IntArray
from core.transport import synchronise
from core.weights import Acknowledgement, Bucket, Member, Weights, resolved

DIRECT_SECONDS = 60.0
"""Longest wait in a direct transfer; short beside `pool.ANSWER_SECONDS`, so that the other copy can be read."""


@dataclass(frozen=True, slots=True)
class Process:
    """Where an actor runs."""

    pid: int
    node: str  # Ray node id, in hexadecimal
    log: str  # file on that node that its standard error goes to


@dataclass(frozen=True, slots=True)
class StepResult:
    """The samples that an engine has finished, and how many it still has."""

    finished: list[Continuation]
    unfinished: int  # samples in flight
    waited: float = 0.0  # seconds of the call in which environments had to answer


class RolloutActor:
    """One engine in its own process. `start` builds it, so that the caller gets its errors unwrapped."""

    def __init__(self, name: str, index: int) -> None:
        """`index`: its number in the pool; in a pair its learner rank's."""
        self._name, self._index = name, index

    def __repr__(self) -> str:
        """The name that Ray's dashboard and log lines show."""
        return self._name

    def process(self) -> Process:
        """Where this actor runs. It answers as soon as the process exists, long before the engine is loaded."""
        import ray

        node = ray.get_runtime_context().get_node_id()
        return Process(os.getpid(), node, os.path.realpath("/proc/self/fd/2"))

    def start(self, model_path: str, config: ResolvedRollout, dtype: str, device: Device, seed: int) -> None:
        """Build the engine, with the weights of the model directory. Raises ModelError."""
        self._device = device
        self._engine = build_engine(model_path, config, dtype=dtype, device=device, seed=seed, name=self._name)

    def generate(self, jobs: list[Job], seconds: float, refill: int) -> StepResult:
        """Queue `jobs` and step for about `seconds`, or until only `refill` samples are in flight."""
        self._engine.add(jobs)
        waited = self._engine.waited
        finished = self._engine.run(seconds, refill)
        return StepResult(finished, self._engine.unfinished, self._engine.waited - waited)

    def abort(self) -> None:
        """Drop everything that is in flight; see `Engine.abort`."""
        self._engine.abort()

    def load_weights(self, weights: Weights, members: Sequence[Process] = ()) -> Acknowledgement:
        """Swap the weights. `members`: the actors of a direct transfer, if there is one. If it fails, the object
        store's copy is read and the acknowledgement says why: a broadcast must not depend on other engines' health."""
        process = self.process()
        if weights.direct is None or process not in members:
            return self._engine.load_weights(self._stored(weights))
        place = list(members).index(process) + 1
        member = Member(place, len(members) + 1, self._device, DIRECT_SECONDS, self._index)
        try:
            received = replace(weights, buckets=tuple(weights.direct.receive(weights.manifest, member)), direct=None)
        except RuntimeError as error:
            fallback = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
            return replace(self._engine.load_weights(self._stored(weights)), fallback=fallback)
        acknowledgement = self._engine.load_weights(received)
        synchronise(self._device)  # the sender may free its memory once it has this answer
        return acknowledgement

    @staticmethod
    def _stored(weights: Weights) -> Weights:
        """The weights with their buckets from the object store, read in place: a node has one copy."""
        import ray

        def _fetch(bucket: Any) -> Bucket:
            return list(ray.get(bucket) if isinstance(bucket, ray.ObjectRef) else bucket)

        return resolved(replace(weights, direct=None), _fetch)

    def sequence_logprobs(self, sequences: Sequence[IntArray]) -> list[FloatArray]:
        """[sequence][T - 1] at temperature 1; see `Engine.sequence_logprobs`."""
        return self._engine.sequence_logprobs(sequences)
