"""What an iteration will take, and what in a recipe looks wrong for its model and data: lines for a person."""

from core.config import Config, LearnerConfig, ResolvedConfig
from core.errors import ConfigError
from core.machine import cpu_speed
from core.plan import batch_plan, generated_bound, sequence_tokens
from tasks.problems import LeftOut
from trainer.model.automatic import LARGE_LR, LORA_FACTOR, SIZES, SMALL_LR, Note, activation_gib
from trainer.model.files import ModelInfo

MOST_LONG_SOLUTIONS = 0.05  # share of canonical solutions over the response budget above which a person is warned
UNUSUAL = 5.0  # how far outside the usual learning rates one may be without a warning
LONG_MINUTES = 15  # minutes of an iteration above which a person is told how to have shorter ones
ENGINE_GIB, RANK_GIB, OTHERS_GIB = 0.55, 0.35, 1.1
"""On CPU: memory of a process with vLLM, of one with DeepSpeed, and of driver, judges, store and Ray (measured)."""
SAMPLING_BYTES = 40  # of vLLM per running sequence and word: logits, log-probabilities and their order (measured)
MOST_LOGITS = 2**27  # of a rank at once (CHUNK_LOGITS of learner/models/pretrained.py, which imports torch)
REMEDIES = {
    "trained models": "learner.value_model (shared), train adapters (learner.lora_rank)",
    "reference": "algorithm.kl_coefficient (0: no reference)",
    "activations": "learner.micro_batch_tokens",
    "engines": "rollout.kv_cache_gib or rollout.actors",
    "logits": "rollout.max_running",
    "processes": "rollout.actors or learner.ranks",
}
"""What to lower for a part of the memory."""
EFFICIENCY = 0.5  # share of a large matrix product's speed that passes of SmolLM2 reach on CPU (`bench.learner`)


def warnings_of(config: ResolvedConfig, left_out: LeftOut) -> list[Note]:
    """Lines for a budget that cuts solutions and for unusual learning rates."""
    notes = []
    share = left_out.long_solutions / max(1, left_out.solutions)
    if share > MOST_LONG_SOLUTIONS:
        text = (
            f"warning: {share:.0%} of the canonical solutions are longer than rollout.max_response_tokens = "
            f"{config.rollout.max_response_tokens}, so long right answers are cut; raise it, or set it to auto"
        )
        notes.append(Note(text))
    if config.model.path == "starter":
        return notes  # trained from scratch: other rates are usual
    factor, kind = (LORA_FACTOR, "LoRA") if config.learner.lora_rank else (1.0, "all weights of a pretrained model")
    low, high = LARGE_LR * factor / UNUSUAL / 2, SMALL_LR * factor * UNUSUAL
    if not low <= config.learner.policy_lr <= high:
        text = (
            f"warning: learner.policy_lr = {config.learner.policy_lr:g} is outside the usual range for {kind}, "
            f"{low:g} to {high:g}; set it to auto"
        )
        notes.append(Note(text, "training"))
    return notes


def iteration_estimate(config: ResolvedConfig, info: ModelInfo, device: str, critic: str) -> str:
    """Tokens of an iteration, memory by part, and on CPU the time, in one line. `critic`: separate, shared or none."""
    tokens = batch_plan(config).trajectories * config.rollout.max_response_tokens
    memory = memory_estimate(config, info, device, critic)
    parts = ", ".join(f"{name} {gib:.1f}" for name, gib in memory.items())
    text = f"an iteration: at most {generated_bound(config):,} generated tokens; about {sum(memory.values()):.1f} GiB"
    if device == "cuda":
        share = f"in each engine's GPU {config.rollout.gpu_memory_share:.0%} of its memory"
        return f"{text} in each learner rank's GPU ({parts}), and {share}"
    text += f" ({parts})"
    speed = EFFICIENCY * cpu_speed(config.model.dtype, config.learner.threads)
    minutes = tokens * operations(config, info, critic) / speed / 60
    long = "under a minute" if minutes < 1.0 else f"about {minutes:.0f} minute{'s' if minutes >= 1.5 else ''}"
    text += f"; {long} if every response uses its whole budget"
    text += ", without what dynamic sampling replaces" if config.rollout.resample else ""
    if minutes > LONG_MINUTES:
        text += "; for shorter ones lower rollout.starts, rollout.samples or rollout.max_response_tokens"
    return text


def operations(config: Config, info: ModelInfo, critic: str) -> float:
    """Floating-point operations per generated token: 2 per parameter for each forward pass, 4 for a backward pass."""
    models = 1 + (critic == "separate")
    reference = config.algorithm.kl_coefficient > 0
    passes = 2 + 2 * (models + reference) + 6 * models * config.learner.epochs  # generation, scores, update
    return float(passes * info.parameters)


