"""Chooses what a recipe leaves to `auto`. Invariant: a resumed run reads the chosen values from its configuration."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from pydantic import ValidationError

from core.config import ClusterConfig, Config, Device, ResolvedConfig
from core.errors import ConfigError
from core.load import explain, setting
from core.machine import Machine, this_machine
from core.plan import choose_device, colocated
from tasks.limits import TokenLimits
from trainer.model.files import ModelInfo

SIZES = {"float32": 4, "bfloat16": 2}  # bytes of a number
LARGE, LARGE_LR, SMALL_LR = 8e9, 1e-6, 1e-5
"""Parameters at which verl, OpenRLHF and TRL train with 1e-6, that rate, and one at which SmolLM2-135M learnt."""
LORA_FACTOR = 10.0
"""How much larger the best rate of LoRA is than that of all weights (Schulman et al. 2025, LoRA Without Regret)."""
SCRATCH_LR = 1e-4  # the rate of a small starter, which was trained from scratch
OWN_CRITIC_LR, HEAD_LR = 1e-5, 3e-4
MOST_PASS_TOKENS = 16_384
GPU_PASS_GIB = 8.0  # memory of the activations of a pass on a GPU: a third of a card of 24 GiB
MOST_RUNNING = 256
SHARE_ALONE, SHARE_OF_PAIR = 0.85, 0.4
"""Shares of a GPU's memory for an engine: of its own GPU, and next to a learner rank where the memory is not known."""
Audience = Literal["everyone", "training"]
NO_SOLUTIONS = "because there are no canonical solutions (task.columns.solution)"


class Note(NamedTuple):
    """A line about a configuration, and who needs it: everyone, or whoever trains (not an evaluation)."""

    text: str
    audience: Audience = "everyone"


def expected_device(cluster: ClusterConfig) -> Device:
    """The device of a run before it is connected: that of the cluster that it will attach to, else this machine's."""

    def _any_gpu() -> bool:
        from trainer.cluster import attached_resources, joins

        return (attached_resources(cluster) if joins(cluster) else this_machine()).gpus > 0

    return choose_device(cluster, _any_gpu)


def resolved(
    config: Config, info: ModelInfo, limits: TokenLimits, solutions: int, machine: Machine, device: str
) -> tuple[ResolvedConfig, list[Note]]:
    """The configuration without `auto`, and a line with the reason of each. `limits`, `solutions`: of the task. Raises
    ConfigError when the numbers contradict each other."""
    notes: list[Note] = []
    rollout = config.rollout
    if rollout.max_prompt_tokens is None:
        notes.append(Note(f"rollout.max_prompt_tokens: {limits.prompt}, the longest prompt that is kept"))
    if rollout.max_response_tokens is None:
        why = f"a quarter more than 99 % of {solutions} canonical solutions need" if solutions else NO_SOLUTIONS
        notes.append(Note(f"rollout.max_response_tokens: {limits.response}, {why}"))
    config, more = _resolved_learner(config, info, sum(limits), machine, device)
    notes += more
    running = rollout.max_running
    if running is None:
        running = _running(config, info, limits, device)
        why = "what the KV cache holds" if running < MOST_RUNNING else "vLLM's default"
        notes.append(Note(f"rollout.max_running: {running}, {why}"))
    numbers: dict[str, object] = {
        "max_prompt_tokens": limits.prompt,
        "max_response_tokens": limits.response,
        "max_running": running,
    }
    pairs = device == "cuda" and colocated(config, device)
    if rollout.sleep is None:
        numbers["sleep"] = pairs and not rollout.max_staleness
    if rollout.gpu_memory_share is None:
        numbers["gpu_memory_share"] = SHARE_OF_PAIR if pairs else SHARE_ALONE
    try:
        return ResolvedConfig.model_validate(_with(config, "rollout", numbers).model_dump()), notes
    except ValidationError as error:
        raise ConfigError(explain(error)) from None


def resolved_type(config: Config, info: ModelInfo, machine: Machine, device: str) -> tuple[Config, list[Note]]:
    """The part of `resolved` that supervised training needs: the type of the weights."""
    if config.model.dtype != "auto":
        return config, []
    slow = device == "cpu" and not machine.bfloat16
    dtype = "float32" if slow else info.dtype
    why = "this CPU has no instructions for bfloat16" if dtype != info.dtype else "the checkpoint's"
    return _with(config, "model", {"dtype": dtype}), [Note(f"model.dtype: {dtype}, {why}")]


