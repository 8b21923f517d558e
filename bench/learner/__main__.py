"""How fast is the learner, and how much memory does it need? `python -m bench.learner [--quick] [--device cuda]`.

PPO iterations of the learner (score and update, driver and Ray included) alternate with those of a bare DeepSpeed loop over the plain
rows: rows with GSM8K's lengths that share nothing, the demo's rows, and 8 continuations of 128 tokens of every prefix of 512. Then the
peak memory of both sides is measured for the same rows in one pass. On CPU this is done for small models, also for one with Qwen2's
vocabulary, whose logits take nearly all of the memory. On CPU the weights are also broadcast to two vLLM engines. On a GPU speed and
memory are measured for a random Qwen2 of 0.5 B parameters in bf16 under ZeRO 2 and 3.
"""

import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import ray
import torch

from bench.learner.broadcast import broadcast_checks
from bench.learner.memory import EXACT, memory_now, peak_memory
from bench.learner.rows import demo_rows, forked_rows, gsm8k_rows
from bench.learner.sides import Sides, Work, started
from bench.models import Shape
from bench.report import Check, check, command_line, median, write
from core.errors import ClusterError, RetrospectError
from core.startup import set_environment

STARTER = Shape(2048, hidden=128, intermediate=512, layers=4, heads=4, key_value_heads=4)
"""The default starter's shape."""
DEMO = Shape(18, hidden=128, intermediate=384, layers=3, heads=4, key_value_heads=4)
"""The demo's starter."""
MIDDLE = Shape(2048, hidden=512, intermediate=2432, layers=2, heads=8, key_value_heads=2)
"""With the proportions of Qwen2's layers."""
WORDS = Shape(151_936, hidden=64, intermediate=256, layers=2, heads=4, key_value_heads=4)
"""A very small model with Qwen2's vocabulary."""
HALF_B = Shape(151_936, hidden=896, intermediate=4864, layers=24, heads=14, key_value_heads=2)
"""Qwen2 0.5 B."""
PEAKS = {"A100": 312e12, "H100": 989e12, "H200": 989e12}
"""GPU -> dense bf16 FLOP/s by NVIDIA's data sheets. For other GPUs no MFU is reported."""


def local_ray() -> AbstractContextManager[object]:
    """A local Ray for this process, stopped at the end of the block."""
    set_environment()
    context: AbstractContextManager[object] = ray.init(
        address="local", namespace="retrospect", include_dashboard=False, log_to_driver=False
    )
    return context


def cpu_seconds(actor: Any) -> float:
    """CPU time of an actor's process so far."""
    seconds: float = ray.get(actor.__ray_call__.remote(lambda _: time.process_time()))
    return seconds


def speed_checks(name: str, sides: Sides, repeats: int, goal: float) -> list[Check]:
    """Score and update with both sides alternately and compare their times; `goal` for their ratio."""
    ours, theirs, phases = [], [], []
    before = cpu_seconds(sides.rank), cpu_seconds(sides.bare)
    for _ in range(repeats):
        begun = time.perf_counter()
        scored = sides.group.score(sides.judged)
        middle = time.perf_counter()
        stats = sides.group.update(scored)
        ours.append(time.perf_counter() - begun)
        bare = sides.score_bare(), sides.update_bare()
        theirs.append(sum(bare))
        phases.append((bare[0] / (middle - begun), bare[1] / (begun + ours[-1] - middle)))
    used = cpu_seconds(sides.rank) - before[0], cpu_seconds(sides.bare) - before[1]
    count = len(sides.judged)
    ratio = median([bare / learner for bare, learner in zip(theirs, ours, strict=True)])
    return [
        check(f"{name}: score and update", count / median(ours), "sequences/s", baseline=count / median(theirs)),
        check(f"{name}: score and update against the bare loop", ratio, "x", ">=", goal),
        check(f"{name}: score alone", median([score for score, _ in phases]), "x"),
        check(f"{name}: update alone", median([update for _, update in phases]), "x"),
        check(f"{name}: the same in CPU time of the two processes", used[1] / used[0], "x"),
        check(f"{name}: tokens that need not be read again", stats.shared_share, "share"),
    ]


