"""The Ray actor around one engine: thin, so that what it does can be tested without Ray.

Created by `actors/slot.py`. Invariant: one thread serves one call at a time, so a weight swap falls between engine steps,
and a call that does not come back means that the process is dead or hung.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from actors.engines import build_engine
from actors.flat import FlatBatch, Job
from core.config import Device, RolloutConfig
from core.records import FloatArray, IntArray
from core.sampling import Sampling
from core.weights import Acknowledgement, Bucket, Weights, resolved


@dataclass(frozen=True, slots=True)
class Ready:
    """Said by an actor that can serve."""

    pid: int
    node: str  # Ray node id, in hexadecimal
    version: int


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn of stepping brought."""

    batch: FlatBatch
    unfinished: int  # samples still in flight


class RolloutActor:
    """One engine in a process of its own; `ray.remote` is applied where it is created.

    The engine is built by the first call and not by the constructor, so that its errors reach the caller as themselves.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        """The name that Ray's dashboard and log lines show."""
        return self._name

    def start(
        self,
        model_path: str,
        config: RolloutConfig,
        dtype: str,
        device: Device,
        seed: int,
        weights: Weights | None,
    ) -> Ready:
        """Build the engine, load `weights` if there are newer ones than the model directory's, report for duty."""
        import ray

        self._engine = build_engine(model_path, config, dtype=dtype, device=device, seed=seed, name=self._name)
        if weights is not None:
            self.load_weights(weights)
        return Ready(os.getpid(), ray.get_runtime_context().get_node_id(), self._engine.version)

    def turn(self, jobs: list[Job], sampling: Sampling, seconds: float, refill: int) -> Turn:
        """Take up `jobs` and step for about `seconds`, or until only `refill` samples are in flight."""
        self._engine.add(jobs, sampling)
        batch = self._engine.run(seconds, refill)
        return Turn(batch, self._engine.unfinished)

    def load_weights(self, weights: Weights) -> Acknowledgement:
        """Swap the weights; see `Engine.load_weights`."""
        import ray

        def fetch(bucket: Any) -> Bucket:
            return list(
                ray.get(bucket) if isinstance(bucket, ray.ObjectRef) else bucket
            )  # the node's copy, read in place

        return self._engine.load_weights(resolved(weights, fetch))

    def sequence_logprobs(self, sequences: Sequence[IntArray]) -> list[FloatArray]:
        """[sequence][T - 1] at temperature 1; see `Engine.sequence_logprobs`."""
        return self._engine.sequence_logprobs(sequences)