def _resolved_learner(
    config: Config, info: ModelInfo, longest: int, machine: Machine, device: str
) -> tuple[Config, list[Note]]:
    """Type, rates, tokens of a pass over rows of `longest`."""
    config, notes = resolved_type(config, info, machine, device)
    learner = config.learner
    if learner.policy_lr is None:
        scratch = config.model.path == "starter"
        rate = SCRATCH_LR if scratch else policy_rate(info.parameters, bool(learner.lora_rank))
        config = _with(config, "learner", {"policy_lr": rate})
        kind = "LoRA on" if learner.lora_rank else "all weights of"
        text = f"learner.policy_lr: {rate:g}, for {kind} {info.parameters / 1e6:,.0f} M parameters"
        notes.append(Note(text, "training"))
    if learner.value_lr is None:
        rate = HEAD_LR if learner.value_model == "shared" else OWN_CRITIC_LR * (LORA_FACTOR if learner.lora_rank else 1)
        config = _with(config, "learner", {"value_lr": rate})
        if learner.value_model != "none":
            notes.append(Note(f"learner.value_lr: {rate:g}, for a {learner.value_model} critic", "training"))
    if learner.micro_batch_tokens is None:
        tokens = pass_tokens(config, info, longest, machine, device)
        config = _with(config, "learner", {"micro_batch_tokens": tokens})
        gib = activation_gib(config, info, tokens)
        notes.append(Note(f"learner.micro_batch_tokens: {tokens}, {gib:.1f} GiB of activations", "training"))
    return config, notes


def policy_rate(parameters: int, lora: bool) -> float:
    """The policy's learning rate, rounded to one digit.

    >>> [policy_rate(int(size), False) for size in (0.135e9, 0.5e9, 1.5e9, 7e9)], policy_rate(int(7e9), True)
    ([8e-06, 4e-06, 2e-06, 1e-06], 1e-05)
    """
    rate = min(SMALL_LR, max(LARGE_LR, LARGE_LR * (LARGE / max(1, parameters)) ** 0.5))
    return float(f"{rate * (LORA_FACTOR if lora else 1.0):.0e}")


def activation_gib(config: Config, info: ModelInfo, tokens: int) -> float:
    """GiB of a pass's activations: per layer and token 14 numbers per hidden unit, 5 per feed-forward unit."""
    of_layer = info.hidden if config.learner.gradient_checkpointing else 14 * info.hidden + 5 * info.intermediate
    return tokens * info.layers * of_layer * SIZES[config.model.dtype] / 2**30


def pass_tokens(config: Config, info: ModelInfo, longest: int, machine: Machine, device: str) -> int:
    """Tokens of one forward and backward pass, in steps of 256; at least a row of `longest` tokens."""
    room = GPU_PASS_GIB if device == "cuda" else machine.memory / 8 / config.learner.ranks
    fits = int(room / activation_gib(config, info, 256)) * 256
    return max(longest, min(MOST_PASS_TOKENS, fits))


def _running(config: Config, info: ModelInfo, limits: TokenLimits, device: str) -> int:
    """Sequences that one engine decodes at once, of half their budget. Raises ConfigError if the cache holds none."""
    if device == "cuda":
        return MOST_RUNNING
    of_token = 2 * info.layers * info.key_value_width * SIZES[config.model.dtype]
    fits = config.rollout.kv_cache_gib * 2**30 / of_token
    if fits < sum(limits):
        raise ConfigError(
            f"rollout.kv_cache_gib = {config.rollout.kv_cache_gib:g} holds {fits:,.0f} tokens of this model, fewer "
            f"than the {sum(limits):,} of a whole sequence; raise it"
        )
    return max(1, min(MOST_RUNNING, int(fits / (limits.prompt + limits.response / 2))))


CHOSEN = (
    "model.dtype",
    "rollout.max_prompt_tokens",
    "rollout.max_response_tokens",
    "rollout.max_running",
    "learner.policy_lr",
    "learner.value_lr",
    "learner.micro_batch_tokens",
)
"""The fields that may be `auto`, for a model and data."""


def recorded(recipe: Config, chosen: ResolvedConfig) -> Config:
    """The recipe with the values that were chosen, for the run's directory. What only one process needs is left out."""
    for name in CHOSEN:
        section, _, field = name.partition(".")
        recipe = _with(recipe, section, {field: setting(chosen, name)})
    return recipe


def _with(config: Config, section: str, values: Mapping[str, object]) -> Config:
    return config.model_copy(update={section: getattr(config, section).model_copy(update=values)})
