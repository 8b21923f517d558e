"""How fast is the learner, and how much memory does it need? `python -m bench.learner [--quick] [--device cuda]`.

PPO iterations of the learner (score and update, driver and Ray included) alternate with those of a bare torch loop over
the plain rows: rows with GSM8K's lengths that share nothing, and 8 continuations of 128 tokens of every prefix of 512.
Then the peak memory of both sides is measured for the same rows in one pass. On CPU this is done for small models, also
for one with Qwen2's vocabulary, whose logits take nearly all of the memory. With `--model FOLDER` a pretrained model is
measured instead, in fp32 and, where the CPU has instructions for it or `--dtype` asks for it, in bf16, with the critic
on its trunk: rows of 150 to 210 tokens that share nothing, and 8 continuations of 80 tokens of every prompt of 100. The
bare loop then has no critic. On CPU the weights are also broadcast to two vLLM engines. On a GPU speed and memory are
measured for a random Qwen2 of 0.5 B parameters in bf16 under ZeRO 2 and 3, for rows of 512 tokens that share nothing
and for 8 continuations of 256 tokens of every prefix of 256. Every number is printed as soon as it is there.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from transformers import AutoConfig

from bench.learner.broadcast import broadcast_checks
from bench.learner.memory import EXACT, memory_now, peak_memory
from bench.learner.rows import forked_rows, gsm8k_rows, plain_rows
from bench.learner.sides import Side, Work, started
from bench.models import Shape, local_ray
from bench.report import Check, check, command_line, device_name, result_name, told, write
from core.config import Device
from core.errors import RetrospectError
from core.machine import this_machine
from trainer.model.gguf import model_folder

STARTER = Shape(2048, hidden=128, intermediate=512, layers=4, heads=4, key_value_heads=4)  # the default starter's shape
MIDDLE = Shape(2048, hidden=512, intermediate=2432, layers=2, heads=8, key_value_heads=2)  # Qwen2's proportions
WORDS = Shape(151_936, hidden=64, intermediate=256, layers=2, heads=4, key_value_heads=4)  # Qwen2's vocabulary
HALF_B = Shape(151_936, hidden=896, intermediate=4864, layers=24, heads=14, key_value_heads=2)  # Qwen2 0.5 B
DTYPES = ("float32", "bfloat16")
FORKED = "512 shared, 8 x 128"


def speed_checks(name: str, work: Work, repeats: int, goal: float) -> list[Check]:
    """Score and update with both sides alternately and compare their times; `goal` for their ratio."""
    with started(work) as sides:
        return speeds(name, work, sides, repeats, goal)


def speeds(name: str, work: Work, sides: tuple[Side, Side], repeats: int, goal: float) -> list[Check]:
    """The same of sides that have started."""
    laps = [[(side.score(), side.update()) for side in sides] for _ in range(repeats)]
    ours, bare = (len(work.judged) / median(sum(pair[side]) for pair in laps) for side in (0, 1))
    ratio = median(sum(bare) / sum(ours) for ours, bare in laps)
    return told(
        [
            check(f"{name}: score and update", ours, "sequences/s", baseline=bare),
            check(f"{name}: score and update against the bare loop", ratio, "x", ">=", goal),
            check(f"{name}: score alone", median(bare[0] / ours[0] for ours, bare in laps), "x"),
            check(f"{name}: update alone", median(bare[1] / ours[1] for ours, bare in laps), "x"),
        ]
    )


def peaks(side: Side) -> tuple[float, float]:
    """Peak MiB: in scoring above the memory before, in updates above that without optimizer states."""
    before = memory_now(side.actor)
    return peak_memory(side.actor, side.score) - before, peak_memory(side.actor, side.update) - side.idle


def memory_checks(name: str, work: Work, goal: float) -> list[Check]:
    """Peak memory of both sides, beyond their models and libraries; `goal` for their ratio."""
    with started(work) as sides:
        return memories(name, sides, goal)


def memories(name: str, sides: tuple[Side, Side], goal: float) -> list[Check]:
    """The same of sides that have started."""
    ours, bare = map(peaks, sides)
    checks = []
    for what, own, baseline in zip(("scoring", "updates"), ours, bare, strict=True):
        title = f"{name}: peak memory of {what}"
        checks.append(check(title, own, "MiB", baseline=baseline))
        checks.append(check(f"{title} against the bare loop", own / baseline, "x", "<=", goal))
    return told(checks)


def measure_on_cpu(quick: bool) -> list[Check]:
    """Speed and broadcasts; then memory, in processes with another memory allocator."""
    threads, repeats = os.cpu_count() or 1, 3 if quick else 7
    plain = Work(STARTER, gsm8k_rows(64 if quick else 192, STARTER.vocabulary), threads)
    forked = Work(MIDDLE, forked_rows(2 if quick else 4, 8, 512, 128, MIDDLE.vocabulary), threads)
    words = Work(WORDS, forked_rows(32, 1, 64, 192, WORDS.vocabulary), threads, budget=2048)
    whole = 2**16  # all rows of a step in one pass on both sides
    with local_ray():
        checks = [
            *speed_checks("nothing shared", plain, repeats, 0.95),
            *speed_checks(FORKED, forked, repeats, 3.0),
            *broadcast_checks(quick, threads),
        ]
    with patch.dict(os.environ, EXACT), local_ray():
        return [
            *checks,
            *memory_checks(FORKED, replace(forked, budget=whole, bare_budget=whole), 0.6),
            *memory_checks("151 k words", words, 1.1),
        ]


def measure_pretrained(model: Path, dtypes: Sequence[str], device: Device, quick: bool) -> list[Check]:
    """Speed of a pretrained model."""
    words = int(AutoConfig.from_pretrained(model).vocab_size)
    common: dict[str, Any] = {"threads": os.cpu_count() or 1, "budget": 2048, "value_model": "shared", "device": device}
    common["minibatches"] = 1 if quick else 3
    if device == "cuda":
        common |= {"budget": 16_384, "bare_budget": 16_384, "zero_stage": 2}
    many = 8 if device == "cuda" else 1
    plain = Work(model, plain_rows(many * (6 if quick else 24), words), **common)
    forked = Work(model, forked_rows(many * (1 if quick else 3), 8, 100, 80, words), **common)
    checks = []
    with local_ray():
        for dtype in dtypes:
            checks += speed_checks(f"{dtype}, nothing shared", replace(plain, dtype=dtype), 3, 0.95)
            checks += speed_checks(f"{dtype}, 100 shared, 8 x 80", replace(forked, dtype=dtype), 3, 1.6)
    return checks


def measure_on_gpu(quick: bool) -> list[Check]:
    """Speed and memory under ZeRO 2 (`quick`) and 3, and a broadcast."""
    many, laps = (4, 2) if quick else (16, 5)
    rows = {
        ("nothing shared", 0.95): forked_rows(8 * many, 1, 256, 256, HALF_B.vocabulary),
        ("8 x (256 + 256)", 1.5): forked_rows(many, 8, 256, 256, HALF_B.vocabulary),
    }
    checks = []
    with local_ray():
        for stage in (2,) if quick else (2, 3):
            for (kind, goal), judged in rows.items():
                name = f"0.5 B, ZeRO {stage}, {kind}"
                work = Work(HALF_B, judged, 1, 16_384, 16_384, "cuda", stage, dtype="bfloat16")
                with started(work) as sides:
                    checks += speeds(name, work, sides, laps, goal)
                    checks += memories(name, sides, 1.1)
        if not quick:
            checks += broadcast_checks(quick, 1, "cuda", "bfloat16")
    return checks


def main(quick: bool, device: Device, model: Path | None, dtypes: Sequence[str]) -> None:
    """Measure and write learner.json, or that of a GPU or a pretrained model. Raises ClusterError."""
    settings: dict[str, object] = {"device": device_name(device), "threads": os.cpu_count() or 1}
    if model is not None:
        settings |= {"model": model.name}
        checks = measure_pretrained(Path(model_folder(str(model))), dtypes, device, quick)
    elif device == "cpu":
        settings |= {
            "models": "Qwen2 128 x 4 (nothing shared), 512 x 2 (512 shared)",
            "broadcast": f"a Qwen2 of {35 if quick else 254} M parameters in fp32",
        }
        checks = measure_on_cpu(quick)
    else:
        settings |= {"model": "random Qwen2 of 0.5 B, bf16, one rank"}
        checks = measure_on_gpu(quick)
    write(result_name("learner", device, model is not None), checks, settings, quick=quick)


if __name__ == "__main__":
    parser = command_line(__doc__, device=True)
    parser.add_argument("--model", type=Path, help="the folder of a pretrained model, which is measured instead")
    # a CPU without instructions for bf16 computes it 10 times slower than fp32
    computed = DTYPES if this_machine().bfloat16 else DTYPES[:1]
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, help="the types of a pretrained model")
    given = parser.parse_args()
    usual = DTYPES[1:] if given.device == "cuda" else computed
    try:
        main(given.quick, given.device, given.model, given.dtype or usual)
    except RetrospectError as error:
        sys.exit(f"error: {error}")
