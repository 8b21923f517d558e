"""The metrics of one training iteration: meaning and unit of each, and how they are written and read. Invariant: this
record is the only list; TensorBoard tags, Ray gauges, the Grafana dashboard and docs/metrics.md are made from it."""

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, Field, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, ParamSpec, Protocol, Self, TypeVar, get_args

from core.run_directory import keep_lines, read_jsonl

Phase = Literal["generate", "reward", "score", "replay", "update", "broadcast", "evaluate"]
PHASES: tuple[Phase, ...] = get_args(Phase)
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class MetricInfo:
    """The description of one metric."""

    name: str  # key in metrics.jsonl, and after the prefix in TensorBoard and Ray
    group: str  # TensorBoard folder
    unit: str  # "share" is in [0, 1]; "1" has no unit
    meaning: str


def _metric(group: str, unit: str, meaning: str, default: Any = MISSING) -> Any:
    return field(metadata={"about": (group, unit, meaning)}, default=default)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseSeconds:
    """Wall-clock seconds of one iteration by phase; the phases and `other` add up to `total`."""

    generate: float = _metric("seconds", "s", "Generation by the rollout actors.")
    reward: float = _metric("seconds", "s", "Judging the responses.")
    score: float = _metric("seconds", "s", "Values, proximal and reference log-probabilities.")
    replay: float = _metric("seconds", "s", "Sampling from, adding to and recording in the replay store.")
    update: float = _metric("seconds", "s", "PPO on policy and critic.")
    broadcast: float = _metric("seconds", "s", "New weights to every engine, acknowledged and probed.")
    evaluate: float = _metric("seconds", "s", "Evaluation on held-out problems.")
    other: float = _metric("seconds", "s", "Time between the phases. No number includes the time of a checkpoint.")
    total: float = _metric("seconds", "s", "The whole iteration.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceMetrics:
    """The success on one data set of a mixture (`task.sources`). NaN: no value in this iteration."""

    starts: float = _metric("sources", "starts", "Starts of this data set, fresh and replayed.")
    root_success: float = _metric("sources", "share", "Correct continuations among those that start at a root.")
    replay_success: float = _metric("sources", "share", "Correct continuations among those of replayed states.")
    reward: float = _metric("sources", "1", "Mean reward of its continuations.")
    evaluation_success: float = _metric("sources", "share", "Correct greedy responses to its held-out problems.")


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationMetrics:
    """Everything that is reported about one iteration. NaN: the metric has no value in this iteration."""

    iteration: int = _metric("progress", "1", "Number of the iteration, from 1.")
    weight_version: int = _metric("progress", "1", "Weight version after the iteration's broadcast.")
    restarts: int = _metric("progress", "1", "Restarts of rollout actors since run start or resume.")
    quarantined: int = _metric("progress", "starts", "Starts that could not be generated, since run start or resume.")
    dropped_episodes: int = _metric(
        "progress", "episodes", "Episodes whose environment failed or answered differently, since run start or resume."
    )
    rollout_actors: int = _metric("progress", "1", "Rollout actors that are in service.")

    root_success: float = _metric("success", "share", "Correct continuations among those that start at a root.")
    replay_success: float = _metric("success", "share", "Correct continuations among those of replayed states.")
    evaluation_success: float = _metric("success", "share", "Correct greedy responses to held-out problems.", math.nan)
    evaluation_pass: float = _metric(
        "success", "share", "Held-out problems that any of evaluation.samples responses solves (pass@k).", math.nan
    )
    evaluation_majority: float = _metric(
        "success", "share", "Held-out problems whose most frequent sampled answer is right (maj@k).", math.nan
    )
    evaluation_reward: float = _metric(
        "success", "1", "Mean reward of greedy responses to held-out problems.", math.nan
    )
    reward: float = _metric("success", "1", "Mean reward of all continuations, with those of steps and turns.")
    reward_deviation: float = _metric("success", "1", "Standard deviation of these rewards.", math.nan)
    equal_groups: float = _metric(
        "success",
        "share",
        "Starts whose continuations all have the same reward, as the learner sees it; none: one sample per start.",
        math.nan,
    )
    replay_share: float = _metric("success", "share", "Starts of the iteration that are replayed states.")
    erroneous_share: float = _metric(
        "success",
        "share",
        "Replayed states that are already wrong, of those that the task can check (replay.exclude_wrong).",
        math.nan,
    )
    erroneous_states: float = _metric(
        "success",
        "share",
        "States of the iteration's rollouts that are already wrong and not stored (replay.exclude_wrong).",
        math.nan,
    )
    erroneous_imitated: float = _metric(
        "success", "share", "Imitated successes that contain something wrong (replay.exclude_wrong).", math.nan
    )
    lucky_share: float = _metric(
        "success", "share", "Correct responses that contain something wrong (replay.exclude_wrong).", math.nan
    )
    visited: float = _metric("success", "share", "Training problems that were started from the root so far.", math.nan)
    visits: float = _metric("success", "visits", "Starts from the root of each of these problems so far.", math.nan)
    covered_from_root: float = _metric(
        "success", "share", "Training problems that ever succeeded from the root.", math.nan
    )
    covered: float = _metric(
        "success", "share", "Training problems that ever succeeded, from the root or from a state.", math.nan
    )
    imitated: int = _metric("success", "responses", "Earlier right answers that the policy repeated.")
    judge_failures: int = _metric(
        "success",
        "responses",
        "Responses on which the judge failed. They count as wrong here; start sources leave them out.",
    )
    resampled_starts: int = _metric(
        "success", "starts", "Starts that were generated and replaced for equal rewards (rollout.resample): its cost."
    )

    policy_loss: float = _metric("ppo", "1", "Clipped policy loss, mean over the steps; none in the critic's warm-up.")
    value_loss: float = _metric("ppo", "1", "Half the squared error of the critic, clipped; mean over the steps.")
    kl: float = _metric("ppo", "nats/token", "PPO KL: how far the update moved the policy from the proximal one.")
    first_kl: float = _metric("ppo", "nats/token", "PPO KL of the first minibatch, before any step: close to 0.")
    reference_kl: float = _metric(
        "ppo", "nats/token", "Unbiased KL of the proximal to the reference policy (k1; may be below 0); 0 without one."
    )
    kl_coefficient: float = _metric("ppo", "1", "Weight of the KL to the reference policy in this update.")
    entropy: float = _metric("ppo", "nats/token", "Entropy of the policy over the generated tokens.")
    explained_variance: float = _metric(
        "ppo", "1", "Of the critic before the update: 1 - Var(return - value) / Var(return); 0 if returns are equal."
    )
    value_auc: float = _metric(
        "ppo", "share", "AUC of the critic at starts and boundaries; 0.5 is chance, none if all outcomes are equal."
    )
    value_auc_within: float = _metric(
        "ppo", "share", "AUC of the critic between continuations of one start at the same number of tokens."
    )
    value_brier: float = _metric("ppo", "1", "Mean squared error of the critic at starts and boundaries; 0 is perfect.")
    clip_fraction: float = _metric("ppo", "share", "Tokens whose probability ratio was clipped.")
    policy_grad_norm: float = _metric("ppo", "1", "Gradient norm of the policy before clipping.")
    value_grad_norm: float = _metric("ppo", "1", "Gradient norm of the critic before clipping.")
    policy_lr: float = _metric("ppo", "1", "Learning rate of the policy in the last optimizer step.")
    value_lr: float = _metric("ppo", "1", "Learning rate of the critic in the last optimizer step.")
    importance_mean: float = _metric("ppo", "1", "Mean weight pi_prox / pi_behaviour of the generated tokens, bounded.")
    importance_truncated: float = _metric("ppo", "share", "Tokens whose weight was cut (truncate) or set to 0 (mask).")
    effective_samples: float = _metric(
        "ppo", "share", "Effective sample size of these weights, as a share of the tokens: (sum w)^2 / (n sum w^2)."
    )
    policy_steps: int = _metric("ppo", "steps", "Optimizer steps of the policy; none where all rewards are equal.")
    skipped_steps: int = _metric("ppo", "steps", "Optimizer steps skipped because of a NaN or Inf.")

    logprob_gap: float = _metric(
        "agreement", "nats", "Mean |log pi_learner - log pi_vllm| of the probe after the broadcast; none: not probed."
    )
    logprob_gap_high: float = _metric("agreement", "nats", "99 % quantile of the same over tokens.")
    behaviour_gap_mean: float = _metric(
        "agreement", "nats", "Mean |log pi_prox - log pi_behaviour| of the generated tokens, before the update."
    )
    behaviour_gap_max: float = _metric("agreement", "nats", "Largest |log pi_prox - log pi_behaviour| of these tokens.")

    generated_tokens: int = _metric("tokens", "tokens", "Tokens generated in the iteration's training rollouts.")
    total_tokens: int = _metric("tokens", "tokens", "Tokens generated in training rollouts since the run began.")
    environment_steps: int = _metric("tokens", "steps", "Steps of environments in the iteration's training rollouts.")
    repeated_steps: int = _metric("tokens", "steps", "Of these, those that rebuilt replayed states.")
    response_length: float = _metric(
        "tokens", "tokens", "Length of a response, with its prefix and an environment's answers, mean.", math.nan
    )
    longest_response: int = _metric("tokens", "tokens", "Length of the longest of them.", 0)
    truncated_share: float = _metric("tokens", "share", "Continuations that used up their token budget.")
    shared_share: float = _metric(
        "tokens", "share", "Tokens of the update that were read once for several rows that begin alike."
    )
    tokens_per_second: float = _metric("tokens", "tokens/s", "Generated tokens per second, without evaluation.")

    stale_tokens: float = _metric("flow", "share", "Trained tokens that an older policy generated.")
    mean_staleness: float = _metric("flow", "versions", "Weight versions between token and learner, mean.")
    max_staleness: int = _metric("flow", "versions", "Weight versions between the oldest token and the learner.")
    actor_idle: float = _metric("flow", "share", "Time in which a rollout actor has nothing to generate, mean.")
    learner_idle: float = _metric("flow", "share", "Time in which the learner does not score, update or broadcast.")
    waiting_samples: int = _metric("flow", "samples", "Samples that wait for an engine at the end of the iteration.")
    running_samples: int = _metric("flow", "samples", "Samples in the engines at the end of the iteration.")
    finished_starts: int = _metric("flow", "starts", "Complete starts that wait for the learner then.")

    store_states: int = _metric("store", "states", "States in the replay store.", 0)
    store_bytes: int = _metric("store", "bytes", "Memory of the replay store over all shards.", 0)
    store_evictions: int = _metric("store", "states", "States evicted since the run began.", 0)
    store_replayable: int = _metric("store", "states", "States that can be drawn.", 0)
    store_hit_rate: float = _metric("store", "share", "States drawn, of those requested since the run began.", 0)
    store_mean_age: float = _metric("store", "versions", "Age of a state's value in weight versions, mean.", 0)
    store_max_age: int = _metric("store", "versions", "Age of the oldest value in weight versions.", 0)
    store_mean_depth: float = _metric("store", "tokens", "Length of a state's prefix, mean.", 0)
    store_mean_value: float = _metric("store", "1", "The critic's value of a state, mean.", 0)
    discoveries: int = _metric(
        "store", "responses", "Successes from states, kept to be repeated until a visit of the root succeeds.", 0
    )
    replay_halved: int = _metric(
        "store",
        "0 or 1",
        "Whether replay.ratio is halved: prompts, of training or held out, succeed less than at first.",
        0,
    )
    lost_outcomes: int = _metric("store", "continuations", "Outcomes that arrived after their state's eviction.", 0)

    driver_memory: float = _metric("memory", "GiB", "Most resident memory of the driver so far.", math.nan)
    judge_memory: float = _metric("memory", "GiB", "The same of the judging processes, together.", math.nan)
    engine_memory: float = _metric("memory", "GiB", "The same of the largest rollout actor.", math.nan)
    learner_memory: float = _metric("memory", "GiB", "The same of the largest learner rank.", math.nan)
    store_memory: float = _metric("memory", "GiB", "The same of the replay shards, together.", math.nan)
    engine_gpu_memory: float = _metric(
        "memory", "GiB", "Most GPU memory that torch has reserved in a rollout actor so far.", math.nan
    )
    learner_gpu_memory: float = _metric("memory", "GiB", "The same in a learner rank.", math.nan)

    seconds: PhaseSeconds
    sources: Mapping[str, SourceMetrics] = field(default_factory=dict)  # by label; empty for a task of one data set
    # mean value by label of each of several rewards (`task.rewards`), over the responses to which it applies
    rewards: Mapping[str, float] = field(default_factory=dict)


def metric_infos() -> tuple[MetricInfo, ...]:
    """All metrics in order, the phases flattened as `<phase>_seconds`."""
    return tuple(MetricInfo(name, *entry.metadata["about"]) for name, entry in _entries())


def _entries() -> list[tuple[str, Field[Any]]]:
    flat = [(entry.name, entry) for entry in fields(IterationMetrics) if entry.metadata]
    return flat + [(f"{entry.name}_seconds", entry) for entry in fields(PhaseSeconds)]


def flatten(metrics: IterationMetrics) -> dict[str, float]:
    """Name -> value for every metric of `metric_infos`, in its order."""
    return {
        name: getattr(metrics.seconds if name.endswith("_seconds") else metrics, entry.name)
        for name, entry in _entries()
    }


def flatten_sources(metrics: IterationMetrics) -> dict[str, float]:
    """`sources/LABEL/name` -> value for every data set of a mixture, `rewards/LABEL` -> value for every reward."""
    of_sources = {
        f"sources/{label}/{name}": value
        for label, source in metrics.sources.items()
        for name, value in asdict(source).items()
    }
    return of_sources | {f"rewards/{label}": value for label, value in metrics.rewards.items()}


def unflatten(values: dict[str, Any]) -> IterationMetrics:
    """The inverse of both; null becomes NaN. Unknown names are ignored, missing ones NaN, or 0 if they are counts.
    Raises KeyError for what is no iteration."""
    found: dict[str, Any] = {}
    for name, entry in _entries():
        value = values[name] if name == "iteration" else values.get(name)
        found[name] = int(value or 0) if entry.type is int else math.nan if value is None else float(value)
    seconds = PhaseSeconds(**{entry.name: found.pop(f"{entry.name}_seconds") for entry in fields(PhaseSeconds)})
    sources: dict[str, dict[str, float]] = {}
    rewards: dict[str, float] = {}
    for name, value in values.items():
        if name.startswith("sources/"):
            _, label, metric = name.split("/")
            sources.setdefault(label, {})[metric] = math.nan if value is None else float(value)
        elif name.startswith("rewards/"):
            rewards[name.removeprefix("rewards/")] = math.nan if value is None else float(value)
    by_label = {label: SourceMetrics(**of_source) for label, of_source in sources.items()}
    return IterationMetrics(**found, seconds=seconds, sources=by_label, rewards=rewards)


class MetricSink(Protocol):
    """Receives the numbers of every iteration."""

    def write(self, metrics: IterationMetrics) -> None:
        """Write one iteration; called once per iteration, in order."""

    def close(self) -> None:
        """Close the files."""


class JsonlSink:
    """One line per iteration, on disk (fsync) when `write` returns; NaN and infinities become null. Lines after `last`,
    or torn, are dropped: after a resume every iteration is there once, even if a write was killed."""

    def __init__(self, path: Path, *, last: int = 0) -> None:
        keep_lines(path, "iteration", last)
        self._file = path.open("a", encoding="utf-8")

    def write(self, metrics: IterationMetrics) -> None:
        """Append the iteration."""
        numbers = flatten(metrics) | flatten_sources(metrics)
        values = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
        self._file.write(json.dumps(values, allow_nan=False) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_metrics(path: Path) -> list[IterationMetrics]:
    """The iterations of a metrics.jsonl, in order."""
    return [unflatten(line) for line in read_jsonl(path, unflatten)]


class PhaseClock:
    """Measures the phases of one iteration. A phase may be entered several times; its seconds add up."""

    def __init__(self, announce: Callable[[str], object] = lambda _: None) -> None:
        self._announce = announce
        self._begun = time.perf_counter()
        self._spent: dict[Phase, float] = dict.fromkeys(PHASES, 0.0)

    @contextmanager
    def phase(self, name: Phase) -> Iterator[Self]:
        """Charge the time inside the block to `name`. Phases do not nest: the sum would exceed the total."""
        begun = time.perf_counter()
        self._announce(name)
        try:
            yield self
        finally:
            self._spent[name] += time.perf_counter() - begun

    def timed(self, name: Phase, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """What `call` returns; its time is charged to `name`."""
        with self.phase(name):
            return call(*args, **kwargs)

    def seconds(self) -> PhaseSeconds:
        """The seconds since the clock was made, by phase."""
        total = time.perf_counter() - self._begun
        return PhaseSeconds(**self._spent, other=max(0.0, total - sum(self._spent.values())), total=total)
