"""vLLM's own options, passed on by name: `rollout.engine_options` and `rollout.sampling_options`.

Checked by `trainer/commands.py` and `launch.py check` before anything starts, read by `actors/engine.py`. vLLM's classes are read
as text, since importing them takes ten seconds and alters the process. Invariant: an option that Retrospect sets itself cannot
be set here too.
"""

import ast
import difflib
import importlib.util
from collections.abc import Mapping
from pathlib import Path

from core.config import RolloutConfig
from core.errors import ConfigError

ENGINE: Mapping[str, str] = {
    "model": "model.path",
    "dtype": "model.dtype",
    "seed": "run.seed",
    "max_model_len": "rollout.max_prompt_tokens and rollout.max_response_tokens",
    "max_num_seqs": "rollout.max_running",
    "tensor_parallel_size": "rollout.tensor_parallel",
    "gpu_memory_utilization": "rollout.gpu_memory_share",
    "enable_sleep_mode": "rollout.sleep",
    "skip_tokenizer_init": "",
    "enable_prefix_caching": "",
    "disable_log_stats": "",
    "distributed_executor_backend": "rollout.tensor_parallel",
    "generation_config": "",
    "logprobs_mode": "",
    "async_scheduling": "",
    "weight_transfer_config": "",
    "worker_extension_cls": "",
}
"""Engine options that are not free: the field that sets them, or nothing where the contract of `actors/base.py` does."""
DRAWN = (
    "vLLM 0.32 gets the log-probabilities of drawn tokens wrong there"  # by 10 nats, and cannot score a single token
)
READ = "a context must be read whole there"  # see `actors/engine.py`
ENGINE_CPU: Mapping[str, str] = {
    "speculative_config": DRAWN,
    "spec_method": DRAWN,
    "spec_model": DRAWN,
    "spec_tokens": DRAWN,
    "kv_cache_memory_bytes": "rollout.kv_cache_gib sets it there",
    "block_size": "continuations share prefixes by it there",
    "enforce_eager": "vLLM compiles nothing there",
    "enable_chunked_prefill": READ,
    "max_num_batched_tokens": READ,
}
"""Engine options that are free on GPUs only, and why."""
TEXT = "engines have no tokenizer (use allowed_token_ids, logit_bias or min_p)"
SAMPLING: Mapping[str, str] = {
    "temperature": "rollout.temperature",
    "top_p": "rollout.top_p",
    "max_tokens": "rollout.max_response_tokens",
    "repetition_detection": "rollout.repetition_tokens",
    "seed": "run.seed",
    "n": "rollout.samples",
    "logprobs": "",
    "flat_logprobs": "",
    "detokenize": "",
    "output_kind": "",
    "stop_token_ids": "",
    "trace_decode_token_ids": "",
    "prompt_logprobs": "",
    "prompt_logprob_token_ids": "",
    "prompt_logprob_start": "",
    "logprob_token_ids": "",
    "stop": TEXT,
    "bad_words": TEXT,
    "structured_outputs": TEXT,
}
"""The same for sampling options."""


def check_options(config: RolloutConfig, device: str) -> None:
    """Raises ConfigError for an option that vLLM does not have (with the nearest name) or that is not free on `cluster.device`."""
    places = (
        ("engine_options", config.engine_options, ENGINE, "engine/arg_utils.py", "EngineArgs"),
        ("sampling_options", config.sampling_options, SAMPLING, "sampling_params.py", "SamplingParams"),
    )
    for field, given, taken, file, name in places:
        if not given:
            continue
        if config.engine != "vllm":
            raise ConfigError(f"rollout.{field} are vLLM's; leave them out with rollout.engine {config.engine}")
        known = class_fields(file, name)
        for option in given:
            if option in taken:
                raise ConfigError(f"rollout.{field}.{option} is not free: {_reason(taken[option])}")
            if device != "cuda" and taken is ENGINE and option in ENGINE_CPU:
                raise ConfigError(
                    f"rollout.{field}.{option} is free with cluster.device cuda only, not on CPU: {ENGINE_CPU[option]}"
                )
            if known and option not in known:
                near = difflib.get_close_matches(option, known, n=1, cutoff=0.0)[0]
                raise ConfigError(
                    f"rollout.{field}.{option}: vLLM's {name} has no such option; the nearest is {near!r}"
                )


def _reason(setter: str) -> str:
    """Why an option is not free."""
    if not setter:
        return "it is part of what an engine promises"
    return setter if setter == TEXT else f"{setter} sets it"


def class_fields(file: str, name: str) -> list[str]:
    """The public annotated fields of a class in a file of the vLLM package; empty where vLLM is not installed."""
    found = importlib.util.find_spec("vllm")
    if found is None or found.submodule_search_locations is None:
        return []
    tree = ast.parse((Path(found.submodule_search_locations[0]) / file).read_text(encoding="utf-8"))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    targets = [node.target for body in classes for node in body.body if isinstance(node, ast.AnnAssign)]
    return [target.id for target in targets if isinstance(target, ast.Name) and not target.id.startswith("_")]
