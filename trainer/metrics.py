"""The numbers of one training iteration: what each means, its unit, and its way into and out of a file.

The loop fills one `IterationMetrics` per iteration and hands it to every `MetricSink` (`monitor/sinks.py`, `monitor/ray_metrics.py`,
`monitor/console.py`); `monitor/report.py` reads them back. Invariant: this record is the only list of metrics - console
captions, TensorBoard tags, Ray gauges, the Grafana dashboard and docs/metrics.md are all derived from or tested against it.

`python -m trainer.metrics` prints docs/metrics.md.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, Literal, Protocol, Self

Phase = Literal["generate", "reward", "score", "replay", "update", "broadcast", "evaluate"]
PHASES: tuple[Phase, ...] = ("generate", "reward", "score", "replay", "update", "broadcast", "evaluate")


@dataclass(frozen=True, slots=True)
class MetricInfo:
    """What a person must know to read a number."""

    name: str  # key in metrics.jsonl, and after the prefix in TensorBoard and Ray
    group: str  # TensorBoard folder, row group of the dashboard
    unit: str  # "share" is in [0, 1]; "1" has no unit
    meaning: str
    nullable: bool  # whether NaN (null in JSONL) is a normal value


def _metric(group: str, unit: str, meaning: str, *, default: Any = MISSING, nullable: bool = False) -> Any:
    metadata = {"group": group, "unit": unit, "meaning": meaning, "nullable": nullable or default is not MISSING}
    return field(metadata=metadata) if default is MISSING else field(default=default, metadata=metadata)


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
    other: float = _metric(
        "seconds",
        "s",
        "What lies between the phases. A checkpoint is written after the iteration has been counted and is in no number.",
    )
    total: float = _metric("seconds", "s", "The whole iteration.")


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationMetrics:
    """Everything that is reported about one iteration. NaN stands for "there is no such number this time"."""

    iteration: int = _metric("progress", "1", "Number of the iteration, from 1.")
    weight_version: int = _metric("progress", "1", "Weight version after the iteration's broadcast.")
    restarts: int = _metric("progress", "1", "Restarts of rollout actors since the run was started or resumed.")
    quarantined: int = _metric(
        "progress", "starts", "Starts that no engine could generate, since the run was started or resumed."
    )
    rollout_actors: int = _metric("progress", "1", "Rollout actors that serve.")

    root_success: float = _metric("success", "share", "Correct continuations among those that began at a root.")
    replay_success: float = _metric(
        "success", "share", "Correct continuations of replayed states; none without replayed starts.", nullable=True
    )
    evaluation_success: float = _metric(
        "success", "share", "Correct greedy responses to held-out problems, from the root.", default=math.nan
    )
    evaluation_pass: float = _metric(
        "success",
        "share",
        "Held-out problems that one of evaluation.samples sampled responses solves (pass@k); none without samples.",
        default=math.nan,
    )
    evaluation_majority: float = _metric(
        "success",
        "share",
        "Held-out problems whose most frequent sampled answer is right (maj@k); none without samples or short answers.",
        default=math.nan,
    )
    reward: float = _metric("success", "1", "Mean reward of all continuations.")
    replay_share: float = _metric("success", "share", "Starts of the iteration that were replayed states.")
    erroneous_share: float = _metric(
        "success",
        "share",
        "Replayed states already wrong by the task's exact checker; none without a checker.",
        default=math.nan,
    )

    judge_failures: int = _metric(
        "success", "responses", "Responses without a verdict: the judge raised, hung, crashed or returned no number."
    )

    policy_loss: float = _metric(
        "ppo",
        "1",
        "Clipped policy loss, mean over the optimizer steps; none while only the critic learns.",
        nullable=True,
    )
    value_loss: float = _metric("ppo", "1", "Half the squared error of the critic, clipped; mean over the steps.")
    kl: float = _metric(
        "ppo", "nats/token", "PPO KL: how far the update moved the policy from the proximal one.", nullable=True
    )
    first_kl: float = _metric(
        "ppo", "nats/token", "The same at the first minibatch, before any step: must be close to 0.", nullable=True
    )
    reference_kl: float = _metric(
        "ppo", "nats/token", "KL of the proximal policy to the reference policy; 0 without one."
    )
    kl_coefficient: float = _metric("ppo", "1", "Weight of the KL to the reference policy in this update.")
    entropy: float = _metric("ppo", "nats/token", "Entropy of the policy over the generated tokens.", nullable=True)
    explained_variance: float = _metric(
        "ppo",
        "1",
        "Of the critic before the update, 1 - Var(return - value) / Var(return): 1 perfect, 0 no better than the mean, "
        "and 0 if all returns agree.",
    )
    value_auc: float = _metric(
        "ppo",
        "share",
        "How well the critic tells responses that succeed from others, at their starts and boundaries: 1 perfect, 0.5 chance; "
        "none if all ended alike.",
        nullable=True,
    )
    value_auc_within: float = _metric(
        "ppo",
        "share",
        "The same between continuations of one start at the same number of tokens, wherever one of them has a boundary; none if "
        "those of every start ended alike.",
        nullable=True,
    )
    value_brier: float = _metric(
        "ppo",
        "1",
        "Mean squared error of the critic against the outcomes, at starts and boundaries: 0 perfect.",
        nullable=True,
    )
    clip_fraction: float = _metric("ppo", "share", "Tokens whose probability ratio was clipped.", nullable=True)
    policy_grad_norm: float = _metric("ppo", "1", "Gradient norm of the policy before clipping.", nullable=True)
    value_grad_norm: float = _metric("ppo", "1", "Gradient norm of the critic before clipping.")
    policy_lr: float = _metric("ppo", "1", "Learning rate of the policy in the last optimizer step.")
    value_lr: float = _metric("ppo", "1", "Learning rate of the critic in the last optimizer step.")
    importance_mean: float = _metric(
        "ppo", "1", "Mean weight pi_prox / pi_behaviour of the generated tokens, after the correction's bounds."
    )
    importance_truncated: float = _metric("ppo", "share", "Tokens whose weight was cut (truncate) or set to 0 (mask).")
    skipped_steps: int = _metric(
        "ppo", "steps", "Optimizer steps left out because a target, a loss or a gradient was not finite."
    )

    logprob_gap: float = _metric(
        "agreement", "nats", "Largest |log pi_learner - log pi_vllm| of the probe batch after the broadcast."
    )
    behaviour_gap_mean: float = _metric(
        "agreement", "nats", "Mean |log pi_prox - log pi_behaviour| of the generated tokens, before the update."
    )
    behaviour_gap_max: float = _metric("agreement", "nats", "Largest such gap of the iteration.")

    generated_tokens: int = _metric("tokens", "tokens", "Tokens generated in the iteration's training rollouts.")
    total_tokens: int = _metric("tokens", "tokens", "Tokens generated in training rollouts since the run began.")
    truncated_share: float = _metric("tokens", "share", "Continuations that used up their token budget.")
    padding_share: float = _metric("tokens", "share", "Padding among the tokens that the models read in the update.")
    tokens_per_second: float = _metric(
        "tokens", "tokens/s", "Generated tokens over the seconds of the whole iteration, evaluation left out."
    )

    stale_tokens: float = _metric(
        "flow", "share", "Tokens trained on that older weights than the learner's had generated; 0 in synchronous mode."
    )
    mean_staleness: float = _metric("flow", "versions", "Weight versions that a token was behind the learner, mean.")
    max_staleness: int = _metric("flow", "versions", "The same of the oldest token.")
    actor_idle: float = _metric("flow", "share", "Time in which a rollout actor had nothing to generate, mean.")
    learner_idle: float = _metric(
        "flow", "share", "Time in which the learner neither scored, nor updated, nor broadcast."
    )
    waiting_samples: int = _metric("flow", "samples", "Samples that waited for an engine at the end of the iteration.")
    running_samples: int = _metric("flow", "samples", "Samples in the engines then.")
    finished_starts: int = _metric("flow", "starts", "Complete starts that waited for the learner then.")

    store_states: int = _metric("store", "states", "States in the replay store.")
    store_bytes: int = _metric("store", "bytes", "Memory of the replay store over all shards.")
    store_evictions: int = _metric("store", "states", "States evicted since the run began.")
    store_replayable: int = _metric("store", "states", "States that the ranking allows to be drawn.")
    store_hit_rate: float = _metric(
        "store", "share", "States handed out among those asked for, since the run began; 0 before the first request."
    )
    store_mean_age: float = _metric(
        "store", "versions", "Weight versions since the value of a state was written, mean."
    )
    store_max_age: int = _metric("store", "versions", "The same of the state whose value is the oldest.")
    store_mean_depth: float = _metric("store", "tokens", "Length of a state's prefix, mean.")
    store_mean_value: float = _metric("store", "1", "The critic's value of a state, mean.")
    lost_outcomes: int = _metric(
        "store", "continuations", "Outcomes of states that had been evicted meanwhile, since the run began."
    )

    seconds: PhaseSeconds = field(metadata={"nested": True})


def describe() -> tuple[MetricInfo, ...]:
    """All metrics in order, the phases flattened as `<phase>_seconds`."""
    flat = [_info(entry, entry.name) for entry in fields(IterationMetrics) if not entry.metadata.get("nested")]
    return (*flat, *(_info(entry, f"{entry.name}_seconds") for entry in fields(PhaseSeconds)))


def _info(entry: Field[Any], name: str) -> MetricInfo:
    about = entry.metadata
    return MetricInfo(name, about["group"], about["unit"], about["meaning"], about["nullable"])


def flatten(metrics: IterationMetrics) -> dict[str, float]:
    """Name -> value for every metric of `describe`, in its order."""
    values: dict[str, float] = {
        entry.name: getattr(metrics, entry.name) for entry in fields(metrics) if not entry.metadata.get("nested")
    }
    seconds = metrics.seconds
    return values | {f"{entry.name}_seconds": getattr(seconds, entry.name) for entry in fields(seconds)}


def unflatten(values: dict[str, float | None]) -> IterationMetrics:
    """The inverse of `flatten`, with null as NaN; names of other versions are left out, missing ones are NaN or 0."""

    def read(entry: Field[Any], name: str) -> float | int:
        value = values.get(name)
        if entry.type is int:
            return int(value or 0)
        return math.nan if value is None else float(value)

    flat = {entry.name: read(entry, entry.name) for entry in fields(IterationMetrics) if entry.name != "seconds"}
    seconds = PhaseSeconds(**{entry.name: read(entry, f"{entry.name}_seconds") for entry in fields(PhaseSeconds)})
    return IterationMetrics(**flat, seconds=seconds)  # type: ignore[arg-type]


class MetricSink(Protocol):
    """Whoever wants the numbers of every iteration."""

    def write(self, metrics: IterationMetrics) -> None:
        """Take one iteration; called once per iteration, in order."""

    def close(self) -> None:
        """Flush and let go of files; no `write` follows."""


class PhaseClock:
    """Measures the phases of one iteration; a phase may be entered several times and adds up.

    `announce` is told each phase as it begins (the console shows it).

    >>> clock = PhaseClock()
    >>> with clock.phase("generate"):
    ...     pass
    >>> clock.seconds().generate >= 0
    True
    """

    def __init__(self, announce: Callable[[str], None] = lambda _: None) -> None:
        """`announce` is told the name of every phase that begins."""
        self.current: Phase | None = None  # the phase that was entered last
        self._announce = announce
        self._begun = time.perf_counter()
        self._spent: dict[Phase, float] = dict.fromkeys(PHASES, 0.0)

    @contextmanager
    def phase(self, name: Phase) -> Iterator[Self]:
        """Charge the time inside the block to `name`. Phases do not nest: the sum would exceed the total."""
        begun = time.perf_counter()
        self.current = name
        self._announce(name)
        try:
            yield self
        finally:
            self._spent[name] += time.perf_counter() - begun

    def seconds(self) -> PhaseSeconds:
        """What has passed since the clock was made."""
        total = time.perf_counter() - self._begun
        return PhaseSeconds(**self._spent, other=max(0.0, total - sum(self._spent.values())), total=total)


def markdown() -> str:
    """The text of docs/metrics.md."""
    head = (
        "# The numbers of an iteration\n\n"
        "Written once per iteration to `metrics.jsonl` (one JSON object per line, `null` where there is no number), to\n"
        "TensorBoard as `group/name`, and to Ray as the gauge `retrospect_name` (Prometheus exports it as\n"
        "`ray_retrospect_name`, with the run's name as the label `run`). A share lies in [0, 1].\n"
        "Generated by `python -m trainer.metrics > docs/metrics.md`; a test keeps it current.\n\n"
        "| name | group | unit | meaning |\n|---|---|---|---|\n"
    )
    rows = [
        f"| `{info.name}` | {info.group} | {info.unit} | {info.meaning.replace('|', chr(92) + '|')} |\n"
        for info in describe()
    ]
    return head + "".join(rows)


if __name__ == "__main__":
    print(markdown(), end="")
