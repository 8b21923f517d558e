"""Does generation cost more than bare vLLM, and how long does a launch take? `python -m bench.rollout [--quick]`.

The same requests (tokens, seeds, log-probabilities) run alternately in a `RolloutPool` with one engine and in
`vllm.LLM.generate` in a bare process with as many threads. There are two loads: starts at the root, and replayed
starts, whose samples share a prefix. Both sides must produce the same tokens.

Bare vLLM has our engine's settings, environment (memory allocation, waiting threads) and block size (prefixes shorter
than the default of 128 tokens would not be shared), and flat log-probabilities. It runs in process and without
compilation, which is faster on CPU, and without chunked prefill, which crashes seeded requests there. The remaining
difference is the cost of pool, Ray and actor. Each round has new starts. The speed of a process depends on where its
memory is, and the first of two equal processes is slower here (4 to 10 %, bare vLLM against bare vLLM). So the sides
alternate in starting first, and figures are means, over several pairs of processes, of each process's median.

With `--model FOLDER` a pretrained model generates instead, in its own type. Otherwise the launch is measured on CPU,
too, as a user sees it: from `python launch.py train` (demo recipe, starter model already built) to the file of the
first responses, to one held-out problem. Its figure is the median of three launches.

With `--device cuda` both sides share the GPU, with a KV cache of CACHE bytes each and vLLM's settings for GPUs; with
`--quick` they start at the same time, without CUDA graphs and compilation, and no engine is killed.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import ray

from actors.handle import EngineSpec
from actors.pool import RolloutPool
from actors.vllm_setup import CPU_BLOCK, environment, stop_tokens
from bench.models import ROOT, Model, local_ray, measured_model
from bench.report import Check, check, command_line, device_name, result_name, write
from core.config import Device, ResolvedRollout
from core.errors import RetrospectError
from core.records import Sampling, Start
from core.seeds import derive
from core.weights import pack

GENERATED = 64  # tokens per sample
PROMPT, PREFIX, SAMPLES = 32, 96, 4
CONFIG = ResolvedRollout(
    actors=1, max_prompt_tokens=PROMPT, max_response_tokens=PREFIX + GENERATED, max_running=256, kv_cache_gib=1.0
)
CACHE = 4 * 2**30  # of each side's KV cache on a GPU: of a fixed size, so that neither measures the other's memory
LOADS = {"roots": 0, "replayed": PREFIX}  # tokens of the prefix
GOAL = 0.98
WORKER_NICENESS = 15  # of Ray's workers, and so of bare vLLM: other load on the machine slows both sides alike

Answer = tuple[float, list[list[int]]]  # seconds of a round, and the tokens of each sample
Bare = Callable[[Sequence[Start], Sampling], Answer]  # one round through bare vLLM


class Comparison(NamedTuple):
    """The figures of one load, for one pair of processes."""

    ours: float  # tokens/s
    bare: float  # tokens/s
    same: float  # share of samples with the same tokens


def starts_of(vocabulary: int, count: int, prefix: int, round_number: int = 0) -> list[Start]:
    """The starts of a round, with random contexts."""
    random = np.random.default_rng((prefix, round_number))
    contexts = random.integers(1, vocabulary, (count, PROMPT + prefix), dtype=np.int32)
    return [
        Start(f"{prefix}-{index}", f"problem-{index}", row[:PROMPT], row[PROMPT:], SAMPLES, seed=index)
        for index, row in enumerate(contexts)
    ]


def engine_config(device: Device, eager: bool) -> ResolvedRollout:
    """Our engine's configuration."""
    if device == "cpu":
        return CONFIG
    options = {"kv_cache_memory_bytes": CACHE, "enforce_eager": eager}
    return CONFIG.model_copy(update={"gpu_memory_share": 0.3, "engine_options": options})


def bare_options(device: Device, eager: bool) -> dict[str, Any]:
    """The same for bare vLLM."""
    if device == "cuda":
        cache = {"kv_cache_memory_bytes": CACHE, "gpu_memory_utilization": 0.3}
        return {**cache, "enforce_eager": eager, "async_scheduling": False}
    return {
        "enforce_eager": True,
        "kv_cache_memory_bytes": int(CONFIG.kv_cache_gib * 2**30),
        "block_size": CPU_BLOCK,
        "enable_chunked_prefill": False,  # with it a seeded request may crash, see actors/vllm_setup.py
    }


