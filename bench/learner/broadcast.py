"""Broadcasts of a learner's weights to two vLLM engines against plain copies of the same bytes."""

import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from statistics import median

import torch

from actors.handle import EngineSpec
from actors.pool import RolloutPool
from bench.learner.sides import one_rank
from bench.models import Shape, build_model
from bench.report import Check, check
from core.config import ResolvedLearner, ResolvedRollout

LARGE = Shape(2048, hidden=1024, intermediate=4096, layers=15, heads=16, key_value_heads=16)  # 254 M parameters: 1 GB
SMALL = Shape(2048, hidden=512, intermediate=2048, layers=8, heads=8, key_value_heads=8)  # 35 M parameters: 140 MB
WARM = 2  # rounds that are not measured: the system allocates pages for the object store and the engines in them
ENGINES = ResolvedRollout(
    actors=2, max_prompt_tokens=64, max_response_tokens=64, max_running=8, kv_cache_gib=0.1, threads=1
)


def broadcast_checks(quick: bool, threads: int) -> list[Check]:
    """Alternate broadcasts from one rank with two copies by the driver. Ray must be connected."""
    took, copied = [], []
    numbers = {"micro_batch_tokens": 4096, "policy_lr": 1e-5, "value_lr": 1e-5}
    learner = ResolvedLearner.model_validate({"value_model": "shared", "threads": threads, **numbers})
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as starter:
        size = int(build_model(Path(folder), SMALL if quick else LARGE).num_parameters())
        # both spend most of their time importing
        starting = starter.submit(RolloutPool, EngineSpec(folder, ENGINES, "float32", "cpu", seed=0, cpus=0.0))
        with (
            closing(one_rank(folder, learner)) as group,
            closing(starting.result()) as pool,
        ):
            source, target = torch.ones(size), torch.zeros(size)
            for _ in range(WARM + (3 if quick else 5)):
                begun = time.perf_counter()
                group.broadcast(pool)
                took.append(time.perf_counter() - begun)
                begun = time.perf_counter()
                for _ in range(ENGINES.actors):
                    target.copy_(source)
                copied.append(time.perf_counter() - begun)
    share = median(copy / whole for copy, whole in zip(copied[WARM:], took[WARM:], strict=True))
    name = f"broadcast of {4 * size / 2**20:.0f} MiB to two engines"
    return [
        check(name, median(took[WARM:]), "s", baseline=median(copied[WARM:])),
        check("broadcast against memcpy to both", share, "x", ">=", 0.5),
    ]