def peaks(actor: Any, idle: float, score: Callable[[], object], update: Callable[[], object]) -> tuple[float, float]:
    """Peak MiB of one side: in scoring above the memory before, in updates above `idle` (with optimizer states)."""
    before = memory_now(actor)
    return peak_memory(actor, score) - before, peak_memory(actor, update) - idle


def memory_checks(name: str, sides: Sides, goal: float) -> list[Check]:
    """Peak memory of both sides, beyond their models and libraries; `goal` for their ratio."""
    group = sides.group
    ours = peaks(sides.rank, sides.idle[0], lambda: group.score(sides.judged), lambda: group.update(sides.scored))
    theirs = peaks(sides.bare, sides.idle[1], sides.score_bare, sides.update_bare)
    checks = []
    for what, learner, baseline in zip(("scoring", "updates"), ours, theirs, strict=True):
        title = f"{name}: peak memory of {what}"
        checks.append(check(title, learner, "MiB", baseline=baseline))
        checks.append(check(f"{title} against the bare loop", learner / baseline, "x", "<=", goal))
    return checks


FORKED = "512 shared, 8 x 128"


def measure_on_cpu(quick: bool) -> list[Check]:
    """Speed and broadcasts; then memory, in processes with another memory allocator."""
    threads, repeats = os.cpu_count() or 1, 3 if quick else 7
    plain = Work(STARTER, gsm8k_rows(64 if quick else 192, STARTER.vocabulary), 8192, threads, 2048)
    demo = Work(DEMO, demo_rows(32 if quick else 128, 4), 8192, threads, 2048)
    forked = Work(MIDDLE, forked_rows(2 if quick else 4, 8, 512, 128, MIDDLE.vocabulary), 8192, threads, 2048)
    checks = []
    with local_ray():
        for name, work, goal in (
            ("nothing shared", plain, 0.95),
            ("the demo's rows", demo, 1.6),
            (FORKED, forked, 3.0),
        ):
            with started(work) as sides:
                checks += speed_checks(name, sides, repeats, goal)
        checks += broadcast_checks(quick, threads)
    whole = 2**16  # all rows of a step in one pass on both sides
    with patch.dict(os.environ, EXACT), local_ray():
        with started(replace(forked, budget=whole, bare_budget=whole)) as sides:
            checks += memory_checks(FORKED, sides, 0.6)
        rows = forked_rows(32, 1, 64, 192, WORDS.vocabulary)
        with started(Work(WORDS, rows, 2048, threads, 2048)) as sides:
            checks += memory_checks(f"{WORDS.vocabulary // 1000} k words", sides, 1.1)
    return checks


def measure_on_gpu(quick: bool, gpu: str) -> list[Check]:
    """Speed and memory under ZeRO 2 and 3."""
    checks = []
    peak = next((peak for name, peak in PEAKS.items() if name in gpu), None)
    rows = forked_rows(4 if quick else 32, 8, 512, 128, HALF_B.vocabulary)
    with local_ray():
        for stage in (2, 3):
            name = f"0.5 B, ZeRO {stage}, {FORKED}"
            with started(Work(HALF_B, rows, 16_384, 1, 16_384, device="cuda", zero_stage=stage)) as sides:
                checks += speed_checks(name, sides, 3, 3.0)
                if (
                    peak is not None
                ):  # of the plain rows: 6 FLOP per parameter and token, for policy and critic, and 2 to score
                    flops = 2 * 8 * sides.parameters * sides.tokens / len(sides.judged) * checks[-6].value
                    checks.append(
                        check(f"{name}: FLOP of plain rows / peak, attention not counted", flops / peak, "share")
                    )
                checks += memory_checks(name, sides, 0.6)
    return checks


def main(quick: bool, device: str) -> None:
    """Measure and write bench/results/learner.json (learner-cuda.json on a GPU). Raises ClusterError without that GPU."""
    if device == "cpu":
        settings: dict[str, str | int | float] = {
            "device": "cpu",
            "models": "Qwen2 128 x 4 (nothing shared), 128 x 3 (demo), 512 x 2 (512 shared)",
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
    parser = command_line(__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="what to measure on")
    given = parser.parse_args()
    try:
        main(given.quick, given.device)
    except RetrospectError as error:
        sys.exit(f"error: {error}")
