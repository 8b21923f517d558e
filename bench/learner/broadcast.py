"""Broadcasts of a learner's weights to vLLM engines against plain copies of the same bytes."""

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
from bench.report import Check, check, told
from core.config import Device, ResolvedLearner, ResolvedRollout
from core.transport import HandleSender, synchronise

LARGE = Shape(2048, hidden=1024, intermediate=4096, layers=15, heads=16, key_value_heads=16)  # 254 M parameters: 1 GB
SMALL = Shape(2048, hidden=512, intermediate=2048, layers=8, heads=8, key_value_heads=8)  # 35 M parameters: 140 MB
WARM = 2  # rounds that are not measured: the system allocates pages for the object store and the engines in them
ENGINES = ResolvedRollout(
    actors=2, max_prompt_tokens=64, max_response_tokens=64, max_running=8, kv_cache_gib=0.1, threads=1
)


def engines_on(device: Device) -> ResolvedRollout:
    """Two engines; on a GPU one, of a pair with the rank, and as it would be without CUDA graphs."""
    if device == "cpu":
        return ENGINES
    options = {"enforce_eager": True, "kv_cache_memory_bytes": 2**28}
    return ENGINES.model_copy(update={"actors": 1, "gpu_memory_share": 0.2, "engine_options": options})


def broadcast_checks(quick: bool, threads: int, device: Device = "cpu", dtype: str = "float32") -> list[Check]:
    """Alternate broadcasts from one rank with as many copies of the same bytes on the device as there are engines. Ray
    must be connected."""
    took, copied, config, gpus = [], [], engines_on(device), 0.5 * (device == "cuda")
    numbers = {"micro_batch_tokens": 4096, "policy_lr": 1e-5, "value_lr": 1e-5}
    learner = ResolvedLearner.model_validate({"value_model": "shared", "threads": threads, **numbers})
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as starter:
        model = build_model(Path(folder), SMALL if quick else LARGE, getattr(torch, dtype))
        size = int(model.num_parameters())
        spec = EngineSpec(folder, config, dtype, device, seed=0, cpus=0.0, gpus=gpus)
        starting = starter.submit(RolloutPool, spec)  # both spend most of their time importing
        with (
            closing(one_rank(folder, learner, dtype, device, HandleSender if device == "cuda" else None)) as group,
            closing(starting.result()) as pool,
        ):
            source = torch.ones(size, dtype=getattr(torch, dtype), device=device)
            target = torch.zeros_like(source)
            for _ in range(WARM + (3 if quick else 5)):
                begun = time.perf_counter()
                group.broadcast(pool)
                took.append(time.perf_counter() - begun)
                begun = time.perf_counter()
                for _ in range(config.actors):
                    target.copy_(source)
                synchronise(device)
                copied.append(time.perf_counter() - begun)
    share = median(copy / whole for copy, whole in zip(copied[WARM:], took[WARM:], strict=True))
    name = f"broadcast of {source.nbytes / 2**20:.0f} MiB to {'two engines' if config.actors == 2 else 'an engine'}"
    checks = [check(name, median(took[WARM:]), "s", baseline=median(copied[WARM:]))]
    if device == "cpu":
        checks.append(check("broadcast against memcpy to both", share, "x", ">=", 0.5))
    return told(checks)
