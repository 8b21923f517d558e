"""The two sides that `bench.learner` compares: the learner with one rank, and the bare loop over the same rows."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import ray
import torch

from bench.learner.bare_loop import BareLoop, padded_batches
from bench.learner.memory import memory_now
from bench.models import Shape, build_model
from core.config import AlgorithmConfig, Device, ResolvedLearner
from core.records import Rollout
from core.weights import Sender
from learner.credit import Algorithm, credit
from learner.distributed.ranks import rank_environment
from learner.group import LearnerGroup, LearnerSpec
from learner.packing.micro_batches import row_of
from replay.boundaries import no_boundaries

PPO = Algorithm(AlgorithmConfig(kl_coefficient=0.0, positive_coefficient=0.0), longest=1, boundaries=no_boundaries)
"""The bare loop has PPO's losses alone."""


@dataclass(frozen=True, slots=True)
class Work:
    """A model, its training data and settings."""

    model: Shape | Path  # a random model of this shape, or the folder of a pretrained one
    judged: list[Rollout]
    threads: int
    budget: int = 8192  # tokens of a micro-batch
    bare_budget: int = 2048  # of the bare loop, padding included
    device: Device = "cpu"
    zero_stage: int = 0
    dtype: str = "float32"
    minibatches: int = 2
    value_model: Literal["separate", "shared"] = "separate"  # with a shared trunk the bare loop has no critic


@dataclass(frozen=True, slots=True)
class Side:
    """The learner or the bare loop after one pass of each kind, so that threads, kernels and optimizer states exist."""

    actor: Any  # its Ray actor
    idle: float  # MiB before its first update
    score: Callable[[], float]  # scores all rows and returns the seconds
    update: Callable[[], float]  # takes all optimizer steps and returns the seconds


def warm(actor: Any, score: Callable[[], float], update: Callable[[], float]) -> Side:
    """A side after its first passes."""
    score()
    idle = memory_now(actor)
    update()
    return Side(actor, idle, score, update)


def timed(work: Callable[[], object]) -> float:
    """Seconds of some work."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def one_rank(
    model: str,
    config: ResolvedLearner,
    dtype: str = "float32",
    device: Device = "cpu",
    sender: type[Sender] | None = None,
) -> LearnerGroup:
    """A learner with one rank. Ray must be connected."""
    spec = LearnerSpec(
        model,
        config,
        PPO.config,
        temperature=1.0,
        dtype=dtype,
        device=device,
        total_steps=100,
        seed=0,
        cpus=0.0,
        gpus=0.5 * (device == "cuda"),
        sender=sender,
        pairs=sender is not None,
    )
    return LearnerGroup(spec)


@contextmanager
def started(work: Work) -> Iterator[tuple[Side, Side]]:
    """Start and warm up the learner and the bare loop. Ray must be connected. Each side takes half of a GPU."""
    cuda = work.device == "cuda"
    config = ResolvedLearner(
        micro_batch_tokens=work.budget,
        minibatches=work.minibatches,
        threads=work.threads,
        policy_lr=1e-6,
        value_lr=1e-6,
        zero_stage=work.zero_stage,
        value_model=work.value_model,
        gradient_checkpointing=cuda,
    )
    rows = [row_of(item) for item in work.judged]
    size = -(-len(rows) // work.minibatches)
    batches = padded_batches(rows, work.bare_budget)
    steps = [padded_batches(rows[i : i + size], work.bare_budget) for i in range(0, len(rows), size)]
    environment = {"env_vars": rank_environment(work.device, work.threads)}
    actor = ray.remote(BareLoop).options(runtime_env=environment, num_cpus=0, num_gpus=0.5 * cuda)
    with tempfile.TemporaryDirectory() as folder:
        path = folder if isinstance(work.model, Shape) else str(work.model)
        if isinstance(work.model, Shape):
            build_model(Path(folder), work.model, getattr(torch, work.dtype))
        with closing(one_rank(path, config, work.dtype, work.device)) as group:
            loop = actor.remote(path, work.device, work.dtype, recompute=cuda, critic=work.value_model == "separate")
            scored = group.score(work.judged)
            try:
                yield (
                    warm(
                        ray.get_actor("learner-rank-0"),
                        lambda: timed(lambda: group.score(work.judged)),
                        lambda: timed(lambda: group.update(credit(scored, PPO, group.state))),
                    ),
                    warm(loop, lambda: ray.get(loop.score.remote(batches)), lambda: ray.get(loop.update.remote(steps))),
                )
            finally:
                ray.kill(loop)
