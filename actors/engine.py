"""A vLLM engine inside this process: token in, token out, stepped by one thread.

Made by `actors/engines.py`; what it promises stands in `actors/base.py`. vLLM turns `torch.set_num_threads` off in its process
and seeds torch anew: whoever shares the process (`trainer/local.py`) sets its threads before.
"""

import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from actors.flat import Continuation, FlatBatch, Job, pack
from actors.options import STRUCTURED
from core.config import Device, RolloutConfig
from core.errors import ConfigError, ModelError, first_line
from core.records import Finish, FloatArray, IntArray
from core.sampling import Sampling
from core.seeds import derive
from core.startup import uncollected, waiting
from core.weights import Acknowledgement, Weights, digest

CACHE = Path(__file__).parents[1] / ".cache" / "vllm"
CPU_BLOCK = 32
"""Tokens per block of the KV cache on CPU. vLLM's default there, 128, would share no prefix shorter than that; its CPU
kernels want a multiple of 32."""
CPU_STEP_TOKENS = 4096
"""Tokens of one engine step on CPU, at least: vLLM's own default there."""
KEEP_FREED_MEMORY = {
    "MALLOC_MMAP_MAX_": "0",  # large blocks come from the heap, too,
    "MALLOC_TRIM_THRESHOLD_": str(2**40),  # whose end is never given back,
    "MALLOC_TOP_PAD_": str(2**26),  # and which grows in steps of 64 MB
}
"""Read by glibc when a process starts (mallopt(3)). By default it maps every block of more than 32 MB anew, and the system clears each of
its pages again: of new weights' way into a layer that was a third of the time. Other C libraries ignore this."""
UNREADABLE = ("llvmlite.binding.ffi",)
"""vLLM 0.32 looks through every imported module for Triton kernels and stumbles over this one of numba's, whose `lib` answers any
attribute, `__dict__` too. Both are in one process with `--local` only."""
WEIGHTS = "weights"
SLEEPERS = (WEIGHTS, "kv_cache")
"""vLLM's names of what sleeps."""
FINISHES = {"stop": Finish.STOP, "length": Finish.LENGTH, "repetition": Finish.REPETITION}


def environment(device: str, threads: int) -> dict[str, str]:
    """Variables that must be set in the engine's process before torch and vLLM are imported."""
    common = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CACHE_ROOT": os.environ.get("VLLM_CACHE_ROOT", str(CACHE)),
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if device != "cpu":
        return common
    return common | {
        **KEEP_FREED_MEMORY,
        **waiting(),
        "OMP_NUM_THREADS": str(threads),
        "CUDA_VISIBLE_DEVICES": "",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "TORCH_COMPILE_DISABLE": "1",  # compiling the sampler costs the first batch 7-30 s and gains nothing on CPU
    }


@contextmanager
def hidden(*modules: str) -> Iterator[None]:
    """Inside the block these modules count as not imported."""
    kept = {name: sys.modules.pop(name) for name in modules if name in sys.modules}
    try:
        yield
    finally:
        sys.modules.update(kept)


