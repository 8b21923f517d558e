"""What a configuration implies before anything starts: batch sizes, weight transport, resources; contradictions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from core import PROGRAM
from core.config import ClusterConfig, Config, Device, ReplayConfig, RolloutConfig, every_source
from core.errors import ClusterError, ConfigError
from core.machine import Machine
from core.sections.base import AUTO
from core.startup import ENGINE, PAIR, RANK


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The sizes that one iteration works with."""

    starts: int  # per iteration
    replayed_starts: int  # of these at most, once replay has begun
    trajectories: int  # starts x samples
    minibatch: int  # trajectories per optimizer step
    steps_per_iteration: int  # optimizer steps of the policy
    total_steps: int  # in the whole run


@dataclass(frozen=True, slots=True)
class Bundle:
    """A number of equal processes and what each of them reserves."""

    name: str
    count: int
    cpus: float
    gpus: float


@dataclass(frozen=True, slots=True)
class Resources:
    """What a cluster offers in total, or what a run asks for."""

    cpus: float
    gpus: float


def generated_bound(config: Config) -> int:
    """Most tokens that an iteration generates, with those that dynamic sampling replaces; 0 while
    `rollout.max_response_tokens` is `auto`."""
    rounds, budget = 1 + config.rollout.resample, config.rollout.max_response_tokens
    return batch_plan(config).trajectories * rounds * (budget or 0)


def describe_imitation(config: ReplayConfig) -> str:
    """How many earlier answers the language-model loss repeats, in words.

    >>> describe_imitation(ReplayConfig(imitated=8)), describe_imitation(ReplayConfig(ratio=0))
    ('an update repeats up to 8 own successes and 16 discoveries', 'no imitation')
    """
    counts = {"own successes": config.imitated, "discoveries": config.discoveries if config.ratio else 0}
    kinds = [f"{count} {kind}" for kind, count in counts.items() if count]
    return f"an update repeats up to {' and '.join(kinds)}" if kinds else "no imitation"


def plan_warnings(config: Config) -> list[str]:
    """Lines for settings that are allowed, but may not do what is expected."""
    algorithm, lines = config.algorithm, []
    if algorithm.kl_coefficient > 0 and algorithm.chosen_kl != algorithm.unbiased_kl:
        lines.append(
            f"algorithm.kl_estimator '{algorithm.kl_estimator}' in the {algorithm.kl_placement}: its gradient is not "
            f"that of the reverse KL; '{algorithm.unbiased_kl}' has that (docs/learner.md)"
        )
    if algorithm.kl_coefficient > 0 and algorithm.kl_fades and config.task.name == "dialogue":
        lines.append(
            "algorithm.kl_schedule 'unsolved' gives up the KL as rewards rise above 0 or task.success_reward; to keep "
            "the policy near its start, set algorithm.kl_target, or the schedule to constant"
        )
    if config.replay.ratio > 0 and algorithm.kl_coefficient == 0:
        lines.append(
            "algorithm.kl_coefficient is 0 while states are replayed: success from the prompt alone may fall "
            "(docs/results.md); set it to 0.01, or replay.ratio to 0"
        )
    if config.replay.imitated and config.rollout.samples == 1:
        lines.append(
            "replay.imitated has no effect with rollout.samples 1, because it repeats successes of problems of which "
            "at most half of the rollouts succeed; raise rollout.samples to 2 or more, or set replay.imitated to 0"
        )
    if config.replay.ratio > 0 and not batch_plan(config).replayed_starts:
        lines.append(
            f"replay.ratio = {config.replay.ratio:g} of rollout.starts = {config.rollout.starts} is less than one "
            "start: nothing is replayed; raise one of them, or set replay.ratio to 0"
        )
    default, of_states = ReplayConfig(), ("ranking", "schedule", "fill", "canonical")
    idle = [f"replay.{name}" for name in of_states if getattr(config.replay, name) != getattr(default, name)]
    if idle and config.replay.ratio == 0:
        lines.append(f"without replayed starts {', '.join(idle)} have no effect; raise replay.ratio, or leave them out")
    learner = config.learner
    alone = learner.critic_warmup * learner.minibatches * learner.epochs
    if learner.value_model != "none" and 0 < alone <= learner.warmup_steps:
        lines.append(
            f"learner.critic_warmup = {learner.critic_warmup} is {alone} optimizer steps, no more than the "
            f"learner.warmup_steps = {learner.warmup_steps} in which the critic's rate only rises; raise the one or "
            "lower the other"
        )
    return [f"warning: {line}" for line in lines]


