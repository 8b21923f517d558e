"""How fast is the learner, and how much memory does it need? `python -m bench.learner [--quick] [--device cuda]`.

PPO updates (driver and Ray included) alternate with updates of a bare DeepSpeed loop over the same micro-batches: random tokens
with the lengths of GSM8K. Then the peak memory of both sides is measured. On CPU this is done for a small model with micro-batches
of 16,384 tokens, and for one with Qwen2's vocabulary and 2,048 tokens, whose logits take nearly all of the memory. On CPU the
weights are also broadcast to two vLLM engines. On a GPU speed and memory are measured for a random Qwen2 of 0.5 B parameters in
bf16 under ZeRO 2 and 3.
"""

import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import ray
import torch

from bench.learner.broadcast import broadcast_checks
from bench.learner.memory import EXACT, memory_now, peak_memory
from bench.learner.sides import Sides, Work, started
from bench.models import Shape
from bench.report import Check, check, median, write
from core.errors import ClusterError, RetrospectError

STARTER = Shape(2048, hidden=128, intermediate=512, layers=4, heads=4, key_value_heads=4)
"""The default starter's shape."""
WORDS = Shape(151_936, hidden=64, intermediate=256, layers=2, heads=4, key_value_heads=4)
"""A very small model with Qwen2's vocabulary."""
HALF_B = Shape(151_936, hidden=896, intermediate=4864, layers=24, heads=14, key_value_heads=2)
"""Qwen2 0.5 B."""
PEAKS = {"A100": 312e12, "H100": 989e12, "H200": 989e12}
"""GPU -> dense bf16 FLOP/s by NVIDIA's data sheets. For other GPUs no MFU is reported."""


def local_ray() -> AbstractContextManager[object]:
    """A local Ray for this process, stopped at the end of the block."""
    context: AbstractContextManager[object] = ray.init(
        address="local", namespace="retrospect", include_dashboard=False, log_to_driver=False
    )
    return context


def speed_checks(name: str, sides: Sides, repeats: int) -> list[Check]:
    """Run updates of both sides alternately and compare them."""
    ours, theirs = [], []
    for _ in range(repeats):
        begun = time.perf_counter()
        stats = sides.group.update(sides.scored)
        ours.append(time.perf_counter() - begun)
        theirs.append(ray.get(sides.bare.update.remote(sides.steps)))
    share = median([bare / learner for bare, learner in zip(theirs, ours, strict=True)])
    rate, baseline = sides.tokens / median(ours), sides.tokens / median(theirs)
    return [
        check(f"{name}PPO update", rate, "tokens/s", baseline=baseline),
        check(f"{name}PPO update against the bare loop", share, "x", ">=", 0.95),
        check(f"{name}padding", stats.padding_share, "share", "<=", 0.05),
    ]


def peaks(actor: Any, idle: float, score: Callable[[], object], update: Callable[[], object]) -> tuple[float, float]:
    """Peak MiB of one side: in scoring above the memory before, in updates above `idle` (with optimizer states)."""
    before = memory_now(actor)
    return peak_memory(actor, score) - before, peak_memory(actor, update) - idle


def memory_checks(name: str, sides: Sides) -> list[Check]:
    """Peak memory of both sides, beyond their models and libraries."""
    group, bare = sides.group, sides.bare
    ours = peaks(sides.rank, sides.idle[0], lambda: group.score(sides.judged), lambda: group.update(sides.scored))
    theirs = peaks(
        bare,
        sides.idle[1],
        lambda: ray.get(bare.score.remote(sides.batches)),
        lambda: ray.get(bare.update.remote(sides.steps)),
    )
    checks = []
    for what, learner, baseline in zip(("scoring", "updates"), ours, theirs, strict=True):
        title = f"{name}peak memory of {what}"
        checks.append(check(title, learner, "MiB", baseline=baseline))
        checks.append(check(f"{title} against the bare loop", learner / baseline, "x", "<=", 1.1))
    return checks


def measure_on_cpu(quick: bool) -> list[Check]:
    """Speed and broadcasts; then memory, in processes with another memory allocator."""
    threads = os.cpu_count() or 1
    with local_ray():
        with started(Work(STARTER, 64 if quick else 192, 8192, threads)) as sides:
            checks = speed_checks("", sides, 3 if quick else 7)
        checks += broadcast_checks(quick, threads)
    with patch.dict(os.environ, EXACT), local_ray():
        with started(Work(STARTER, 128, 16_384, threads, length=256)) as sides:
            checks += memory_checks("", sides)
        with started(Work(WORDS, 32, 2048, threads, length=256)) as sides:
            checks += memory_checks(f"{WORDS.vocabulary // 1000} k words: ", sides)
    return checks


def measure_on_gpu(quick: bool, gpu: str) -> list[Check]:
    """Speed and memory under ZeRO 2 and 3."""
    checks = []
    peak = next((peak for name, peak in PEAKS.items() if name in gpu), None)
    with local_ray():
        for stage in (2, 3):
            name = f"0.5 B, ZeRO {stage}: "
            with started(Work(HALF_B, 32 if quick else 256, 16_384, 1, device="cuda", zero_stage=stage)) as sides:
                checks += speed_checks(name, sides, 3)
                if peak is not None:  # 6 FLOP per parameter and token, for policy and critic
                    flops = 2 * 6 * sides.parameters * checks[-3].value
                    checks.append(check(f"{name}MFU, attention and scoring not counted", flops / peak, "share"))
                checks += memory_checks(name, sides)
    return checks


def main(arguments: list[str]) -> None:
    """Measure and write bench/results/learner.json (learner-cuda.json on a GPU). Raises ClusterError without that GPU."""
    quick = "--quick" in arguments
    if "cuda" not in arguments:
        settings: dict[str, str | int | float] = {
            "device": "cpu",
            "model": "Qwen2 128 x 4, vocabulary 2048",
            "threads": os.cpu_count() or 1,
            "broadcast": f"a Qwen2 of {35 if quick else 254} M parameters in fp32",
        }
        write("learner", measure_on_cpu(quick), settings, quick=quick)
        return
    if not torch.cuda.is_available():
        raise ClusterError("bench.learner --device cuda: torch sees no GPU; leave out --device to measure on CPU")
    gpu = torch.cuda.get_device_name()
    settings = {"device": gpu, "model": "random Qwen2 of 0.5 B, bf16, ZeRO 2 and 3, one rank"}
    write("learner-cuda", measure_on_gpu(quick, gpu), settings, quick=quick)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except RetrospectError as error:
        sys.exit(f"error: {error}")
