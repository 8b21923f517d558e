"""Weights from a learner rank to two vLLM engines: seconds, where they go, and the share of an iteration in the demo.

Called by `bench.learner`. A random Qwen2 in fp32 in one learner rank (with a value head on its trunk; nothing is trained) is broadcast
to two engines of a rollout pool as a run does it: `LearnerGroup.broadcast`. In turns with that, the driver copies the same
bytes twice (`memcpy`). Then the export of rank 0 and the load of one engine, part by part and alone. Two rounds go before: the first pages of the
object store and of the engines' memory are the system's time, and a run has them once.
"""

import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch

from actors.actor import RolloutActor
from actors.pool import RolloutPool
from bench.learner_model import Shape, build_model
from bench.report import Check, check, median
from core.config import AlgorithmConfig, Device, LearnerConfig, RolloutConfig
from core.records import FloatArray, IntArray
from core.weights import Acknowledgement, Weights, digest, pack
from learner.distributed.worker import RankWorker
from learner.group import LearnerGroup

LARGE = Shape(2048, hidden=1024, intermediate=4096, layers=15, heads=16, key_value_heads=16)
"""254 M parameters: 1 GB in fp32."""
SMALL = Shape(2048, hidden=512, intermediate=2048, layers=8, heads=8, key_value_heads=8)
"""35 M parameters: 140 MB."""
WARM = 2
ENGINES = RolloutConfig(
    actors=2, max_prompt_tokens=64, max_response_tokens=64, max_running=8, kv_cache_gib=0.1, threads=1
)
PROBE: list[IntArray] = [np.arange(5 * i + 1, 5 * i + 33, dtype=np.int32) for i in range(8)]


@dataclass(frozen=True, slots=True)
class Round:
    """One broadcast, in seconds."""

    export: float  # rank 0: a copy of every bucket into the object store, its hash beside
    load: float  # both engines: hash, copy, pack, acknowledge
    probe: float  # both engines and the learner: 8 sequences of 32 tokens
    memcpy: float  # of the same bytes to two places, by the driver


@dataclass(frozen=True, slots=True)
class Steps:
    """What one engine does with the weights, one after the other and alone (in a broadcast the hash runs beside), in seconds."""

    fetch: float  # the object store's copy, mapped
    hash: float
    start: float  # layers back to the checkpoint's layout
    load: float  # copied and packed for the kernels, layer by layer
    packing: float  # of that, the kernels' own layout
    finish: float  # the output layer packed, the prefix cache emptied


@dataclass(frozen=True, slots=True)
class Export:
    """What rank 0 does for a broadcast, in seconds, with more of it each time."""

    gather: float  # whole tensors under their Hugging Face names
    gather_and_hash: float
    gather_and_copy: float  # into the object store, the hash beside: all of it


class Watched:
    """The pool, and when it was asked for what."""

    def __init__(self, pool: RolloutPool) -> None:
        self._pool = pool
        self.moments: list[float] = []

    def load_weights(self, handle: Weights) -> list[Acknowledgement]:
        """See `RolloutPool`."""
        self.given = handle
        self.moments = [time.perf_counter()]
        answers = self._pool.load_weights(handle)
        self.moments.append(time.perf_counter())
        return answers

    def sequence_logprobs(self, sequences: Sequence[IntArray]) -> list[list[FloatArray]]:
        """See `RolloutPool`."""
        return self._pool.sequence_logprobs(sequences)


def broadcast(quick: bool, threads: int) -> list[Check]:
    """The checks of the broadcast. Ray must be connected."""
    with tempfile.TemporaryDirectory() as folder:
        size = 4 * build_model(Path(folder), SMALL if quick else LARGE)
        with ThreadPoolExecutor(1) as starter:  # both spend most of their time importing
            pool_starting = starter.submit(
                RolloutPool, folder, ENGINES, dtype="float32", device="cpu", seed=0, cpus=0.0
            )
            learner = learner_of(folder, "cpu", threads)
            pool = pool_starting.result()
        watched = Watched(pool)
        rounds = measured(learner, watched, size, WARM + (3 if quick else 5))
        rank = ray.get_actor("learner-rank-0")
        exports = [ray.get(rank.__ray_call__.remote(export_steps)) for _ in range(3)]
        steps = [ray.get(actor(0).__ray_call__.remote(step_by_step, watched.given)) for _ in range(3)]
        learner.close()
        pool.close()
    return checks_of(size, rounds[WARM:], exports, steps)


def learner_of(folder: str, device: Device, threads: int) -> LearnerGroup:
    """One rank that holds one model."""
    config = LearnerConfig(value_model="shared", threads=threads)
    options: dict[str, Any] = {"dtype": "float32", "temperature": 1.0, "total_steps": 1, "seed": 0, "cpus": 0.0}
    return LearnerGroup(folder, config, AlgorithmConfig(), device=device, **options)


