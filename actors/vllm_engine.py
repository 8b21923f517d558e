"""A vLLM engine inside this process: token in, token out, stepped by one thread. vLLM disables `torch.set_num_threads`
in its process and seeds torch again. `trainer/local.py` shares the process, so it sets its threads first."""

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from actors import vllm_setup as setup
from actors.jobs import Continuation, Engine, Job
from actors.options import STRUCTURED
from core.config import Device, ResolvedRollout
from core.errors import ModelError, first_line
from core.machine import largest
from core.records import Finish, FloatArray, IntArray
from core.startup import without_gc
from core.transport import alone
from core.weights import Acknowledgement, Weights, digest

WEIGHTS = "weights"
SLEEPERS = (WEIGHTS, "kv_cache")  # vLLM's names of what it can move off the GPU
FINISHES = {"stop": Finish.STOP, "length": Finish.LENGTH, "repetition": Finish.REPETITION}


class VllmEngine(Engine):
    """One engine and its samples in flight. Raises ModelError when the model directory cannot be used."""

    def __init__(
        self, model_path: str, config: ResolvedRollout, *, dtype: str, device: Device, seed: int, name: str = "engine"
    ) -> None:
        os.environ.update(setup.environment(device, config.threads))
        with without_gc():
            from vllm.engine.arg_utils import EngineArgs
            from vllm.exceptions import VLLMError
            from vllm.platforms import current_platform
            from vllm.usage.usage_lib import UsageContext
            from vllm.v1.engine.llm_engine import LLMEngine

        self.name = name
        self._stop = setup.stop_tokens(model_path)
        self._sleeps = config.sleep and device != "cpu"
        self._asleep = set[str]()  # of SLEEPERS: what is off the GPU
        try:
            if device == "cpu":
                setup.register_model_class(model_path)
            arguments = EngineArgs(
                model=model_path,
                dtype=dtype,  # type: ignore[arg-type]
                seed=seed % 2**32,
                max_model_len=config.max_prompt_tokens + config.max_response_tokens,
                max_num_seqs=config.max_running,
                **(setup.engine_arguments(config, device) | config.engine_options),
            )
            if config.tensor_parallel == 1:
                alone(str(current_platform.dist_backend))
            self._engine = LLMEngine.from_engine_args(arguments, usage_context=UsageContext.LLM_CLASS)
        except (OSError, ValueError, RuntimeError, TypeError, AssertionError, VLLMError) as error:
            named = f" with {sorted(config.engine_options)} of rollout.engine_options" if config.engine_options else ""
            raise ModelError(f"model.path = {model_path}: vLLM cannot load it{named}: {first_line(error)}") from error
        self._extra = setup.sampling_extras(config.sampling_options, config.max_response_tokens, self._engine)
        self._engine.set_weight_version("0")
        self._done: list[Continuation] = []
        self._scores: dict[str, FloatArray] = {}
        self.rest()  # a learner on the same GPU may work first

    @property
    def unfinished(self) -> int:
        """Samples in flight."""
        return int(self._engine.get_num_unfinished_requests())

    def add(self, jobs: Iterable[Job]) -> None:
        """Queue the samples of `jobs`; see `Engine.add`. Every sample is one request (vLLM would seed the children of
        an `n`-request with seed, seed + 1, ...). Samples of a start share its context through the prefix cache."""
        from vllm.inputs.engine import tokens_input

        for job in jobs:
            self._wake(*SLEEPERS)
            context = job.context
            for sample in job.samples:
                params = self._sampling_params(job, job.seed(sample))
                self._engine.add_request(f"{sample}/{job.start.id}", tokens_input(context), params)

    def step(self) -> None:
        """One engine step."""
        for output in self._engine.step():
            if output.finished and output.prompt_logprobs is not None:
                self._scores[output.request_id] = _score(output)
            elif output.finished:
                self._done.append(_continuation(output))

    def abort(self) -> None:
        """Drop everything that is in flight."""
        self._engine.abort_request(list(self._engine.output_processor.request_states), internal=True)
        self._done = []

    def load_weights(self, weights: Weights) -> Acknowledgement:
        """Swap the weights between two steps. Raises WeightError when a parameter is missing. Samples in flight are
        prefilled again, so later tokens are the new policy's; vLLM does not empty the prefix cache by itself."""
        self._wake(WEIGHTS)
        with ThreadPoolExecutor(1) as hashing:  # hashes the weights while vLLM copies them
            received = hashing.submit(digest, weights)
            self._engine.collective_rpc("start_weight_update")
            self._engine.collective_rpc("update_weights", kwargs={"update_info": {"weights": weights}})
            self._engine.collective_rpc("finish_weight_update")
        self._engine.reset_prefix_cache(reset_running_requests=True)
        self._engine.set_weight_version(str(weights.manifest.version))
        memory = largest(self._engine.collective_rpc("peak_memory"))
        return Acknowledgement(self.name, weights.manifest.version, received.result(), memory=memory)

    def sequence_logprobs(self, sequences: Sequence[IntArray]) -> list[FloatArray]:
        """See `Engine`. The last token is scored as a response, so a sequence may fill the context."""
        from vllm import SamplingParams
        from vllm.inputs.engine import tokens_input
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
            self._engine.add_request(f"score/{index}", tokens_input(ids[:-1]), params)
        while len(self._scores) < len(sequences):
            self.step()
        scores = [self._scores[f"score/{index}"] for index in range(len(sequences))]
        self._scores = {}
        self.rest()
        return scores

    def rest(self) -> None:
        """If nothing is in flight, forget the cached prefixes, and free the GPU's memory for a learner that shares it.
        In bfloat16 a token behind a cached prefix rounds differently. So a batch would depend on the evaluation before
        it, which a resumed run does not make."""
        if self.unfinished:
            return
        self._engine.reset_prefix_cache()
        if self._sleeps and not self._asleep:
            self._engine.sleep(level=1)  # level 2 would lose weights that no broadcast has renewed yet
            self._asleep = set(SLEEPERS)

    def close(self) -> None:
        """Do nothing: it has started no process, and it ends with this one."""

    def _wake(self, *sleepers: str) -> None:
        """Move these back to the GPU. (For new weights the cache stays off: it may not fit next to the learner's.)"""
        for tag in [tag for tag in sleepers if tag in self._asleep]:
            self._engine.wake_up([tag])
            self._asleep.remove(tag)

    def _sampling_params(self, job: Job, seed: int) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        sampling, budget = job.sampling, job.budget
        greedy = sampling.temperature == 0
        extra = self._extra
        if "min_tokens" in extra:  # vLLM refuses more than there is room for after a prefix
            extra = extra | {"min_tokens": min(extra["min_tokens"], budget)}
        return SamplingParams(
            temperature=sampling.temperature,
            top_p=1.0 if greedy else sampling.top_p,
            seed=None if greedy else seed,
            max_tokens=budget,
            stop_token_ids=[*self._stop, *job.calls],
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            **extra,
        )


