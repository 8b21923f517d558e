"""Peak memory of the learner's passes against the bare loop's, and of our log-probabilities against plain [T, V] logits.

Called by `bench.learner`, on CPU. Every measurement is a process of its own that is given the same micro-batches, and in which
glibc hands every block of 1 MiB and more back to the system as soon as it is free (`EXACT`): resident memory is then what
the tensors take, and not what an allocator kept from earlier ones. Peaks are those of the kernel (VmHWM), reset before each pass.
"""

import ctypes
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import numpy as np
import torch

from bench.bare_loop import BareLoop
from bench.learner_model import STARTER, WORDS, build_model
from bench.report import Check, check, median
from core.config import AlgorithmConfig, LearnerConfig
from core.records import FloatArray, Judged, Scored
from learner.distributed.actor_critic import StepPlan
from learner.distributed.ranks import rank_environment
from learner.distributed.worker import RankWorker, free_port
from learner.models.pretrained import load_policy
from learner.packing.assign import GPU_OVERHEAD, assign_padded
from learner.packing.batch import MicroBatch, Row
from learner.packing.micro_batches import input_batches, train_batches
from learner.targets import compute_targets

T = TypeVar("T")

EXACT = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "1048576", "MALLOC_TRIM_THRESHOLD_": "1048576"}
BUDGET = 16_384
"""Tokens of a micro-batch: what passes need is then some hundred MiB."""
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Work:
    """What both sides read."""

    scored: list[MicroBatch]
    steps: list[StepPlan]


@dataclass(frozen=True, slots=True)
class Peaks:
    """Highest memory above that after loading the models, in MiB."""

    scoring: float
    update: float  # the second one: Adam's moments are there


@dataclass(frozen=True, slots=True)
class Read:
    """Log-probabilities one way."""

    scoring: float  # MiB
    training: float  # MiB: forward and backward
    logprobs: FloatArray  # [N]
    gradient: FloatArray  # [V, H] of their mean, by the output layer's (and embedding's) weights


def memory_checks(judged: Sequence[Judged], quick: bool, threads: int) -> list[Check]:
    """All figures; medians of three processes each, in turns."""
    times = 1 if quick else 3
    with tempfile.TemporaryDirectory() as folder:
        build_model(Path(folder), STARTER)
        work = work_of(judged)
        sides = [[fresh(side, threads, folder, work, threads) for side in (learner, bare)] for _ in range(times)]
        ours, theirs = ([round_[side] for round_ in sides] for side in (0, 1))
    with tempfile.TemporaryDirectory() as folder:
        build_model(Path(folder), WORDS)
        batch = long_vocabulary(judged)
        ways = [[fresh(way, threads, folder, batch) for way in (chunked, plain)] for _ in range(times)]
    for chunks, whole in ways:
        np.testing.assert_allclose(chunks.logprobs, whole.logprobs, atol=1e-5)
        np.testing.assert_allclose(chunks.gradient, whole.gradient, atol=1e-7)
    pairs = [
        ("scoring", [p.scoring for p in ours], [p.scoring for p in theirs], 1.1),
        ("updates", [p.update for p in ours], [p.update for p in theirs], 1.1),
    ]
    words = f"{WORDS.vocabulary // 1000} k words, {len(batch.targets)} tokens"
    chunked_pairs = [
        (f"{words}: log-probabilities", [a.scoring for a, _ in ways], [b.scoring for _, b in ways], None),
        (f"{words}: with gradients", [a.training for a, _ in ways], [b.training for _, b in ways], None),
    ]
    return [c for pair in [*pairs, *chunked_pairs] for c in _compared(*pair)]


def _compared(name: str, ours: list[float], theirs: list[float], goal: float | None) -> list[Check]:
    share = median([a / b for a, b in zip(ours, theirs, strict=True)])
    peak = check(f"peak memory of {name}", median(ours), "MiB", baseline=median(theirs))
    if goal is None:
        return [peak, check(f"peak memory of {name} against plain logits", share, "x")]
    return [peak, check(f"peak memory of {name} against the bare loop", share, "x", "<=", goal)]


def fresh(work: Callable[..., T], threads: int, *args: Any) -> T:
    """Call it in a new process with an allocator that keeps nothing."""
    environment = rank_environment("cpu", threads) | EXACT
    with (
        mock.patch.dict(os.environ, environment),
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process,
    ):
        return process.submit(work, *args).result()


