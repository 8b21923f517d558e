"""Rollouts against bare vLLM: `python -m bench.rollout [--quick]`.

The same requests (same tokens, seeds, log-probabilities asked for) go in turn through `RolloutPool` with one actor and
through `vllm.LLM.generate` in a bare process beside it, with the same threads. Two loads: roots, and replayed states
whose samples share a prefix. Bare vLLM runs in process and without compilation too - the faster setting on CPU - and,
like ours, without chunked prefill, which crashes seeded requests there, with the block size that ours has (its own, 128, would
share no prefix as short as these). Every round has starts of its own, so that what is shared is shared within a round, as in
training. Medians of alternating rounds after one to warm up, their mean over several processes of each side, because how memory happens to
lie makes a process faster or slower for as long as it lives; they start in turns, because of two alike that live side by side the
one that was there first is the slower one here (by 4 to 10 %, bare vLLM beside bare vLLM). Both must produce the same tokens. Both give log-probabilities
as flat arrays, and both processes have the same environment from their beginning, that of our engines (memory allocation, how threads wait): what
is left to see is the cost of pool, Ray and actor. Where the time goes is measured on both sides: inside vLLM's steps, beside them in the engine, outside.

The launch is that of a user: from the start of the process `python launch.py train` (demo recipe, starter model built before) to
the file of the first responses, which are generated, judged and written down before training; one held-out problem, so that
little follows the first token. Medians of three launches, and of one restart per process.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

from bench.report import Check, check, median, write
from core.config import RolloutConfig
from core.records import Start
from core.sampling import Sampling
from core.seeds import derive
from core.weights import pack

ROOT = Path(__file__).parents[1]
VOCABULARY = 2048
GENERATED = 64  # tokens per sample
PROMPT, PREFIX, SAMPLES = 32, 96, 4
CONFIG = RolloutConfig(
    actors=1, max_prompt_tokens=PROMPT, max_response_tokens=PREFIX + GENERATED, max_running=256, kv_cache_gib=1.0
)
GOAL = 0.97
WORKER_NICENESS = 15
"""Ray's default for its workers; bare vLLM gets the same, so that other load on the machine hits both alike."""


class Took(NamedTuple):
    """Seconds of one round."""

    whole: float
    engine: float  # of these, in the engine's process, from the requests to the results
    steps: float  # of these, in vLLM's own steps


class Found(NamedTuple):
    """What was measured under one load, the medians of every process; ours first, then bare vLLM's."""

    rates: tuple[list[float], list[float]]  # tokens/s
    took: tuple[list[Took], list[Took]]
    same: list[float]  # per pair of processes: share of samples with the same tokens


Request = tuple[list[int], int, int]
"""Context, seed, budget: one sample as bare vLLM gets it."""


def build_model(directory: Path) -> Path:
    """A random Qwen2 of 0.8 M parameters: width 128, 4 layers."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        eos_token_id=0,
        bos_token_id=None,
    )
    Qwen2ForCausalLM(config).save_pretrained(directory)
    return directory


def starts_of(count: int, prefix: int, round_number: int = 0) -> list[Start]:
    """Starts of a round with random contexts; budget and prefix leave GENERATED tokens."""
    random = np.random.default_rng((prefix, round_number))
    contexts = random.integers(1, VOCABULARY, (count, PROMPT + prefix), dtype=np.int32)
    return [
        Start(f"{prefix}-{index}", f"problem-{index}", row[:PROMPT], row[PROMPT:], SAMPLES, seed=index)
        for index, row in enumerate(contexts)
    ]


def requests_of(starts: Sequence[Start], sampling: Sampling) -> list[Request]:
    """The same samples for bare vLLM."""
    return [
        (start.context_ids.tolist(), derive(start.seed, sample), sampling.max_response_tokens - len(start.prefix_ids))
        for start in starts
        for sample in range(start.samples)
    ]


def timed(owner: Any, name: str, spent: dict[str, float]) -> None:
    """From now on, add up in `spent` the seconds inside a method of `owner`."""
    method = getattr(owner, name)
    spent[name] = 0.0

    def call(*args: Any, **named: Any) -> Any:
        begun = time.perf_counter()
        try:
            return method(*args, **named)
        finally:
            spent[name] += time.perf_counter() - begun

    setattr(owner, name, call)


def watch(actor: Any) -> None:
    """In the rollout actor: time vLLM's steps, and all that our engine does."""
    actor.spent = {}
    timed(actor._engine._engine, "step", actor.spent)
    timed(actor._engine, "add", actor.spent)
    timed(actor._engine, "run", actor.spent)


def read(actor: Any) -> tuple[float, float]:
    """In the rollout actor: seconds in our engine and in vLLM's steps, since the last call."""
    spent = dict(actor.spent)
    actor.spent.update(dict.fromkeys(spent, 0.0))
    return spent["add"] + spent["run"], spent["step"]


