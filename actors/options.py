"""vLLM's own options, `rollout.engine_options` and `rollout.sampling_options`.

They are checked against vLLM's classes as text, because importing them takes ten seconds. Invariant: an option that
Retrospect sets itself cannot be set.

Options that exclude tokens: let Z(s) be the probability that the model gives to the allowed tokens in state s. The
engine reports log pi(a|s) - log Z(s), the learner computes log pi(a|s). So `behaviour_gap` is -log Z(s), not 0, and a
token's off-policy weight Z(s) <= 1. This is exact: training improves the policy without the option. A forced token (Z
near 0) has almost no weight; `algorithm.importance: mask` leaves it out.
"""

import ast
import difflib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from core.config import Config, RolloutConfig
from core.errors import ConfigError

CONTRACT = "Retrospect needs its own value"
ENGINE: Mapping[str, str] = {
    "model": "model.path sets it",
    "dtype": "model.dtype sets it",
    "seed": "run.seed sets it",
    "max_model_len": "rollout.max_prompt_tokens and rollout.max_response_tokens set it",
    "max_num_seqs": "rollout.max_running sets it",
    "tensor_parallel_size": "rollout.tensor_parallel sets it",
    "distributed_executor_backend": "rollout.tensor_parallel sets it",
    "gpu_memory_utilization": "rollout.gpu_memory_share sets it",
    "enable_sleep_mode": "rollout.sleep sets it",
    **dict.fromkeys(
        ("skip_tokenizer_init", "enable_prefix_caching", "disable_log_stats", "generation_config"), CONTRACT
    ),
    **dict.fromkeys(("logprobs_mode", "async_scheduling", "weight_transfer_config", "worker_extension_cls"), CONTRACT),
}
"""Engine options that cannot be set, and why."""
DRAFTS = "vLLM 0.32 gets the log-probabilities of sampled tokens wrong"  # by 10 nats; it cannot score one token
CHUNKS = "a context must be read in one step"  # see `actors/vllm_setup.py`
ENGINE_GPU_ONLY: Mapping[str, str] = {
    **dict.fromkeys(("speculative_config", "spec_method", "spec_model", "spec_tokens"), DRAFTS),
    **dict.fromkeys(("enable_chunked_prefill", "max_num_batched_tokens"), CHUNKS),
    "kv_cache_memory_bytes": "rollout.kv_cache_gib sets it",
    "block_size": "prefix sharing needs a small one",
    "enforce_eager": "vLLM compiles nothing",
}
"""Engine options that can be set on GPUs only; why they cannot on CPU."""
TEXT = "engines work on token ids (use structured_outputs, allowed_token_ids or logit_bias)"
STRUCTURED = "structured_outputs"  # for it an engine loads the tokenizer: a grammar is one of characters
SAMPLING: Mapping[str, str] = {
    "temperature": "rollout.temperature sets it",
    "top_p": "rollout.top_p sets it",
    "max_tokens": "rollout.max_response_tokens sets it",
    "seed": "run.seed sets it",
    "n": "rollout.samples sets it",
    "stop": TEXT,
    "bad_words": TEXT,
    **dict.fromkeys(("logprobs", "flat_logprobs", "detokenize", "output_kind", "stop_token_ids"), CONTRACT),
    **dict.fromkeys(("prompt_logprobs", "prompt_logprob_token_ids", "prompt_logprob_start"), CONTRACT),
    **dict.fromkeys(("logprob_token_ids", "trace_decode_token_ids"), CONTRACT),
}
"""Sampling options that cannot be set, and why."""


