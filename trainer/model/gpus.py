"""The memory plan of the GPUs: what lies on one in each phase of an iteration. It is arithmetic from config.json and
the recipe; nothing is loaded. Invariant: a plan that does not fit is refused before anything starts."""

import math
from collections.abc import Iterator, Mapping

from core.config import Config, ResolvedConfig
from core.errors import ConfigError
from core.plan import colocated, sequence_tokens, transport
from trainer.model.automatic import SHARE_ALONE, SIZES
from trainer.model.estimates import rank_memory
from trainer.model.files import ModelInfo

CONTEXT_GIB = 0.7  # of a process on a GPU: CUDA's context, NCCL's and cuBLAS's buffers
ENGINE_GIB = 2.0  # of an engine, asleep or not, besides weights and cache: context, CUDA graphs, activations
SPARE = 0.05  # share of a GPU that stays free: allocators keep blocks of their own sizes
Plan = Mapping[str, Mapping[str, float]]
"""GiB of each part by phase: on each GPU, or with GPUs of their own on an engine's and on a learner rank's."""


def planned_gpus(
    asked: Config, config: ResolvedConfig, info: ModelInfo, critic: str, memory: float, training: bool = True
) -> ResolvedConfig:
    """The configuration for GPUs of `memory` GiB (0: not known, then unchanged). An engine's `auto` share is what
    the learner leaves. Raises ConfigError when the run does not fit; without `training` when its engines do not.
    `critic`: separate, shared or none."""
    if not memory:
        return config
    if asked.rollout.gpu_memory_share is None and colocated(config, "cuda"):
        kept = CONTEXT_GIB + sum(_learner(config, info, critic).values())
        if not config.rollout.sleep:
            kept += max(rank_memory(config, info, critic)["activations"], _copy(config, info))
        share = math.floor(100 * (1.0 - SPARE - kept / memory)) / 100
        rollout = config.rollout.model_copy(update={"gpu_memory_share": min(SHARE_ALONE, max(0.01, share))})
        config = config.model_copy(update={"rollout": rollout})
    check_gpus(config, info, critic, memory, training)
    return config


def gpu_plan(config: ResolvedConfig, info: ModelInfo, critic: str, memory: float) -> Plan:
    """What lies on a GPU of `memory` GiB. `critic`: separate, shared or none."""
    weights = info.parameters * SIZES[config.model.dtype] / 2**30
    learner = {"CUDA": CONTEXT_GIB} | _learner(config, info, critic)
    activations = {"activations": rank_memory(config, info, critic)["activations"]}
    copy = {"copy of the weights": _copy(config, info)}
    fixed = _fixed_cache(config)
    share = config.rollout.gpu_memory_share * memory
    engine = {"engine": share if fixed is None else ENGINE_GIB + weights / config.rollout.tensor_parallel + fixed}
    if not colocated(config, "cuda"):
        return {"engine": engine, "update": learner | activations, "broadcast": learner | copy}
    waiting = {"engine": ENGINE_GIB} if config.rollout.sleep else engine
    loading = {"engine": ENGINE_GIB + weights} if config.rollout.sleep else engine
    return {
        "generate": learner | engine,
        "update": learner | activations | waiting,
        "broadcast": learner | copy | loading,
    }


def _fixed_cache(config: ResolvedConfig) -> float | None:
    """GiB of an engine's KV cache on each of its GPUs, if the recipe gives a size."""
    given = config.rollout.engine_options.get("kv_cache_memory_bytes")
    return None if given is None else float(given) / 2**30


def _copy(config: ResolvedConfig, info: ModelInfo) -> float:
    """GiB of the copy that a rank sends directly to engines."""
    direct = transport(config, "cuda") != "object_store"
    return direct * info.parameters * SIZES[config.model.dtype] / 2**30


def _learner(config: ResolvedConfig, info: ModelInfo, critic: str) -> dict[str, float]:
    """What a rank keeps on its GPU all the time, GiB by part."""
    return {
        name: gib for name, gib in rank_memory(config, info, critic).items() if name in ("trained models", "reference")
    }