def in_actor(function: Callable[[Any], Any]) -> Any:
    """What `function` of the rollout actor returns there."""
    import ray

    return ray.get(ray.get_actor("rollout-0").__ray_call__.remote(function))


def serve_bare(model: str, connection: Connection) -> None:
    """The bare process: loads vLLM, then answers lists of requests with (`Took`, tokens)."""
    from actors.vllm_setup import CPU_BLOCK, stop_tokens

    os.nice(WORKER_NICENESS)
    from vllm import LLM, SamplingParams, TokensPrompt

    engine = LLM(
        model=model,
        dtype="float32",
        max_model_len=CONFIG.max_prompt_tokens + CONFIG.max_response_tokens,
        max_num_seqs=CONFIG.max_running,
        enforce_eager=True,
        kv_cache_memory_bytes=int(CONFIG.kv_cache_gib * 2**30),
        logprobs_mode="processed_logprobs",
        distributed_executor_backend="uni",
        skip_tokenizer_init=True,
        block_size=CPU_BLOCK,
        enable_chunked_prefill=False,  # with it a seeded request may crash, see actors/vllm_setup.py
    )
    stop, spent = stop_tokens(model), dict[str, float]()
    timed(engine.llm_engine, "step", spent)
    connection.send(None)
    while requests := connection.recv():
        spent["step"] = 0.0
        begun = time.perf_counter()
        prompts = [TokensPrompt(prompt_token_ids=context) for context, _, _ in requests]
        params = [
            SamplingParams(
                seed=seed, max_tokens=budget, logprobs=0, flat_logprobs=True, stop_token_ids=stop, detokenize=False
            )
            for _, seed, budget in requests
        ]
        outputs = engine.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - begun
        took = Took(seconds, seconds, spent["step"])
        connection.send((took, [list(output.outputs[0].token_ids) for output in outputs]))


def ours(pool: Any, starts: Sequence[Start], sampling: Sampling) -> tuple[Took, list[list[int]]]:
    """Seconds and tokens of the pool."""
    in_actor(read)
    begun = time.perf_counter()
    trajectories = pool.generate(starts, sampling)
    seconds = time.perf_counter() - begun
    return Took(seconds, *in_actor(read)), [one.tokens.tolist() for one in trajectories]


def theirs(bare: Connection, starts: Sequence[Start], sampling: Sampling) -> tuple[Took, list[list[int]]]:
    """Seconds and tokens of bare vLLM."""
    bare.send(requests_of(starts, sampling))
    took, tokens = bare.recv()
    return took, tokens


def compare(pool: Any, bare: Connection, prefix: int, count: int, rounds: int, found: Found) -> None:
    """Take turns on one load, who is first alternating; the first round warms up and is checked for equal tokens."""
    sampling = Sampling(1.0, 1.0, prefix + GENERATED)
    sides = (partial(ours, pool), partial(theirs, bare))
    spent: tuple[list[Took], list[Took]] = ([], [])
    rates: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        starts, tokens = starts_of(count, prefix, number), {}
        for side in (0, 1) if number % 2 else (1, 0):
            took, tokens[side] = sides[side](starts, sampling)
            if number:
                spent[side].append(took)
                rates[side].append(sum(map(len, tokens[side])) / took.whole)
        if not number:
            found.same.append(sum(a == b for a, b in zip(tokens[0], tokens[1], strict=True)) / len(tokens[1]))
    for side in (0, 1):
        found.rates[side].append(median(rates[side]))
        found.took[side].append(Took(*map(median, zip(*spent[side], strict=True))))


def checks_of(name: str, samples: int, found: Found) -> list[Check]:
    """One load."""
    mine, base = map(fmean, found.rates)
    return [
        check(f"{name}: pool, {samples} samples", mine, "tokens/s", baseline=base),
        check(f"{name}: pool / bare vllm.LLM.generate", mine / base, "ratio", ">=", GOAL, baseline=1.0),
        check(f"{name}: share of samples with the same tokens as bare vLLM", min(found.same), "share", ">=", 1.0),
        *where(name, *found.took),
    ]


def where(name: str, mine: Sequence[Took], base: Sequence[Took]) -> list[Check]:
    """What the seconds of a round went to, on both sides."""
    parts: dict[str, Callable[[Took], float]] = {
        "in vLLM's steps": lambda took: took.steps,
        "in the engine beside them (requests in, results out)": lambda took: took.engine - took.steps,
        "outside the engine (pool, Ray, waiting for each other)": lambda took: took.whole - took.engine,
    }
    return [
        check(f"{name}: {part}", fmean(map(of, mine)), "s", baseline=fmean(map(of, base))) for part, of in parts.items()
    ]


def restart(pool: Any, model: str) -> float:
    """Seconds from the death of the one engine to the first token of its successor, which must load the current weights."""
    import ray
    from transformers import Qwen2ForCausalLM

    pool.load_weights(pack(Qwen2ForCausalLM.from_pretrained(model).named_parameters(), 1, ray.put))
    process = ray.get(ray.get_actor("rollout-0").__ray_call__.remote(lambda _: os.getpid()))
    begun = time.perf_counter()
    os.kill(process, signal.SIGKILL)
    pool.generate(starts_of(1, 0), Sampling(1.0, 1.0, 1))
    return time.perf_counter() - begun