def _continuation(output: Any) -> Continuation:
    result = output.outputs[0]
    if result.finish_reason not in FINISHES:
        raise RuntimeError(
            f"vLLM gave up {output.request_id} after {len(result.token_ids)} tokens ({result.finish_reason}); with "
            f"{STRUCTURED} it does so where no token of the model's vocabulary fits the grammar"
        )
    sample, start_id = output.request_id.split("/", 1)
    versions = [-1] * len(result.token_ids)
    for span in result.weight_versions:
        versions[span.start : span.end] = [int(span.version)] * (span.end - span.start)
    if -1 in versions:
        raise RuntimeError(f"vLLM names no weights for some tokens of {output.request_id}: {result.weight_versions}")
    return Continuation(
        start_id=start_id,
        sample=int(sample),
        tokens=list(result.token_ids),
        logprobs=list(result.logprobs.logprobs),
        versions=versions,
        finish=FINISHES[result.finish_reason],
    )


def _score(output: Any) -> FloatArray:
    """[T - 1] from the log-probabilities of the first T - 1 tokens (the first has none) and of the last one."""
    last = output.outputs[0].logprobs
    asked = last.logprobs[-1]  # entry 0 is the drawn token, entry 1 the requested one
    return np.array([*output.prompt_logprobs.logprobs, asked], dtype=np.float32)
