"""The inputs of vLLM: environment variables, engine arguments, a user's sampling options, end tokens."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from actors.options import STRUCTURED
from core.config import ResolvedRollout
from core.errors import ConfigError, ModelError, first_line

CPU_BLOCK = 32
"""Tokens per KV block on CPU, a multiple of 32. vLLM's default there, 128, would share no shorter prefix."""


def environment(device: str, threads: int) -> dict[str, str]:
    """Variables that must be set in the engine's process before torch and vLLM are imported."""
    common = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    }
    if device != "cpu":
        return common
    return common | {
        "OMP_NUM_THREADS": str(threads),
        "CUDA_VISIBLE_DEVICES": "",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "TORCH_COMPILE_DISABLE": "1",  # compiling the sampler costs the first batch 7-30 s and gains nothing on CPU
    }


def stop_tokens(model_path: str) -> list[int]:
    """End-of-sequence tokens of a checkpoint's two configs and of its tokenizer, which canonical solutions end with.
    Raises ModelError when it names none, or no token."""
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    tokens: set[int] = set()
    place = Path(model_path)
    generation = place / "generation_config.json"
    # in a folder without its files transformers would make up an empty tokenizer of the model's class
    tokenizers = [AutoTokenizer] if not place.is_dir() or any(place.glob("tokenizer*")) else []
    for source in (GenerationConfig, AutoConfig, *tokenizers):
        try:
            ids = source.from_pretrained(model_path).eos_token_id
        except (OSError, ValueError, TypeError) as error:  # a checkpoint need not have a generation config
            if not isinstance(error, ValueError) and source is GenerationConfig and generation.is_file():
                raise ModelError(f"{generation}: {first_line(error)}") from None
            continue
        found = ids if isinstance(ids, list) else [] if ids is None else [ids]
        if wrong := [token for token in found if type(token) is not int]:
            raise ModelError(f"model.path = {model_path}: eos_token_id {wrong[0]!r} of {source.__name__} is no token")
        tokens |= set(found)
    if not tokens:
        raise ModelError(f"model.path = {model_path}: config.json is missing or has no eos_token_id; set it there")
    return sorted(tokens)


def register_model_class(model_path: str) -> None:
    """Import the model's class here: vLLM would start a process that imports vLLM again (8 s on a first start)."""
    from transformers import AutoConfig
    from vllm import ModelRegistry

    for name in AutoConfig.from_pretrained(model_path).architectures or ():
        if name in ModelRegistry.models:
            ModelRegistry.register_model(name, ModelRegistry.models[name].load_model_cls())


def keep_model_classes() -> None:
    """Keep vLLM's transformers backend from wrapping the model's class for its compiler: the learner of this process
    has the same class. To be called before the engine is built."""
    from vllm.model_executor.models.transformers.base import Base

    Base._decorate_for_torch_compile = lambda _: None  # type: ignore[method-assign,assignment]


def engine_arguments(config: ResolvedRollout, device: str) -> dict[str, Any]:
    """vLLM's arguments that do not depend on the model; see `actors/options.py` for those that a user may add."""
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
            # One step per prefill: after two, vLLM 0.32 takes back the number drawn in the first with
            # `Generator.get_offset`, which CPU generators lack, so a seeded request would crash.
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(4096, context, config.max_running),  # 4096: vLLM's default on CPU
        }
    return common | {"gpu_memory_utilization": config.gpu_memory_share}


def sampling_extras(options: Mapping[str, Any], budget: int, engine: Any) -> dict[str, Any]:
    """`rollout.sampling_options` as vLLM's types. Raises ConfigError for those that `engine` would refuse for responses
    of at most `budget` tokens."""
    if not options:
        return {}
    from pydantic import TypeAdapter
    from vllm import SamplingParams
    from vllm.exceptions import VLLMError

    config = engine.vllm_config
    try:
        params = TypeAdapter(SamplingParams).validate_python({**options, "max_tokens": budget})
        params.verify(
            config.model_config, config.speculative_config, config.structured_outputs_config, engine.tokenizer
        )
    except (ValueError, VLLMError) as error:  # pydantic's ValidationError is a ValueError, vLLM's is not
        raise ConfigError(f"rollout.sampling_options = {sorted(options)}: {first_line(error)}") from error
    return {name: getattr(params, name) for name in options}
