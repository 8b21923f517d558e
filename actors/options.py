"""vLLM's own options, passed on by name: `rollout.engine_options` and `rollout.sampling_options`.

Checked by `commands/train.py` and `launch.py check` before anything starts, read by `actors/engine.py`. vLLM's classes are read
as text, since importing them takes ten seconds and alters the process. Invariant: an option that Retrospect sets itself cannot
be set here too.

Options that leave tokens out (`top_k`, `allowed_token_ids`, `structured_outputs`, ...) and the learner: with Z(s) = the mass that
the model itself gives to the tokens that are left in state s, the behaviour log-probability of a token is that of the distribution
it was drawn from, log pi(a|s) - log Z(s), and the learner, which knows of no such option, computes log pi(a|s). So `behaviour_gap`
is -log Z(s) instead of 0, and the off-policy weight pi_prox/pi_behaviour of a token is Z(s) <= 1: what is learnt is the policy
without the option, from the tokens that the option let through, and a token that a grammar forced on it (Z near 0) counts for next
to nothing. That is the exact weight, not an error; with `algorithm.importance: mask` such tokens are left out.
"""

import ast
import difflib
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path

from core.config import Config, RolloutConfig
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
TEXT = "engines get and give token ids (use structured_outputs, allowed_token_ids or logit_bias)"
STRUCTURED = "structured_outputs"
"""The sampling option for whose sake an engine loads the tokenizer: its grammar is one of characters."""
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
            _check_known(f"rollout.{field}", option, name, known)
    if STRUCTURED in config.sampling_options:
        _check_structured(config.sampling_options[STRUCTURED])


def check_training_options(config: Config) -> None:
    """Raises ConfigError for options that are good for evaluation only."""
    if STRUCTURED in config.rollout.sampling_options and config.replay.ratio > 0:
        raise ConfigError(
            f"rollout.sampling_options.{STRUCTURED}: vLLM's grammar begins with the first token that is generated and knows nothing of "
            f"a replayed prefix; set replay.ratio to 0, or use it with `launch.py evaluate`, which begins at the root"
        )


def describe_options(config: RolloutConfig) -> list[str]:
    """What `launch.py check` says of options: a line for one that the learner must live with."""
    if STRUCTURED not in config.sampling_options:
        return []
    return [
        f"rollout.sampling_options.{STRUCTURED}: the learner does not see the grammar; it weights every token by the mass that the model "
        f"itself gives to what the grammar allows there, and behaviour_gap shows that mass instead of 0"
    ]


def _check_structured(given: object) -> None:
    """Raises ConfigError unless it is a mapping of vLLM's names; which of them go together is left to vLLM."""
    if not isinstance(given, Mapping) or not given:
        raise ConfigError(
            f"rollout.sampling_options.{STRUCTURED} = {given!r}: give a mapping such as {{regex: '[0-9]+'}} or {{choice: [yes, no]}}"
        )
    name = "StructuredOutputsParams"
    known = class_fields("sampling_params.py", name)
    for option in given:
        _check_known(f"rollout.sampling_options.{STRUCTURED}", str(option), name, known)


def _check_known(field: str, option: str, name: str, known: Sequence[str]) -> None:
    """Raises ConfigError, with the nearest name, unless `option` is `known` of vLLM's class `name` (or nothing is known of it)."""
    if known and option not in known:
        near = difflib.get_close_matches(option, known, n=1, cutoff=0.0)[0]
        raise ConfigError(f"{field}.{option}: vLLM's {name} has no such option; the nearest is {near!r}")


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