class VllmEngine:
    """One engine and what is in flight in it.

    Raises ModelError when the model directory cannot be used.
    """

    def __init__(
        self,
        model_path: str,
        config: RolloutConfig,
        *,
        dtype: str,
        device: Device,
        seed: int,
        name: str = "engine",
    ) -> None:
        os.environ.update(environment(device, config.threads))
        with uncollected():
            from vllm.engine.arg_utils import EngineArgs
            from vllm.exceptions import VLLMError
            from vllm.usage.usage_lib import UsageContext
            from vllm.v1.engine.llm_engine import LLMEngine

        self.name = name
        self._stop = stop_tokens(model_path)
        self._extra = sampling_extras(config.sampling_options)
        self._sleeps = config.sleep and device != "cpu"
        self._asleep = set[str]()  # what is not on the GPU
        try:
            arguments = EngineArgs(
                model=model_path,
                dtype=dtype,  # type: ignore[arg-type]
                seed=seed % 2**32,
                max_model_len=config.max_prompt_tokens + config.max_response_tokens,
                max_num_seqs=config.max_running,
                **(_placement(config, device) | config.engine_options),
            )
            with hidden(*UNREADABLE):
                self._engine = LLMEngine.from_engine_args(arguments, usage_context=UsageContext.LLM_CLASS)
        except (OSError, ValueError, RuntimeError, TypeError, VLLMError) as error:
            named = f" with {sorted(config.engine_options)} of rollout.engine_options" if config.engine_options else ""
            raise ModelError(f"model.path = {model_path}: vLLM cannot load it{named}: {first_line(error)}") from error
        verify(self._extra, self._engine)
        self._engine.set_weight_version("0")
        self._done: list[Continuation] = []
        self._scores: dict[str, FloatArray] = {}

    @property
    def unfinished(self) -> int:
        """Samples in flight."""
        return int(self._engine.get_num_unfinished_requests())

    @property
    def version(self) -> int:
        """Version of the weights in use; 0 for those of the model directory."""
        return int(self._engine.get_weight_version())

    def add(self, jobs: Iterable[Job], sampling: Sampling) -> None:
        """Take up the samples of `jobs`; sample i of a start draws with `derive(start.seed, i)` and nothing else.

        Every sample is a request of its own (vLLM would seed the children of an `n`-request with seed, seed + 1, ...);
        samples of one start share its context through the prefix cache. With temperature 0 tokens are the most likely
        ones and the log-probabilities are the model's at temperature 1.
        """
        self._wake(*SLEEPERS)
        for job in jobs:
            start = job.start
            context = start.context_ids.tolist()
            budget = sampling.max_response_tokens - len(start.prefix_ids)
            for sample in job.samples:
                params = self._sampling_params(sampling, budget, derive(start.seed, sample))
                self._request(f"{sample}/{start.id}", context, params)

    def step(self) -> None:
        """One engine step; what it finishes is kept until `collect`."""
        for output in self._engine.step():
            if output.finished and output.prompt_logprobs is not None:
                self._scores[output.request_id] = _score(output)
            elif output.finished:
                self._done.append(_continuation(output))

    def collect(self) -> FlatBatch:
        """What has finished since the last call."""
        batch = pack(self._done)
        self._done = []
        return batch

    def run(self, seconds: float, refill: int = 0) -> FlatBatch:
        """Step for about `seconds`, at least once, or until only `refill` samples are left in flight; returns what finished."""
        end = time.monotonic() + seconds
        while self.unfinished > refill:
            self.step()
            if time.monotonic() >= end:
                break
        self._rest()
        return self.collect()

    def generate(self, jobs: Iterable[Job], sampling: Sampling) -> FlatBatch:
        """All samples of `jobs`, to their ends."""
        self.add(jobs, sampling)
        return self.run(float("inf"))

    def abort(self) -> None:
        """Drop everything that is in flight or finished and not collected."""
        self._engine.abort_request(list(self._engine.output_processor.request_states), internal=True)
        self._done = []

    def load_weights(self, weights: Weights) -> Acknowledgement:
        """Swap the weights between two steps.

        Samples in flight go on with the new weights: their context is read again by them, so that every later token is
        drawn from exactly the new policy. The prefix cache is emptied (vLLM does not do that by itself). Raises
        WeightError when a parameter is missing.
        """
        self._wake(WEIGHTS)
        with ThreadPoolExecutor(1) as hashing:  # beside the copying
            received = hashing.submit(digest, weights)
            self._engine.collective_rpc("start_weight_update")
            self._engine.collective_rpc("update_weights", kwargs={"update_info": {"weights": weights}})
            self._engine.collective_rpc("finish_weight_update")
        self._engine.reset_prefix_cache(reset_running_requests=True)
        self._engine.set_weight_version(str(weights.manifest.version))
        return Acknowledgement(self.name, weights.manifest.version, received.result())

    def sequence_logprobs(self, sequences: Sequence[IntArray]) -> list[FloatArray]:
        """[sequence][T - 1]: log-probability of tokens 1..T-1 at temperature 1, for T >= 2.

        The first T - 1 tokens are a prompt whose log-probabilities are asked for; the last token's is that of the one
        token generated after it. So a sequence may be as long as the engine's context.
        """
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self._wake(*SLEEPERS)
        for index, sequence in enumerate(sequences):
            ids = sequence.tolist()
            params = SamplingParams(
                temperature=1.0,
                max_tokens=1,
                prompt_logprobs=0,
                logprob_token_ids=[ids[-1]],
                flat_logprobs=True,
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
            self._request(f"score/{index}", ids[:-1], params)
        while len(self._scores) < len(sequences):
            self.step()
        scores = [self._scores[f"score/{index}"] for index in range(len(sequences))]
        self._scores = {}
        self._rest()
        return scores

    def _rest(self) -> None:
        """With nothing in flight, leave the GPU's memory to a learner that shares it, until weights or cache are needed again."""
        if self._sleeps and not self._asleep and not self.unfinished:
            self._engine.sleep(level=1)  # level 2 would lose weights that no broadcast has renewed yet
            self._asleep = set(SLEEPERS)

    def _wake(self, *sleepers: str) -> None:
        """Bring these back. New weights need no cache: beside the learner's copy of them there may be no room for it."""
        for tag in [tag for tag in sleepers if tag in self._asleep]:
            self._engine.wake_up([tag])
            self._asleep.remove(tag)

    def _request(self, request_id: str, context: list[int], params: Any) -> None:
        from vllm.inputs.engine import tokens_input

        self._engine.add_request(request_id, tokens_input(context), params)

    def _sampling_params(self, sampling: Sampling, budget: int, seed: int) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        greedy = sampling.temperature == 0
        extra = self._extra
        if "min_tokens" in extra:  # vLLM refuses more than there is room for after a prefix
            extra = extra | {"min_tokens": min(extra["min_tokens"], budget)}
        return SamplingParams(
            temperature=sampling.temperature,
            top_p=1.0 if greedy else sampling.top_p,
            seed=None if greedy else seed,
            max_tokens=budget,
            stop_token_ids=self._stop,
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            repetition_detection=_repetition(sampling),
            **extra,
        )


def sampling_extras(options: Mapping[str, Any]) -> dict[str, Any]:
    """`rollout.sampling_options` as vLLM's types. Raises ConfigError for a bad value."""
    if not options:
        return {}
    from pydantic import TypeAdapter
    from vllm import SamplingParams
    from vllm.exceptions import VLLMError

    try:
        checked = TypeAdapter(SamplingParams).validate_python(dict(options))
    except (ValueError, VLLMError) as error:  # pydantic's ValidationError is a ValueError, vLLM's is not
        raise ConfigError(f"rollout.sampling_options: {first_line(error)}") from error
    return {name: getattr(checked, name) for name in options}


def verify(extras: Mapping[str, Any], engine: Any) -> None:
    """Raises ConfigError for sampling options that `engine` refuses: later, the starts that were given to it would be blamed."""
    from vllm import SamplingParams
    from vllm.exceptions import VLLMError

    config = engine.vllm_config
    try:
        SamplingParams(**extras).verify(
            config.model_config, config.speculative_config, config.structured_outputs_config, engine.tokenizer
        )
    except (ValueError, VLLMError) as error:
        raise ConfigError(f"rollout.sampling_options = {sorted(extras)}: {first_line(error)}") from error


def stop_tokens(model_path: str) -> list[int]:
    """End-of-sequence tokens of a checkpoint: those of its generation config and its config.

    Raises ModelError when it names none.
    """
    from transformers import AutoConfig, GenerationConfig

    found: set[int] = set()
    for source in (GenerationConfig, AutoConfig):
        try:
            ids = source.from_pretrained(model_path).eos_token_id
        except (OSError, ValueError):  # a checkpoint need not have a generation config
            continue
        found |= {ids} if isinstance(ids, int) else set(ids or ())
    if not found:
        raise ModelError(f"model.path = {model_path}: config.json is missing or has no eos_token_id; set it there")
    return sorted(found)


def _placement(config: RolloutConfig, device: str) -> dict[str, Any]:
    """Engine arguments that are the same for every model, and those that depend on the device."""
    from vllm.config import WeightTransferConfig

    import actors.transfer as transfer

    common = {
        "skip_tokenizer_init": STRUCTURED not in config.sampling_options,
        "generation_config": "vllm",  # else a checkpoint's own top_p, top_k, ... would change the distribution
        "logprobs_mode": "processed_logprobs",
        "enable_prefix_caching": True,
        "enable_sleep_mode": config.sleep and device != "cpu",
        "async_scheduling": False,  # a step in flight during a weight swap would get the wrong version
        "disable_log_stats": True,
        "tensor_parallel_size": config.tensor_parallel,
        "distributed_executor_backend": "uni" if config.tensor_parallel == 1 else "mp",
        "weight_transfer_config": WeightTransferConfig(backend=transfer.BACKEND),
        "worker_extension_cls": f"{transfer.__name__}.{transfer.WorkerExtension.__name__}",
    }
    if device == "cpu":
        context = config.max_prompt_tokens + config.max_response_tokens
        return common | {
            "enforce_eager": True,
            "kv_cache_memory_bytes": int(config.kv_cache_gib * 2**30),
            "block_size": CPU_BLOCK,
            # A context read in two steps crashes a seeded request on CPU (vLLM 0.32 takes back the number drawn in the
            # first step with `Generator.get_offset`, which CPU generators lack): read it whole or not yet.
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(CPU_STEP_TOKENS, context, config.max_running),
        }
    return common | {"gpu_memory_utilization": config.gpu_memory_share}


def _repetition(sampling: Sampling) -> Any:
    """vLLM's own detector, if it is asked for."""
    from vllm.sampling_params import RepetitionDetectionParams

    if sampling.repetition_tokens == 0:
        return None
    return RepetitionDetectionParams(max_pattern_size=sampling.repetition_tokens, min_count=sampling.repetition_times)


def _continuation(output: Any) -> Continuation:
    """The record of one finished request."""
    result = output.outputs[0]
    if result.finish_reason not in FINISHES:
        raise RuntimeError(
            f"vLLM gave up {output.request_id} after {len(result.token_ids)} tokens ({result.finish_reason}); with {STRUCTURED} it does so "
            f"where no token of the model's vocabulary fits the grammar"
        )
    if len(result.logprobs.logprobs) != len(result.token_ids):
        raise RuntimeError(
            f"vLLM gave {len(result.logprobs.logprobs)} log-probabilities for {len(result.token_ids)} tokens of {output.request_id}"
        )
    sample, start_id = output.request_id.split("/", 1)
    versions = np.full(len(result.token_ids), -1, dtype=np.int32)
    for span in result.weight_versions:
        versions[span.start : span.end] = int(span.version)
    if (versions < 0).any():
        raise RuntimeError(
            f"vLLM did not say which weights drew some tokens of {output.request_id}: {result.weight_versions}"
        )
    return Continuation(
        start_id=start_id,
        sample=int(sample),
        tokens=np.array(result.token_ids, dtype=np.int32),
        logprobs=np.array(result.logprobs.logprobs, dtype=np.float32),
        versions=versions,
        finish=FINISHES[result.finish_reason],
    )


def _score(output: Any) -> FloatArray:
    """[T - 1] from the log-probabilities of the first T - 1 tokens (the first has none) and of the asked last one."""
    last = output.outputs[0].logprobs
    asked = last.logprobs[-1]  # entry 0 is the token that was drawn, entry 1 the one that was asked for
    return np.array([*output.prompt_logprobs.logprobs, asked], dtype=np.float32)