@cache
def bare_engine(model: Model, device: Device, eager: bool) -> Any:
    """vLLM, loaded once in the bare process."""
    from vllm import LLM

    os.nice(WORKER_NICENESS)
    return LLM(
        model=model.path,
        dtype=model.dtype,
        max_model_len=CONFIG.max_prompt_tokens + CONFIG.max_response_tokens,
        max_num_seqs=CONFIG.max_running,
        logprobs_mode="processed_logprobs",
        distributed_executor_backend="uni",
        skip_tokenizer_init=True,
        **bare_options(device, eager),
    )


def answer_bare(model: Model, device: Device, eager: bool, starts: Sequence[Start], sampling: Sampling) -> Answer:
    """One round in the bare process, with the seeds and budgets of our engine."""
    from vllm import SamplingParams, TokensPrompt

    common: dict[str, Any] = {"logprobs": 0, "flat_logprobs": True, "detokenize": False}
    common["stop_token_ids"] = stop_tokens(model.path)
    samples = [(start, derive(start.seed, sample)) for start in starts for sample in range(start.samples)]
    contexts = [start.context_ids.tolist() for start, _ in samples]
    engine, begun = bare_engine(model, device, eager), time.perf_counter()
    prompts = [TokensPrompt(prompt_token_ids=context) for context in contexts]
    params = [
        SamplingParams(seed=seed, max_tokens=sampling.max_response_tokens - len(start.prefix_ids), **common)
        for start, seed in samples
    ]
    outputs = engine.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - begun
    return seconds, [list(output.outputs[0].token_ids) for output in outputs]


def ask_pool(pool: RolloutPool, starts: Sequence[Start], sampling: Sampling) -> Answer:
    """One round through our pool."""
    begun = time.perf_counter()
    trajectories = pool.generate(starts, sampling)
    return time.perf_counter() - begun, [one.tokens.tolist() for one in trajectories]


def compare(pool: RolloutPool, bare: Bare, vocabulary: int, prefix: int, count: int, rounds: int) -> Comparison:
    """Run one load alternately on both sides. The first round only warms up and compares the tokens."""
    sampling = Sampling(1.0, 1.0, prefix + GENERATED)
    sides = (partial(ask_pool, pool), bare)
    rates: tuple[list[float], list[float]] = ([], [])
    same = 0.0
    for number in range(rounds + 1):
        starts, tokens = starts_of(vocabulary, count, prefix, number), {}
        for side in (0, 1) if number % 2 else (1, 0):
            seconds, tokens[side] = sides[side](starts, sampling)
            if number:
                rates[side].append(sum(map(len, tokens[side])) / seconds)
        if not number:
            same = fmean(a == b for a, b in zip(tokens[0], tokens[1], strict=True))
    return Comparison(median(rates[0]), median(rates[1]), same)


def compared(name: str, samples: int, found: Sequence[Comparison]) -> list[Check]:
    """The checks of one load."""
    ours, bare = fmean(one.ours for one in found), fmean(one.bare for one in found)
    same = min(one.same for one in found)
    return [
        check(f"{name}: pool, {samples} samples", ours, "tokens/s", baseline=bare),
        check(f"{name}: pool / bare vllm.LLM.generate", ours / bare, "ratio", ">=", GOAL, baseline=1.0),
        check(f"{name}: share of samples with the same tokens as bare vLLM", same, "share", ">=", 1.0),
    ]


def restart(pool: RolloutPool, model: Model) -> float:
    """Seconds from the death of the engine to the first token of its successor, which loads current weights."""
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(model.path, dtype=model.dtype)
    pool.load_weights(pack(loaded.named_parameters(), 1, ray.put))
    begun = time.perf_counter()
    os.kill(pool.pids()[0], signal.SIGKILL)
    pool.generate(starts_of(model.vocabulary, 1, 0), Sampling(1.0, 1.0, 1))
    return time.perf_counter() - begun


def launch() -> float:
    """Seconds from the start of `launch.py train` to its first responses."""
    from bench.demo import recipe

    with tempfile.TemporaryDirectory() as folder:
        fields = [
            "--config",
            "configs/arithmetic.yaml",
            "--run.root",
            folder,
            "--run.name",
            "launch",
            "--model.path",
            recipe({}).model.path,
        ]
        fields += ["--task.eval_problems", "1", "--cluster.address", "local"]
        first = Path(folder) / "launch" / "evaluations.jsonl"
        begun = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "launch.py", "train", *fields], cwd=ROOT, stdout=subprocess.DEVNULL, text=True
        )
        while not first.exists() and process.poll() is None:
            time.sleep(0.02)
        seconds = time.perf_counter() - begun
        assert first.exists(), "the run ended before its first responses; see its output above"
        process.terminate()
        process.wait(timeout=120)
    return seconds


