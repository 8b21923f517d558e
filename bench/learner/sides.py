"""The two sides that `bench.learner` compares: the learner with one rank, and the bare loop over the same micro-batches."""

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch

from bench.learner.bare_loop import BareLoop
from bench.learner.memory import memory_now
from bench.models import Shape, build_model
from core.config import AlgorithmConfig, Device, LearnerConfig
from core.records import Finish, Judged, Scored, Start, Trajectory, Verdict
from learner.distributed.actor_critic import StepPlan
from learner.distributed.ranks import rank_environment
from learner.distributed.worker import RankWorker
from learner.group import LearnerGroup
from learner.packing.batch import MicroBatch

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "data"
DATA = Path(os.environ.get("RETROSPECT_DATA", SHARED if SHARED.is_dir() else ROOT / "tests" / "data"))


@dataclass(frozen=True, slots=True)
class Work:
    """A model, its training data and settings."""

    shape: Shape
    trajectories: int
    budget: int  # tokens of a micro-batch
    threads: int
    length: int | None = None  # tokens of every trajectory; None: the lengths of GSM8K
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
    batches: list[MicroBatch]  # the batches that the rank scores
    steps: list[StepPlan]  # the batches that the rank trains on

    @property
    def tokens(self) -> int:
        """Tokens of all sequences, context included."""
        return sum(len(item.trajectory.sequence_ids) for item in self.judged)


@contextmanager
def started(work: Work) -> Iterator[Sides]:
    """Start and warm up both sides. Ray must be connected. Each side takes half of a GPU."""
    cuda = work.device == "cuda"
    dtype = "bfloat16" if cuda else "float32"
    judged = trajectories(work.trajectories, work.shape.vocabulary, work.length)
    with tempfile.TemporaryDirectory() as folder:
        model = build_model(Path(folder), work.shape, getattr(torch, dtype))
        group = LearnerGroup(
            folder,
            LearnerConfig(
                micro_batch_tokens=work.budget,
                minibatches=2,
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
            sent = record_calls(group)
            scored = group.score(judged)
            batches = sent[RankWorker.score]
            ray.get(bare.score.remote(batches))
            idle = memory_now(rank), memory_now(bare)
            group.update(scored)
            steps = sent[RankWorker.update]
            ray.get(bare.update.remote(steps))
            parameters = int(model.num_parameters())
            yield Sides(group, rank, bare, parameters, idle, judged, scored, batches, steps)
        finally:
            group.close()
            ray.kill(bare)


def record_calls(group: LearnerGroup) -> dict[Any, Any]:
    """Record rank 0's first argument in the last call of each `RankWorker` method from now on: {method: argument}."""
    begin, sent = group._ranks.begin, {}

    def _begin(method: Callable[..., Any], *args: Any) -> Callable[[], list[Any]]:
        if args:
            sent[method] = args[0][0]
        return begin(method, *args)

    group._ranks.begin = _begin  # type: ignore[method-assign]
    return sent


def trajectories(count: int, vocabulary: int, length: int | None) -> list[Judged]:
    """Random tokens; every fourth trajectory is replayed from the middle of its solution.

    Prompts and solutions have GSM8K's lengths (characters / 3), or a quarter and three quarters of `length`.
    """
    rng = np.random.default_rng(0)
    with (DATA / "gsm8k" / "train.jsonl").open(encoding="utf-8") as lines:
        problems = [json.loads(line) for line in islice(lines, count)]
    judged = []
    for i, problem in enumerate(islice(cycle(problems), count)):
        prompt, response = len(problem["question"]) // 3, max(2, len(problem["answer"]) // 3)
        if length:
            prompt, response = length // 4, length - length // 4
        prefix = response // 2 if i % 4 == 3 else 0
        ids = rng.integers(0, vocabulary, prompt + response).astype(np.int32)
        start = Start(f"s{i}", f"p{i}", ids[:prompt], ids[prompt : prompt + prefix], 1, i, i if prefix else None)
        tokens = ids[prompt + prefix :]
        logprobs = np.full(len(tokens), -np.log(vocabulary), dtype=np.float32)
        trajectory = Trajectory(start, 0, tokens, logprobs, np.zeros(len(tokens), dtype=np.int32), Finish.STOP)
        judged.append(Judged(trajectory, Verdict(float(i % 2), bool(i % 2))))
    return judged
