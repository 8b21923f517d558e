"""The two sides that `bench.learner` compares: the learner with one rank, and the bare loop over the same rows."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import torch

from bench.learner.bare_loop import BareLoop, PaddedBatch, padded_batches
from bench.learner.memory import memory_now
from bench.models import Shape, build_model
from core.config import AlgorithmConfig, Device, LearnerConfig
from core.records import Judged, Scored
from learner.distributed.ranks import rank_environment
from learner.group import LearnerGroup
from learner.packing.batch import row_of

MINIBATCHES = 2


@dataclass(frozen=True, slots=True)
class Work:
    """A model, its training data and settings."""

    shape: Shape
    judged: list[Judged]
    budget: int  # tokens of a micro-batch
    threads: int
    bare_budget: int  # of the bare loop, padding included
    device: Device = "cpu"
    zero_stage: int = 0


@dataclass(frozen=True, slots=True)
class Sides:
    """Both sides after one pass of each kind, so that threads, kernels and optimizer states exist."""

    group: LearnerGroup
    rank: Any  # the Ray actor of the group's one rank
    bare: Any  # the Ray actor of the `BareLoop`
    parameters: int  # of the policy
    idle: tuple[float, float]  # MiB of rank and bare loop before their first update
    judged: list[Judged]
    scored: list[Scored]
    batches: list[PaddedBatch]  # that the bare loop scores
    steps: list[list[PaddedBatch]]  # that it trains on, per optimizer step

    @property
    def tokens(self) -> int:
        """Tokens of all sequences, context included."""
        return sum(len(item.trajectory.sequence_ids) for item in self.judged)

    def score_bare(self) -> float:
        """Score all rows with the bare loop. Returns its seconds."""
        seconds: float = ray.get(self.bare.score.remote(self.batches))
        return seconds

    def update_bare(self) -> float:
        """Take all optimizer steps of the bare loop. Returns its seconds."""
        seconds: float = ray.get(self.bare.update.remote(self.steps))
        return seconds


@contextmanager
def started(work: Work) -> Iterator[Sides]:
    """Start and warm up both sides. Ray must be connected. Each side takes half of a GPU."""
    cuda = work.device == "cuda"
    dtype = "bfloat16" if cuda else "float32"
    rows = [row_of(item.trajectory) for item in work.judged]
    with tempfile.TemporaryDirectory() as folder:
        model = build_model(Path(folder), work.shape, getattr(torch, dtype))
        group = LearnerGroup(
            folder,
            LearnerConfig(
                micro_batch_tokens=work.budget,
                minibatches=MINIBATCHES,
                threads=work.threads,
                policy_lr=1e-6,
                zero_stage=work.zero_stage,
                gradient_checkpointing=cuda,
            ),
            AlgorithmConfig(),
            dtype=dtype,
            device=work.device,
            temperature=1.0,
            longest=1,
            total_steps=100,
            seed=0,
            gpus=0.5,
        )
        environment = {"env_vars": rank_environment(work.device, work.threads)}
        actor = ray.remote(BareLoop).options(runtime_env=environment, num_cpus=0, num_gpus=0.5 * cuda)
        bare = actor.remote(folder, work.device, dtype, recompute=cuda, zero_stage=work.zero_stage)
        try:
            rank = ray.get_actor("learner-rank-0")
            batches = padded_batches(rows, work.bare_budget)
            size = -(-len(rows) // MINIBATCHES)
            steps = [padded_batches(rows[i : i + size], work.bare_budget) for i in range(0, len(rows), size)]
            scored = group.score(work.judged)
            ray.get(bare.score.remote(batches))
            idle = memory_now(rank), memory_now(bare)
            group.update(scored)
            ray.get(bare.update.remote(steps))
            parameters = int(model.num_parameters())
            yield Sides(group, rank, bare, parameters, idle, work.judged, scored, batches, steps)
        finally:
            group.close()
            ray.kill(bare)