@contextmanager
def peak() -> Iterator[Callable[[], float]]:
    """Forgets the process's highest resident memory so far; what it gives returns that since then (MiB), inside or after."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    yield lambda: status("VmHWM")


def status(field: str) -> float:
    """A figure of /proc/self/status in MiB (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def work_of(judged: Sequence[Judged]) -> Work:
    """Micro-batches to score, and an update of two optimizer steps, as `learner.group` makes them."""
    rows = [Row(j.trajectory.sequence_ids, len(j.trajectory.start.context_ids)) for j in judged]
    zeros = [np.zeros(row.scored, dtype=np.float32) for row in rows]
    scored = [Scored(j, zeros[i], j.trajectory.logprobs, None) for i, j in enumerate(judged)]
    prepared = compute_targets(scored, AlgorithmConfig(), 0)
    halves = np.array_split(np.arange(len(rows)), 2)

    def cut(members: Sequence[int]) -> Any:
        return assign_padded([len(rows[i].tokens) for i in members], BUDGET, 1, GPU_OVERHEAD)  # few large passes

    steps = [train_batches(cut(half), prepared, half.tolist(), "token-mean")[0] for half in halves]
    return Work(
        input_batches(cut(range(len(rows))), rows, False)[0], [StepPlan(step, 1e-6, 1e-6, 0.0, True) for step in steps]
    )


def measured(score: Callable[[], Any], update: Callable[[], Any]) -> Peaks:
    """Both passes of a process that has loaded its models."""
    score()  # what is made once: threads, kernels
    with peak() as scoring:
        idle = status("VmRSS")
        score()
        first = scoring() - idle
    update()
    with peak() as updating:
        update()
        return Peaks(first, updating() - idle)


def learner(folder: str, work: Work, threads: int) -> Peaks:
    """A rank of the learner."""
    worker = RankWorker(publish=id)
    worker.join(0, 1, ("127.0.0.1", free_port()), "cpu", 60.0)
    worker.load(folder, LearnerConfig(threads=threads), AlgorithmConfig(), "float32", 1.0, 0)
    return measured(lambda: worker.score(work.scored), lambda: worker.update(work.steps))


def bare(folder: str, work: Work, threads: int) -> Peaks:
    """The bare loop."""
    torch.set_num_threads(threads)
    loop = BareLoop(folder, "cpu", "float32")
    return measured(lambda: loop.score(work.scored), lambda: loop.update(work.steps))


def long_vocabulary(judged: Sequence[Judged]) -> MicroBatch:
    """One micro-batch of at most 2,048 tokens, padding included, with every token of its rows but the first scored."""
    rows = [Row(j.trajectory.sequence_ids, 1) for j in judged]
    widths = np.maximum.accumulate([len(row.tokens) for row in rows])
    count = int(np.searchsorted(widths * np.arange(1, len(rows) + 1), 2048, side="right"))
    return input_batches([[np.arange(count, dtype=np.int32)]], rows, False)[0][0]


def chunked(folder: str, batch: MicroBatch) -> Read:
    """As the learner reads them."""
    model = load_policy(folder, torch.float32)
    tokens, positions, targets = (torch.from_numpy(a.copy()) for a in (batch.tokens, batch.state_index, batch.targets))
    return read(lambda: model(tokens, positions, targets, 1.0)[0], model.model)


def plain(folder: str, batch: MicroBatch) -> Read:
    """By the logits of every token."""
    model = load_policy(folder, torch.float32).model
    tokens, positions, targets = (torch.from_numpy(a.copy()) for a in (batch.tokens, batch.state_index, batch.targets))

    def logprobs() -> torch.Tensor:
        logits = model(input_ids=tokens, use_cache=False).logits
        return torch.log_softmax(logits, -1).flatten(0, 1)[positions].gather(1, targets[:, None])[:, 0]

    return read(logprobs, model)


def read(logprobs: Callable[[], torch.Tensor], model: torch.nn.Module) -> Read:
    """Log-probabilities without gradients, then with."""
    with torch.no_grad(), peak() as scoring:
        idle = status("VmRSS")
        numbers = logprobs().numpy().copy()
        first = scoring() - idle
    with peak() as training:
        idle = status("VmRSS")
        logprobs().mean().backward()
        second = training() - idle
    head = model.get_output_embeddings().weight.grad  # type: ignore[operator]
    return Read(first, second, numbers, head.numpy())