def sequence_tokens(rollout: RolloutConfig) -> int:
    """Tokens of the longest sequence that a model reads; a length that the data decide counts as 0."""
    return (rollout.max_prompt_tokens or 0) + (rollout.max_response_tokens or 0)


def batch_plan(config: Config) -> BatchPlan:
    """The batch arithmetic."""
    rollout, learner = config.rollout, config.learner
    trajectories = rollout.starts * rollout.samples
    steps = learner.epochs * learner.minibatches
    return BatchPlan(
        starts=rollout.starts,
        replayed_starts=round(rollout.starts * config.replay.ratio),
        trajectories=trajectories,
        minibatch=trajectories // learner.minibatches,
        steps_per_iteration=steps,
        total_steps=steps * config.run.iterations,
    )


def transport(config: Config, device: str) -> Literal["object_store", "collective", "ipc"]:
    """How weights reach the engines on `device`; decides 'auto'. Raises ConfigError for a transport that cannot work.
    NCCL (collective) needs a GPU per process. CUDA shares memory (ipc) between processes on one GPU. An engine on
    several GPUs keeps its model in other processes than the receiving one, so it needs the object store."""
    asked, rollout, cuda = config.learner.transport, config.rollout, device == "cuda"
    pairs = colocated(config, device)
    if asked == "auto":
        if not cuda or rollout.tensor_parallel > 1:
            return "object_store"
        return "ipc" if pairs else "collective"
    if asked != "object_store" and rollout.tensor_parallel > 1:
        raise ConfigError(
            f"learner.transport '{asked}' reaches engines of one GPU, but rollout.tensor_parallel is "
            f"{rollout.tensor_parallel}; set learner.transport to object_store"
        )
    if asked == "ipc" and cuda and not pairs:
        raise ConfigError(
            "learner.transport 'ipc' needs every engine on the GPU of a learner rank; set cluster.colocate to true, or "
            "learner.transport to auto"
        )
    if asked == "collective" and cuda and pairs:
        raise ConfigError(
            "learner.transport 'collective' needs a GPU for every engine and rank, but cluster.colocate puts one of "
            "each on a GPU; set cluster.colocate to false, or learner.transport to auto"
        )
    return asked


def colocated(config: Config, device: str) -> bool:
    """Whether the engine and the learner rank of each number share a place: on GPUs one GPU. Raises ConfigError when
    they are asked to and cannot."""
    rollout, ranks, asked = config.rollout, config.learner.ranks, config.cluster.colocate
    pairs = rollout.actors == ranks and rollout.tensor_parallel == 1
    if asked is None:
        return device == "cuda" and pairs and not rollout.max_staleness
    if asked and not pairs:
        raise ConfigError(
            "cluster.colocate pairs every engine of one GPU with a learner rank, but rollout.actors is "
            f"{rollout.actors}, learner.ranks {ranks} and rollout.tensor_parallel {rollout.tensor_parallel}; make the "
            "first two equal and the third 1, or set cluster.colocate to false"
        )
    return asked


def gpus_each(config: Config, device: str) -> tuple[float, float]:
    """GPUs that an engine and a learner rank reserve. On a shared one each takes half of what a small reward model
    leaves, which is more than half of the GPU for both: so Ray never puts two pairs on one."""
    if device != "cuda":
        return 0.0, 0.0
    if not colocated(config, device):
        return float(config.rollout.tensor_parallel), 1.0
    reward = sum(bundle.count * bundle.gpus for bundle in reward_placement(config, device))
    half = (1.0 - reward) / 2 if reward < 0.5 else 0.5
    return half, half


def placement(config: Config, device: str) -> tuple[Bundle, ...]:
    """The processes of a run and what each reserves on `device` ('cpu' or 'cuda'). Shards and judges reserve nothing.
    Raises ConfigError when they cannot share a place or exchange weights as configured."""
    transport(config, device)
    if config.rollout.sleep and device != "cuda":
        raise ConfigError("rollout.sleep moves weights off a GPU, but the device is cpu; set it to false or auto")
    engines, ranks = _engines(config, device), _ranks(config, device)
    together = (Bundle(PAIR, engines.count, engines.cpus + ranks.cpus, engines.gpus + ranks.gpus),)
    return (
        *(together if colocated(config, device) else (engines, ranks)),
        Bundle("replay shard", config.replay.shards, 0.0, 0.0),
        *reward_placement(config, device),
    )