def measured(learner: LearnerGroup, watched: Watched, size: int, count: int) -> list[Round]:
    """So many broadcasts, and copies in between."""
    source, target = torch.ones(size // 4), torch.zeros(size // 4)
    rounds = []
    for _ in range(count):
        begin = time.perf_counter()
        learner.broadcast(watched, PROBE)
        end = time.perf_counter()
        for _ in range(2):
            target.copy_(source)
        copied = time.perf_counter() - end
        asked, answered = watched.moments
        rounds.append(Round(asked - begin, answered - asked, end - answered, copied))
    return rounds


def actor(index: int) -> Any:
    """The Ray actor of an engine."""
    return ray.get_actor(f"rollout-{index}")


def export_steps(self: RankWorker) -> Export:
    """`RankWorker.export_weights`, part by part."""
    clock = [time.perf_counter()]
    for _ in self._hf_tensors():
        pass
    clock.append(time.perf_counter())
    for publish in (id, self._publish):
        weights = pack(self._hf_tensors(), 0, publish)
        clock.append(time.perf_counter())
        del weights
    return Export(*(after - before for before, after in pairwise(clock)))


def step_by_step(self: RolloutActor, weights: Weights) -> Steps:
    """`VllmEngine.load_weights`, with a clock between its steps."""
    from vllm import _custom_ops

    engine: Any = self._engine
    clock, packing, pack = [time.perf_counter()], [], _custom_ops.create_onednn_mm

    def tick() -> None:
        clock.append(time.perf_counter())

    def timed(*arguments: Any) -> Any:
        begin = time.perf_counter()
        handler = pack(*arguments)
        packing.append(time.perf_counter() - begin)
        return handler

    weights = self._stored(replace(weights, direct=None))
    tick()
    digest(weights)
    tick()
    engine._engine.collective_rpc("start_weight_update")
    tick()
    _custom_ops.create_onednn_mm = timed
    engine._engine.collective_rpc("update_weights", kwargs={"update_info": {"weights": weights}})
    _custom_ops.create_onednn_mm = pack
    tick()
    engine._engine.collective_rpc("finish_weight_update")
    engine._engine.reset_prefix_cache(reset_running_requests=True)
    tick()
    fetch, hashing, start, load, finish = (after - before for before, after in pairwise(clock))
    return Steps(fetch, hashing, start, load, sum(packing), finish)


def checks_of(size: int, rounds: Sequence[Round], exports: Sequence[Export], steps: Sequence[Steps]) -> list[Check]:
    """Medians. The probe is no part of what is held against memcpy: it moves no weights."""
    took = median([r.export + r.load for r in rounds])
    share = median([r.memcpy / (r.export + r.load) for r in rounds])
    rank = {field.name: median([getattr(e, field.name) for e in exports]) for field in fields(Export)}
    alone = {field.name: median([getattr(s, field.name) for s in steps]) for field in fields(Steps)}
    return [
        check(
            f"broadcast of {size / 2**20:.0f} MiB to two engines",
            took,
            "s",
            baseline=median([r.memcpy for r in rounds]),
        ),
        check("broadcast against memcpy to both", share, "x", ">=", 0.5),
        check("of which: copy into the object store, hash beside", median([r.export for r in rounds]), "s"),
        check("of which: load by both engines, hash beside", median([r.load for r in rounds]), "s"),
        check("probe of 8 x 32 tokens after it", median([r.probe for r in rounds]), "s"),
        *(check(f"rank 0 alone: {name.replace('_', ' ')}", seconds, "s") for name, seconds in rank.items()),
        *(check(f"one engine alone: {name}", seconds, "s") for name, seconds in alone.items()),
    ]


def share_in_the_demo(quick: bool) -> list[Check]:
    """The share of an iteration of the demo recipe that the broadcast takes, with its probe. Ray must not be connected."""
    from bench.loop import alternate, recipe
    from core.run_directory import RunDirectory
    from trainer import build
    from trainer.cluster import connect

    config = recipe(quick)
    with (
        tempfile.TemporaryDirectory() as folder,
        connect(config, "bench") as device,
        build.open_model_and_task(config) as ready,
    ):
        run = RunDirectory.create(Path(folder), "bench", "bench")
        with build.components(config, run, ready, device) as parts:
            laps, _ = alternate(config, parts, {}, 3 if quick else 6)
    clocks = [lap.seconds for lap in laps]
    share = median([clock.broadcast / clock.total for clock in clocks])
    return [
        check("broadcast in the demo", median([clock.broadcast for clock in clocks]), "s"),
        check("share of an iteration of the demo that it takes", share, "share"),
    ]