class Sides(NamedTuple):
    """How both sides are started."""

    model: Model
    device: Device
    quick: bool

    @property
    def eager(self) -> bool:
        """On a GPU: without CUDA graphs and compilation, which take most of a minute."""
        return self.quick

    @property
    def at_once(self) -> bool:
        """Whether both start at the same time."""
        return self.quick and self.device == "cuda"


@contextmanager
def bare_process(sides: Sides) -> Iterator[Bare]:
    """Start bare vLLM in its own process, and wait until it is ready, unless both sides start at once."""
    arguments = (sides.model, sides.device, sides.eager)
    with ProcessPoolExecutor(1, get_context("spawn"), bare_engine, arguments) as process:
        with patch.dict(os.environ, environment(sides.device, CONFIG.threads)):  # as our engine's process has it
            ready = process.submit(int)
        if not sides.at_once:
            ready.result()
        yield lambda starts, sampling: process.submit(answer_bare, *arguments, starts, sampling).result()


@contextmanager
def rollout_pool(sides: Sides) -> Iterator[tuple[RolloutPool, float]]:
    """A pool with one engine, and the seconds that it took to its first token."""
    begun, (model, device, _) = time.perf_counter(), sides
    config = engine_config(device, sides.eager)
    spec = EngineSpec(model.path, config, model.dtype, device, seed=0, cpus=1.0, gpus=0.5 * (device == "cuda"))
    with closing(RolloutPool(spec)) as pool:
        pool.generate(starts_of(model.vocabulary, 1, 0), Sampling(1.0, 1.0, 1))
        yield pool, time.perf_counter() - begun


@contextmanager
def both_sides(sides: Sides, bare_first: bool) -> Iterator[tuple[RolloutPool, Bare, float]]:
    """Pool, bare process, and the seconds that the pool took to its first token."""
    with ExitStack() as stack:
        if bare_first:
            bare = stack.enter_context(bare_process(sides))
        pool, first = stack.enter_context(rollout_pool(sides))
        if not bare_first:
            bare = stack.enter_context(bare_process(sides))
        print(f"the engine's first token came after {first:.1f} s", flush=True)
        yield pool, bare, first


def generation(sides: Sides, pairs: int, rounds: int, count: int) -> list[Check]:
    """Both loads with a model, and how soon its engine generates."""
    found: dict[str, list[Comparison]] = {name: [] for name in LOADS}
    firsts, restarts, words = [], [], sides.model.vocabulary
    for number in range(pairs):
        with both_sides(sides, bare_first=sides.at_once or number % 2 == 1) as (pool, bare, first):
            firsts.append(first)
            for name, prefix in LOADS.items():
                found[name].append(one := compare(pool, bare, words, prefix, count, rounds))
                print(f"{name}: {one.ours:,.0f} tokens/s, bare {one.bare:,.0f}", flush=True)
            if not sides.at_once:
                restarts.append(restart(pool, sides.model))
    checks = [item for name in LOADS for item in compared(name, count * SAMPLES, found[name])]
    checks.append(check("launch of an engine to its first token", median(firsts), "s", "<=", 30.0))
    if restarts:
        name = "death of an engine to its successor's first token"
        checks.append(check(name, median(restarts), "s", "<=", 30.0))
    return checks


def main(quick: bool, device: Device, folder: str | None) -> None:
    """Measure and write bench/results/rollout*.json; `folder`: of a pretrained model. Raises ClusterError."""
    pairs, rounds = (2, 3) if quick else (6, 3)
    if device == "cuda":
        pairs = 1 if quick else 2
    settings: dict[str, object] = {"device": device_name(device), "threads": CONFIG.threads}
    settings |= {"processes of each side": pairs, "rounds": rounds}
    launched = [launch() for _ in range(1 if quick else 3)] if folder is None and device == "cpu" else []
    many = 64 if folder is None or device == "cuda" else 16
    with measured_model(folder) as model, local_ray():
        checks = generation(Sides(model, device, quick), pairs, rounds, many // 2 if quick else many)
        settings = {"model": model.title, **settings}
    if launched:
        checks.append(check("launch.py train: first responses after", median(launched), "s", "<=", 30.0))
    write(result_name("rollout", device, folder is not None), checks, settings, quick=quick)


if __name__ == "__main__":
    parser = command_line(__doc__, device=True)
    parser.add_argument("--model", help="the folder of a pretrained model, which is measured instead")
    given = parser.parse_args()
    try:
        main(given.quick, given.device, given.model)
    except RetrospectError as error:
        sys.exit(f"error: {error}")