def memory_estimate(config: ResolvedConfig, info: ModelInfo, device: str, critic: str) -> dict[str, float]:
    """GiB by part: on CPU of the whole machine, on GPUs of one learner rank's. `critic`: separate, shared or none."""
    own, weights = rank_memory(config, info, critic), info.parameters * SIZES[config.model.dtype] / 2**30
    if device == "cuda":
        return {name: gib for name, gib in own.items() if name != "on the host"}
    engines, ranks = config.rollout.actors, config.learner.ranks
    running = config.rollout.max_running * SAMPLING_BYTES
    scored = min(_pass_tokens(config), MOST_LOGITS // info.vocabulary) * SIZES[config.model.dtype]
    return {name: ranks * gib for name, gib in own.items()} | {
        "engines": engines * (weights + config.rollout.kv_cache_gib),
        "broadcast": 2 * weights,  # the object store keeps a version until all engines have the next
        "logits": info.vocabulary * (engines * running + ranks * scored) / 2**30,
        "processes": engines * ENGINE_GIB + ranks * RANK_GIB + OTHERS_GIB,
    }


def check_memory(config: ResolvedConfig, info: ModelInfo, critic: str, memory: float) -> None:
    """Raises ConfigError when a run on CPU needs more than a machine's `memory` in GiB."""
    parts = memory_estimate(config, info, "cpu", critic)
    if (total := sum(parts.values())) > memory:
        largest = max(REMEDIES, key=lambda name: parts[name])
        shown = ", ".join(f"{name} {gib:.1f}" for name, gib in parts.items())
        raise ConfigError(
            f"the run needs about {total:.1f} GiB ({shown}), but this machine has {memory:.1f} GiB of memory; most are "
            f"{largest}: lower {REMEDIES[largest]}, or take a smaller model.path"
        )


def rank_memory(config: ResolvedConfig, info: ModelInfo, critic: str) -> dict[str, float]:
    """GiB of one learner rank by part; "on the host" is what `learner.offload` keeps out of a GPU."""
    learner, size = config.learner, SIZES[config.model.dtype]
    trained = adapter_parameters(info, learner.lora_rank) if learner.lora_rank else info.parameters
    here, host = bytes_per_weight(learner, config.model.dtype)
    frozen = info.parameters * size / (learner.ranks if learner.zero_stage == 3 else 1) if learner.lora_rank else 0.0
    models = 1 + (critic == "separate")
    reference = info.parameters * size * (config.algorithm.kl_coefficient > 0 and not learner.lora_rank)
    return {
        "trained models": models * (trained * here + frozen) / 2**30,
        "reference": reference / 2**30,
        "activations": activation_gib(config, info, _pass_tokens(config)),
    } | ({"on the host": models * trained * host / 2**30} if learner.offload else {})


def _pass_tokens(config: ResolvedConfig) -> int:
    """Most tokens of a rank's pass: its bound, or all rows of an optimizer step."""
    rows = batch_plan(config).minibatch + config.replay.imitated + config.replay.discoveries
    return min(config.learner.micro_batch_tokens, rows * sequence_tokens(config.rollout))


def bytes_per_weight(learner: LearnerConfig, dtype: str) -> tuple[float, float]:
    """Bytes that a rank keeps per trained weight: beside the model, and on the host with `learner.offload`. The weight
    itself, its gradient (4), AdamW's moments (8), with ZeRO also the weight in fp32 (4). bfloat16 runs as stage 2 or 3.

    >>> one = LearnerConfig()
    >>> bytes_per_weight(one, "float32"), bytes_per_weight(one, "bfloat16")
    ((16.0, 0.0), (18.0, 0.0))
    >>> bytes_per_weight(one.model_copy(update={"ranks": 4, "zero_stage": 2}), "bfloat16")  # 2 + 16 / 4
    (6.0, 0.0)
    >>> bytes_per_weight(one.model_copy(update={"ranks": 8, "zero_stage": 3}), "bfloat16")  # 18 / 8
    (2.25, 0.0)
    >>> bytes_per_weight(one.model_copy(update={"offload": True, "zero_stage": 2}), "bfloat16")
    (2.0, 16.0)
    """
    size, ranks = SIZES[dtype], learner.ranks
    stage = max(2, learner.zero_stage) if dtype == "bfloat16" else learner.zero_stage
    weight = size / (ranks if stage == 3 else 1)
    gradient = 4 / (ranks if stage >= 2 else 1)
    optimizer = 12 / ranks if stage else 8.0
    return (weight, gradient + optimizer) if learner.offload else (weight + gradient + optimizer, 0.0)


def adapter_parameters(info: ModelInfo, rank: int) -> int:
    """Weights of LoRA adapters of this rank on all linear layers: `rank` x (inputs + outputs) of each."""
    attention = 4 * info.hidden + 2 * (info.hidden + info.key_value_width)
    return rank * info.layers * (attention + 3 * (info.hidden + info.intermediate))
