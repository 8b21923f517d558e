"""How fast and how lean the learner is against a bare DeepSpeed loop: `python -m bench.learner [--quick] [--device cuda]`.

PPO update (driver, Ray and all) and the bare loop of `bench.bare_loop` run in turns over the same packed tokens: random ids
with the lengths of GSM8K (characters / 3). Then broadcasts to two vLLM engines against memcpy (`bench.learner_broadcast`), and
the memory of both sides (`bench.learner_memory`).
"""

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import ray

from bench.bare_loop import BareLoop
from bench.learner_broadcast import broadcast, share_in_the_demo
from bench.learner_memory import memory_checks
from bench.learner_model import STARTER, build_model
from bench.report import Check, check, write
from core.config import AlgorithmConfig, Device, LearnerConfig
from core.errors import RetrospectError
from core.records import Finish, Judged, Start, Trajectory, Verdict
from learner.distributed.actor_critic import StepPlan
from learner.distributed.ranks import rank_environment
from learner.distributed.worker import RankWorker
from learner.group import LearnerGroup
from learner.packing.batch import Row, padding_share

ROOT = Path(__file__).parents[1]
BESIDE = ROOT.parent / "shared" / "data"
DATA = Path(os.environ.get("RETROSPECT_DATA", BESIDE if BESIDE.is_dir() else ROOT / "tests" / "data"))


def trajectories(count: int, vocabulary: int) -> list[Judged]:
    """Random tokens with the lengths of real problems and solutions; every fourth continues half of its solution."""
    rng = np.random.default_rng(0)
    with (DATA / "gsm8k" / "train.jsonl").open(encoding="utf-8") as lines:
        problems = list(islice(cycle([json.loads(line) for line in islice(lines, count)]), count))
    out = []
    for i, problem in enumerate(problems):
        prompt, response = len(problem["question"]) // 3, max(2, len(problem["answer"]) // 3)
        prefix = response // 2 if i % 4 == 3 else 0
        ids = rng.integers(0, vocabulary, prompt + response).astype(np.int32)
        start = Start(f"s{i}", f"p{i}", ids[:prompt], ids[prompt : prompt + prefix], 1, i, i if prefix else None)
        tokens = ids[prompt + prefix :]
        logprobs = np.full(len(tokens), -7.6, dtype=np.float32)
        versions = np.zeros(len(tokens), dtype=np.int32)
        trajectory = Trajectory(start, 0, tokens, logprobs, versions, Finish.STOP)
        out.append(Judged(trajectory, Verdict(float(i % 2), bool(i % 2))))
    return out


def compare(quick: bool, device: Device, threads: int) -> list[Check]:
    """The update against the bare loop."""
    judged = trajectories(64 if quick else 192, STARTER.vocabulary)
    config = LearnerConfig(micro_batch_tokens=8192, minibatches=2, threads=threads, policy_lr=1e-6)
    with tempfile.TemporaryDirectory() as folder:
        build_model(Path(folder), STARTER)
        group = LearnerGroup(
            folder,
            config,
            AlgorithmConfig(),
            dtype="float32",
            device=device,
            temperature=1.0,
            total_steps=100,
            seed=0,
        )
        environment = {"env_vars": rank_environment(device, threads)}
        bare = ray.remote(BareLoop).options(runtime_env=environment, num_cpus=0).remote(folder, device, "float32")
        given = spied(group)
        scored = group.score(judged)
        group.update(scored)
        plans = given[RankWorker.update]
        ray.get(bare.update.remote(plans))
        ours, theirs = [], []
        for _ in range(3 if quick else 7):
            begin = time.perf_counter()
            group.update(scored)
            ours.append(time.perf_counter() - begin)
            theirs.append(ray.get(bare.update.remote(plans)))
        checks = _speed_checks(judged, plans, ours, theirs)
        group.close()
        ray.kill(bare)
    return checks


def spied(group: LearnerGroup) -> dict[Any, Any]:
    """What rank 0 got in the last call of each method: the bare loop gets the very micro-batches that the learner makes."""
    sent, given = group._ranks.begin, {}

    def spy(method: Callable[..., Any], *args: Any) -> Callable[[], list[Any]]:
        if args:
            given[method] = args[0][0]
        return sent(method, *args)

    group._ranks.begin = spy  # type: ignore[method-assign]
    return given


def _speed_checks(judged: list[Judged], plans: list[StepPlan], ours: list[float], theirs: list[float]) -> list[Check]:
    tokens = sum(len(j.trajectory.sequence_ids) for j in judged)
    read = [batch.inputs for plan in plans for batch in plan.batches]
    rows = [Row(j.trajectory.sequence_ids, len(j.trajectory.start.context_ids)) for j in judged]
    share = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
    fastest, base = tokens / statistics.median(ours), tokens / statistics.median(theirs)
    return [
        check("PPO update", fastest, "tokens/s", baseline=base),
        check("PPO update against the bare loop", share, "x", ">=", 0.95),
        check("padding", padding_share(read, rows), "share", "<=", 0.05),
    ]


def main(arguments: list[str]) -> None:
    """Measure and write bench/results/learner.json (learner-cuda.json on a GPU)."""
    quick, threads = "--quick" in arguments, os.cpu_count() or 1
    device: Device = "cuda" if "--device" in arguments and "cuda" in arguments else "cpu"
    settings: dict[str, Any] = {"device": device, "model": "Qwen2 128 x 4, vocabulary 2048", "threads": threads}
    if device == "cuda":
        from bench.learner_gpu import SHAPES, compare_on_gpu, require_gpu

        name = require_gpu()
        settings |= {"device": name, "model": f"random Qwen2 of {' and '.join(SHAPES)}, bf16, ZeRO 2 and 3, one rank"}
    ray.init(address="local", include_dashboard=False, namespace="retrospect", log_to_driver=False)
    if device == "cuda":
        checks = compare_on_gpu(quick, name)
    else:
        checks = compare(quick, device, threads) + broadcast(quick, threads)
        settings["broadcast"] = "a Qwen2 of 35 M parameters in fp32" if quick else "a Qwen2 of 254 M parameters in fp32"
    ray.shutdown()
    if device == "cpu":
        checks += memory_checks(trajectories(64 if quick else 192, STARTER.vocabulary), quick, threads)
        checks += share_in_the_demo(quick)
    write("learner-cuda" if device == "cuda" else "learner", checks, settings, quick=quick)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except RetrospectError as error:
        sys.exit(f"error: {error}")