def cache_tokens(config: ResolvedConfig, info: ModelInfo, memory: float) -> int:
    """Tokens that the KV caches of an engine's GPUs of `memory` GiB hold."""
    gpus, size = config.rollout.tensor_parallel, SIZES[config.model.dtype]
    room = gpus * (config.rollout.gpu_memory_share * memory - ENGINE_GIB) - info.parameters * size / 2**30
    if (fixed := _fixed_cache(config)) is not None:
        room = gpus * fixed
    return max(0, int(room * 2**30 / (2 * info.layers * info.key_value_width * size)))


def check_gpus(config: ResolvedConfig, info: ModelInfo, critic: str, memory: float, training: bool) -> None:
    """Raises ConfigError for a phase that does not fit a GPU of `memory` GiB, or an engine that cannot hold one
    sequence."""
    for phase, parts in gpu_plan(config, info, critic, memory).items() if training else ():
        if (total := sum(parts.values())) > memory:
            raise ConfigError(
                f"a GPU of {memory:.1f} GiB cannot hold the phase {phase}, {_sum(parts)} = {total:.1f} GiB: "
                f"{', or '.join(_remedies(config, phase, critic, total - parts.get('engine', 0.0) < memory))}"
            )
    tokens, longest = cache_tokens(config, info, memory), sequence_tokens(config.rollout)
    if tokens < longest:
        raise ConfigError(
            f"rollout.gpu_memory_share = {config.rollout.gpu_memory_share:g} of {memory:.1f} GiB leaves a KV cache of "
            f"{tokens:,} tokens, fewer than the {longest:,} of a whole sequence; raise it, or else "
            f"{', or '.join(_remedies(config, 'engine', critic, False))}"
        )


def describe_gpus(config: ResolvedConfig, info: ModelInfo, critic: str, memory: float) -> str:
    """The plan as text, a line per phase."""
    ranks = config.learner.ranks
    pairs = f"each of {ranks} GPUs, which hold an engine and a learner rank"
    where = pairs if colocated(config, "cuda") else "an engine's and of a rank's GPU"
    lines = [f"memory plan of {where}, of {memory:.1f} GiB (arithmetic, not measured):"]
    for phase, parts in gpu_plan(config, info, critic, memory).items():
        lines.append(f"  {phase:<10}{sum(parts.values()):6.1f} GiB: {_sum(parts)}")
    tokens = cache_tokens(config, info, memory)
    whole = tokens / sequence_tokens(config.rollout)
    return "\n".join([*lines, f"  KV cache of an engine: {tokens:,} tokens, {whole:,.0f} whole sequences"])


def _sum(parts: Mapping[str, float]) -> str:
    return " + ".join(f"{name} {gib:.1f}" for name, gib in parts.items() if gib)


def _remedies(config: ResolvedConfig, phase: str, critic: str, without_engine: bool) -> Iterator[str]:
    """The settings that lower what a phase takes, the cheapest first. `without_engine`: whether the rest fits."""
    learner, pairs = config.learner, colocated(config, "cuda")
    if phase == "engine" and not pairs:
        yield "raise rollout.tensor_parallel"
        return
    if phase == "generate" and without_engine:
        yield "lower rollout.gpu_memory_share"
    if phase == "update" and not learner.gradient_checkpointing:
        yield "set learner.gradient_checkpointing to true"
    if phase == "update":
        yield "lower learner.micro_batch_tokens"
    if phase == "broadcast" and transport(config, "cuda") != "object_store":
        yield "set learner.transport to object_store"
    if critic == "separate":
        yield "set learner.value_model to shared"
    if learner.ranks > 1 and learner.zero_stage < 3:
        yield "set learner.zero_stage to 3"
    if not learner.offload:
        yield "set learner.offload to true"
    if not learner.lora_rank:
        yield "train adapters alone (learner.lora_rank)"
    yield "use more GPUs (learner.ranks" + (" and rollout.actors)" if pairs else ")")
