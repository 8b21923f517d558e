"""What an iteration will take, and what in a recipe looks wrong for its model and data: lines for a person."""

from core.config import Config
from core.machine import cpu_speed
from core.plan import batch_plan
from tasks.problems import LeftOut
from trainer.model.automatic import LARGE_LR, LORA_FACTOR, SIZES, SMALL_LR, activation_gib
from trainer.model.files import ModelInfo

MOST_LONG_SOLUTIONS = 0.05  # share of canonical solutions over the response budget above which a person is warned
UNUSUAL = 5.0  # how far outside the usual learning rates one may be without a warning
LONG_MINUTES = 15  # minutes of an iteration above which a person is told how to have shorter ones
PROCESS_GIB = 1.2  # memory of a process that has imported its engine: vLLM or DeepSpeed
EFFICIENCY = 0.5  # share of a large matrix product's speed that passes of SmolLM2 reach on CPU (`bench.learner`)


def warnings_of(config: Config, left_out: LeftOut) -> list[str]:
    """Lines for a budget that cuts solutions and for unusual learning rates. `config` without `auto`."""
    lines = []
    share = left_out.long_solutions / max(1, left_out.solutions)
    if share > MOST_LONG_SOLUTIONS:
        lines.append(
            f"warning: {share:.0%} of the canonical solutions are longer than rollout.max_response_tokens = "
            f"{config.rollout.max_response_tokens}, so most right answers may be cut; raise it, or set it to auto"
        )
    if config.model.path == "starter":
        return lines  # trained from scratch: other rates are usual
    factor, kind = (LORA_FACTOR, "LoRA") if config.learner.lora_rank else (1.0, "all weights of a pretrained model")
    low, high = LARGE_LR * factor / UNUSUAL / 2, SMALL_LR * factor * UNUSUAL
    if not low <= config.learner.policy_lr <= high:
        lines.append(
            f"warning: learner.policy_lr = {config.learner.policy_lr:g} is outside the usual range for {kind}, "
            f"{low:g} to {high:g}; set it to auto"
        )
    return lines


def iteration_estimate(config: Config, info: ModelInfo, device: str, critic: str) -> str:
    """Tokens of an iteration, memory by part, and on CPU the time, in one line. `critic`: separate, shared or none."""
    plan = batch_plan(config)
    memory = memory_estimate(config, info, device, critic)
    parts = ", ".join(f"{name} {gib:.1f}" for name, gib in memory.items())
    text = f"an iteration: at most {plan.max_tokens:,} generated tokens; about {sum(memory.values()):.1f} GiB ({parts})"
    if device == "cuda":
        return f"{text}, and in each engine's GPU {config.rollout.gpu_memory_share:.0%} of its memory"
    speed = EFFICIENCY * cpu_speed(config.model.dtype, config.learner.threads)
    minutes = plan.max_tokens * operations(config, info, critic) / speed / 60
    long = "under a minute" if minutes < 1.0 else f"about {minutes:.0f} minute{'s' if minutes >= 1.5 else ''}"
    text += f"; {long} if every response uses its whole budget"
    if minutes > LONG_MINUTES:
        text += "; for shorter ones lower rollout.starts, rollout.samples or rollout.max_response_tokens"
    return text


def operations(config: Config, info: ModelInfo, critic: str) -> float:
    """Floating-point operations per generated token: 2 per parameter for each forward pass, 4 for a backward pass."""
    models = 1 + (critic == "separate")
    reference = config.algorithm.kl_coefficient > 0
    passes = 2 + 2 * (models + reference) + 6 * models * config.learner.epochs  # generation, scores, update
    return float(passes * info.parameters)


def memory_estimate(config: Config, info: ModelInfo, device: str, critic: str) -> dict[str, float]:
    """GiB by part. A trained weight: its bytes, 8 for Adam, 4 for the gradient, in bf16 4 for the fp32 weight."""
    size, weights = SIZES[config.model.dtype], info.parameters / 2**30
    models = 1 + (critic == "separate")
    trained = weights * models * (size if config.learner.lora_rank else size + 12 + 4 * (size == 2))
    reference = weights * size * (config.algorithm.kl_coefficient > 0 and not config.learner.lora_rank)
    engines = config.rollout.actors
    activations = activation_gib(config, info, config.learner.micro_batch_tokens) * config.learner.ranks
    return {
        "trained models": trained,
        "reference": reference,
        "activations": activations,
        "engines": engines * (weights * size + config.rollout.kv_cache_gib) if device == "cpu" else 0.0,
        "broadcast": weights * size,
        "processes": (engines + config.learner.ranks) * PROCESS_GIB,
    }