def check_options(config: RolloutConfig, device: str) -> None:
    """Raises ConfigError for an option that vLLM lacks (with the nearest name) or that cannot be set on `device`."""
    gpu_only = {option: f"it needs cluster.device cuda, on CPU {why}" for option, why in ENGINE_GPU_ONLY.items()}
    engine = ENGINE if device == "cuda" else {**ENGINE, **gpu_only}
    for field, options, fixed, file, name in (
        ("engine_options", config.engine_options, engine, "engine/arg_utils.py", "EngineArgs"),
        ("sampling_options", config.sampling_options, SAMPLING, "sampling_params.py", "SamplingParams"),
    ):
        for option in options:
            if option in fixed:
                raise ConfigError(f"rollout.{field}.{option} cannot be set: {fixed[option]}")
        _check_known(f"rollout.{field}", list(options), file, name)
    if STRUCTURED in config.sampling_options:
        _check_structured(config.sampling_options[STRUCTURED])
    for option in (STRUCTURED, "min_tokens") if config.environment else ():
        if option in config.sampling_options:
            raise ConfigError(
                f"rollout.sampling_options.{option}: vLLM applies it anew in every turn with the environment "
                f"{config.environment}; leave it out"
            )


def check_sampling_values(options: Mapping[str, object], budget: int | None) -> None:
    """Raises ConfigError for values that vLLM refuses. Another process imports vLLM, in about ten seconds. `budget`:
    most tokens of a response, if the recipe says it."""
    if importlib.util.find_spec("vllm") is None:
        return
    done = subprocess.run(
        [sys.executable, "-c", _CONSTRUCT],
        input=json.dumps({**options, "max_tokens": budget}),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["vLLM cannot be imported"])[-1]
        raise ConfigError(f"rollout.sampling_options = {json.dumps(options)}: vLLM refuses it: {last}")


_CONSTRUCT = """
import json, sys
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
options = json.load(sys.stdin)
if "structured_outputs" in options:
    options["structured_outputs"] = StructuredOutputsParams(**options["structured_outputs"])
SamplingParams(**options)
"""


def _check_structured(constraint: object) -> None:
    """Raises ConfigError unless it is a mapping of vLLM's names. vLLM itself checks which of them go together."""
    field = f"rollout.sampling_options.{STRUCTURED}"
    if not isinstance(constraint, Mapping) or not constraint:
        raise ConfigError(
            f"{field} = {constraint!r}: give a mapping such as {{regex: '[0-9]+'}} or {{choice: [yes, no]}}"
        )
    _check_known(field, [str(option) for option in constraint], "sampling_params.py", "StructuredOutputsParams")


def check_training_options(config: Config) -> None:
    """Raises ConfigError for options that work in evaluation only."""
    if STRUCTURED in config.rollout.sampling_options and config.replay.ratio > 0:
        raise ConfigError(
            f"rollout.sampling_options.{STRUCTURED}: vLLM's grammar begins with the first token that is generated and "
            "knows nothing of a replayed prefix; set replay.ratio to 0, or use it with `launch.py evaluate`, which "
            "begins at the root"
        )


def describe_options(config: RolloutConfig) -> list[str]:
    """The lines of `launch.py check` about options that the learner does not know."""
    if STRUCTURED not in config.sampling_options:
        return []
    return [
        f"rollout.sampling_options.{STRUCTURED}: the learner does not see the grammar; it weights every token by Z, "
        "the probability that the model gives to the tokens that the grammar allows there; behaviour_gap shows -log Z "
        "instead of 0"
    ]


def _check_known(field: str, options: Sequence[str], file: str, name: str) -> None:
    """Raises ConfigError, with the nearest name, for one of `options` that vLLM's class `name` lacks."""
    allowed = class_fields(file, name) if options else []
    for option in options:
        if allowed and option not in allowed:
            near = difflib.get_close_matches(option, allowed, n=1, cutoff=0.0)[0]
            raise ConfigError(f"{field}.{option}: vLLM's {name} has no such option; the nearest is {near!r}")


def class_fields(file: str, name: str) -> list[str]:
    """The public annotated fields of a class in a file of the vLLM package; empty where vLLM is not installed."""
    package = importlib.util.find_spec("vllm")
    if package is None or package.submodule_search_locations is None:
        return []
    tree = ast.parse((Path(package.submodule_search_locations[0]) / file).read_text(encoding="utf-8"))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    targets = [node.target for body in classes for node in body.body if isinstance(node, ast.AnnAssign)]
    return [target.id for target in targets if isinstance(target, ast.Name) and not target.id.startswith("_")]
