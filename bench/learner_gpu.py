"""The learner on one GPU: `python -m bench.learner --device cuda`. Called by `bench.learner`; needs no GPU to import.

Random-weight Qwen2 of 0.5 B and 1.5 B parameters in bf16, ZeRO 2 and 3 with one rank: PPO updates, then the bare loop of
`bench.bare_loop` on the same micro-batches (one after the other, for both do not fit side by side).
"""

import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import torch

from bench.bare_loop import BareLoop
from bench.learner import spied, trajectories
from bench.learner_model import Shape, build_model
from bench.report import Check, check, median
from core.config import AlgorithmConfig, LearnerConfig
from core.errors import ClusterError
from core.records import Judged
from learner.distributed.ranks import rank_environment
from learner.distributed.worker import RankWorker
from learner.group import LearnerGroup

SHAPES = {
    "0.5 B": Shape(151_936, hidden=896, intermediate=4864, layers=24, heads=14, key_value_heads=2),
    "1.5 B": Shape(151_936, hidden=1536, intermediate=8960, layers=28, heads=12, key_value_heads=2),
}
STAGES = (2, 3)
PEAKS = {"A100": 312e12, "H100": 989e12, "H200": 989e12}
"""Dense bf16 FLOP/s by the maker's data sheets; what a name does not contain has no MFU."""


@dataclass(frozen=True, slots=True)
class Timing:
    """One side of the comparison."""

    seconds: float  # of an update
    gib: float  # highest memory allocated on the GPU


def require_gpu() -> str:
    """The GPU's name. Raises ClusterError where there is none."""
    if not torch.cuda.is_available():
        raise ClusterError(
            "bench.learner --device cuda: torch sees no GPU here; leave out --device for the CPU benchmark"
        )
    return torch.cuda.get_device_name()


def compare_on_gpu(quick: bool, name: str) -> list[Check]:
    """tokens/s, MFU and memory of both sizes."""
    checks = []
    for size, shape in SHAPES.items():
        judged = trajectories(32 if quick else 256, shape.vocabulary)
        tokens = sum(len(j.trajectory.sequence_ids) for j in judged)
        with tempfile.TemporaryDirectory() as folder:
            parameters = build_model(Path(folder), shape, torch.bfloat16)
            for stage in STAGES:
                ours, plans = time_learner(folder, judged, stage)
                theirs = time_bare(folder, plans, stage)
                peak = next((peak for key, peak in PEAKS.items() if key in name), None)
                share = None if peak is None else mfu(parameters, tokens, ours.seconds, peak)
                checks += checks_of(f"{size}, ZeRO {stage}", tokens, ours, theirs, share)
    return checks


def checks_of(what: str, tokens: int, ours: Timing, theirs: Timing, share: float | None) -> list[Check]:
    """One size under one stage; `share` is the MFU, where the GPU's peak is known."""
    checks = [
        check(f"{what}: PPO update", tokens / ours.seconds, "tokens/s", baseline=tokens / theirs.seconds),
        check(f"{what}: PPO update against the bare loop", theirs.seconds / ours.seconds, "x", ">=", 0.95),
        check(f"{what}: peak memory", ours.gib, "GiB", baseline=theirs.gib),
        check(f"{what}: peak memory against the bare loop", ours.gib / theirs.gib, "x", "<=", 1.1),
    ]
    return checks if share is None else [*checks, check(f"{what}: MFU", share, "share")]


def mfu(parameters: int, tokens: int, seconds: float, peak: float) -> float:
    """Share of the peak that 6 FLOP per parameter and token make, for policy and critic (attention and scoring not counted)."""
    return 2 * 6 * parameters * tokens / seconds / peak


def time_learner(folder: str, judged: list[Judged], stage: int) -> tuple[Timing, Any]:
    """Median of three updates after one, and the plans that the ranks got."""
    config = LearnerConfig(zero_stage=stage, micro_batch_tokens=16384, minibatches=2, gradient_checkpointing=True)
    group = LearnerGroup(
        folder,
        config,
        AlgorithmConfig(),
        dtype="bfloat16",
        device="cuda",
        temperature=1.0,
        total_steps=100,
        seed=0,
    )
    given = spied(group)
    scored = group.score(judged)
    group.update(scored)
    seconds = []
    for _ in range(3):
        begin = time.perf_counter()
        group.update(scored)
        seconds.append(time.perf_counter() - begin)
    gib = ray.get(ray.get_actor("learner-rank-0").__ray_call__.remote(_peak))
    group.close()
    return Timing(median(seconds), gib), given[RankWorker.update]


def time_bare(folder: str, plans: Any, stage: int) -> Timing:
    """The same for the bare loop."""
    environment = {"env_vars": rank_environment("cuda", os.cpu_count() or 1)}
    actor = ray.remote(BareLoop).options(runtime_env=environment, num_gpus=1)
    bare = actor.remote(folder, "cuda", "bfloat16", recompute=True, zero_stage=stage)
    ray.get(bare.update.remote(plans))
    seconds = [ray.get(bare.update.remote(plans)) for _ in range(3)]
    gib = ray.get(bare.__ray_call__.remote(_peak))
    ray.kill(bare)
    return Timing(median(seconds), gib)


def _peak(_: Any) -> float:
    return torch.cuda.max_memory_allocated() / 2**30