def evaluation_placement(config: Config, device: str) -> tuple[Bundle, ...]:
    """The processes of an evaluation: the rollout actors, and the reward model if the task has one."""
    return (_engines(config, device), *reward_placement(config, device))


def _engines(config: Config, device: str) -> Bundle:
    return Bundle(ENGINE, config.rollout.actors, config.cluster.rollout_cpus, gpus_each(config, device)[0])


def _ranks(config: Config, device: str) -> Bundle:
    return Bundle(RANK, config.learner.ranks, config.cluster.learner_cpus, gpus_each(config, device)[1])


def reward_placement(config: Config, device: str) -> tuple[Bundle, ...]:
    """The actor that serves rewards to the task dialogue."""
    judged = sum(source.config.name == "dialogue" for source in every_source(config.task))
    settings = config.reward_model
    gpus = settings.gpus if device == "cuda" else 0.0
    return (Bundle("reward model", judged, 0.0, gpus),) if judged else ()


def check_machine(config: Config, machine: Machine, device: str) -> None:
    """Raises ConfigError for threads and memory beyond what the machine has, on which all processes run."""
    rollout = config.rollout
    elsewhere = "" if device == "cpu" or machine.gpus else f"; if the run is elsewhere, {PROGRAM} check --offline"
    for name, threads in (("rollout", rollout.threads), ("learner", config.learner.threads)):
        if threads > max(2, machine.cores):
            raise ConfigError(
                f"{name}.threads = {threads}, but this machine has {machine.cores} cores; lower it to at most that"
                f"{elsewhere}"
            )
    bytes_per_token = 16  # id, two log-probabilities, value
    tokens = rollout.starts * rollout.samples * max(1, sequence_tokens(rollout))
    for name, asked in (
        ("rollout.actors x rollout.kv_cache_gib", rollout.actors * rollout.kv_cache_gib if device == "cpu" else 0.0),
        ("the tokens of rollout.starts x rollout.samples trajectories", tokens * bytes_per_token / 2**30),
    ):
        if asked > machine.memory:
            raise ConfigError(
                f"{name} = {asked:,.1f} GiB, but this machine has {machine.memory:,.1f} GiB of memory; lower it"
                f"{elsewhere}"
            )


def demand(bundles: tuple[Bundle, ...]) -> Resources:
    """The total that the processes reserve."""
    return Resources(sum(b.count * b.cpus for b in bundles), sum(b.count * b.gpus for b in bundles))


def check_resources(bundles: tuple[Bundle, ...], available: Resources) -> None:
    """Raises ClusterError if the processes reserve more than is available."""
    asked = demand(bundles)
    for kind, want, have in (("CPUs", asked.cpus, available.cpus), ("GPUs", asked.gpus, available.gpus)):
        if want > have:
            parts = ", ".join(
                f"{b.count} {b.name}{'s' if b.count > 1 else ''} x {each:g}"
                for b in bundles
                if (each := b.cpus if kind == "CPUs" else b.gpus)
            )
            raise ClusterError(
                f"the run asks for {want:g} {kind} ({parts}) but the cluster has {have:g}; lower rollout.actors, "
                f"learner.ranks or the cluster section's shares, or add nodes"
            )


def check_context(config: Config, model_context: int) -> None:
    """Raises ConfigError when prompt and response are longer than the model's context (tokens)."""
    need = sequence_tokens(config.rollout)
    if need > model_context:
        both = f"{config.rollout.max_prompt_tokens or AUTO} + {config.rollout.max_response_tokens or AUTO}"
        raise ConfigError(
            f"rollout.max_prompt_tokens + rollout.max_response_tokens = {both} = {need} tokens, but the model's "
            f"context is {model_context}; lower one of them"
        )


def choose_device(cluster: ClusterConfig, any_gpu: Callable[[], bool]) -> Device:
    """The configured device; 'auto' is GPUs if there are any. `any_gpu` is called for 'auto' only."""
    if cluster.device != "auto":
        return cluster.device
    return "cuda" if any_gpu() else "cpu"