def launch(folder: Path) -> dict[str, float]:
    """Seconds that `launch.py train` takes to its first responses, and to what it says on the way."""
    from core.load import load_config, override
    from tasks.starter import resolve_model

    fields = ["--run.root", str(folder), "--run.name", "launch", "--starter.cache", str(folder / "starters")]
    fields += ["--starter.steps", "20", "--task.eval_problems", "1", "--cluster.address", "local"]
    config = override(load_config(ROOT / "configs" / "demo.yaml"), fields)
    resolve_model(config.model.path, config.starter, config.task, config.run.seed)
    begun = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-u", "launch.py", "train", *fields], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    said = {}
    for line in process.stdout:
        said[line.split(":")[0].split(" ")[0]] = time.perf_counter() - begun
        if line.startswith("starting engines"):
            break
    first = folder / "launch" / "evaluations.jsonl"
    while not first.exists() and process.poll() is None:
        time.sleep(0.02)
    seconds = time.perf_counter() - begun
    assert first.exists(), "the run has ended before its first responses; see its output above"
    process.terminate()
    process.communicate(timeout=120)
    return {
        "model and data checked after": said["data"],
        "Ray connected after": said["starting"],
        "first responses after": seconds,
    }


def launches(count: int) -> list[Check]:
    """Medians of so many launches."""
    found = []
    for _ in range(count):
        with tempfile.TemporaryDirectory() as folder:
            found.append(launch(Path(folder)))
    *others, last = {name: median([one[name] for one in found]) for name in found[0]}.items()
    return [
        *(check(f"launch.py train: {name}", seconds, "s") for name, seconds in others),
        check(f"launch.py train: {last[0]}", last[1], "s", "<=", 30.0),
    ]


@contextmanager
def bare_process(model: str) -> Iterator[Connection]:
    """Bare vLLM in a process of its own, ready."""
    from actors.vllm_setup import environment

    context = multiprocessing.get_context("spawn")
    connection, end = context.Pipe()
    server = context.Process(target=serve_bare, args=(model, end), daemon=True)
    with patch.dict(os.environ, environment("cpu", CONFIG.threads)):  # as of our engine's process
        server.start()
    end.close()  # so that `recv` fails when the process dies
    connection.recv()
    yield connection
    connection.send([])
    server.join()


@contextmanager
def pool_of(model: str) -> Iterator[tuple[Any, float]]:
    """A pool with one engine, and the seconds that it took to its first token."""
    from actors.pool import RolloutPool

    begun = time.perf_counter()
    with closing(RolloutPool(model, CONFIG, dtype="float32", device="cpu", seed=0, cpus=1.0)) as pool:
        pool.generate(starts_of(1, 0), Sampling(1.0, 1.0, 1))
        first = time.perf_counter() - begun
        in_actor(watch)
        yield pool, first


@contextmanager
def pair(model: str, bare_first: bool) -> Iterator[tuple[Any, Connection, float]]:
    """A pool with one engine, a bare process beside it, and the seconds that the engine took to its first token."""
    with ExitStack() as stack:
        if bare_first:
            bare = stack.enter_context(bare_process(model))
        pool, first = stack.enter_context(pool_of(model))
        if not bare_first:
            bare = stack.enter_context(bare_process(model))
        yield pool, bare, first


def main(quick: bool) -> None:
    """Measure and write bench/results/rollout.json."""
    import ray

    pairs, rounds, count = (2, 3, 32) if quick else (6, 3, 64)
    loads = {"roots": 0, "replayed": PREFIX}
    found = {name: Found(([], []), ([], []), []) for name in loads}
    firsts, restarts = [], []
    launched = launches(1 if quick else 3)  # first: nothing else runs then
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    with tempfile.TemporaryDirectory() as folder:
        model = str(build_model(Path(folder)))
        for number in range(pairs):
            with pair(model, bare_first=number % 2 == 1) as (pool, bare, first):
                firsts.append(first)
                for name, prefix in loads.items():
                    compare(pool, bare, prefix, count, rounds, found[name])
                restarts.append(restart(pool, model))
    ray.shutdown()
    checks = [
        *(item for name in loads for item in checks_of(name, count * SAMPLES, found[name])),
        *launched,
        check("launch of an engine to its first token", median(firsts), "s", "<=", 30.0),
        check("death of an engine to its successor's first token", median(restarts), "s", "<=", 30.0),
    ]
    settings: dict[str, str | int | float] = {"model": "Qwen2, 0.8 M", "threads": CONFIG.threads}
    write("rollout", checks, {**settings, "processes of each side": pairs, "rounds": rounds}, quick=quick)


if __name__ == "__main__":
    main("--quick" in sys.argv[1:])
