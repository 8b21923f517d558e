"""Collects the metrics of an iteration."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from core.child import STARTED
from core.machine import peak_memory
from core.records import Rollout, Use, used
from trainer.evaluation.scores import Evaluation
from trainer.metrics import IterationMetrics, PhaseSeconds, SourceMetrics
from trainer.rollouts import by_information
from trainer.run import Report, Run

if TYPE_CHECKING:
    from learner.stats import UpdateStats

OF_POLICY = ("policy_loss", "kl", "first_kl", "entropy", "clip_fraction", "policy_grad_norm")
"""Metrics of the update that have no value while only the critic learns."""
OF_CRITIC = (
    "value_loss",
    "value_grad_norm",
    "value_lr",
    "explained_variance",
    "value_auc",
    "value_auc_within",
    "value_brier",
)
"""Metrics of the update that have no value without a critic."""


def collect_metrics(
    run: Run,
    report: Report,
    seconds: PhaseSeconds,
    *,
    tokens_before: int,
    busy_before: float,
    evaluation: Evaluation | None,
) -> IterationMetrics:
    """An iteration's metrics. `tokens_before`, `busy_before`: generated tokens and engines' seconds before it."""
    gap, generated = report.broadcast.gap, report.generated
    starts = {rollout.start.id: rollout.start for rollout in report.trained}
    tokens = sum(int(rollout.generated.sum()) for rollout in generated)
    episodes = [rollout.episode for rollout in generated if rollout.episode is not None]
    measured: dict[str, Any] = {  # some of them are whole numbers, which no type of a mapping says
        **_of_evaluation(evaluation),
        **_of_rewards(run, generated),
        **_of_update(report.stats),
        **_of_lengths(generated),
        **_of_flow(run, report, seconds, busy_before),
        **run.sources.metrics(),
        **_of_memory(report),
    }
    return IterationMetrics(
        iteration=report.iteration,
        weight_version=report.broadcast.version,
        restarts=run.pool.restarts,
        quarantined=run.pool.quarantined,
        dropped_episodes=run.pool.dropped,
        root_success=_success([rollout for rollout in generated if rollout.start.from_root]),
        replay_success=_success([rollout for rollout in generated if rollout.start.replayed]),
        replay_share=sum(start.replayed for start in starts.values()) / len(starts),
        imitated=len(report.imitated) if report.stats.policy_trained else 0,
        judge_failures=sum(rollout.verdict.judge_failed for rollout in generated),
        resampled_starts=len({rollout.start.id for rollout in used(report.rollouts, Use.COUNT)}),
        logprob_gap=math.nan if gap is None else gap.mean,
        logprob_gap_high=math.nan if gap is None else gap.high,
        generated_tokens=tokens,
        total_tokens=tokens_before + tokens,
        environment_steps=sum(episode.steps for episode in episodes),
        repeated_steps=sum(episode.repeated for episode in episodes),
        truncated_share=sum(rollout.finish.truncated for rollout in generated) / len(generated),
        tokens_per_second=tokens / (seconds.total - seconds.evaluate),
        seconds=seconds,
        sources=_by_source(run, report, evaluation),
        rewards=_by_reward(generated),
        **measured,
    )


def _of_rewards(run: Run, generated: Sequence[Rollout]) -> dict[str, float]:
    rewards = np.array([rollout.reward for rollout in generated])
    _, uninformative = by_information(generated, run.algorithm)
    alike, starts = (len({rollout.start.id for rollout in part}) for part in (uninformative, generated))
    several = any(rollout.start.samples > 1 for rollout in generated)
    return {
        "reward": sum(rollout.reward for rollout in generated) / len(generated),
        "reward_deviation": float(rewards.std()),
        "equal_groups": alike / starts if several else math.nan,
    }


def _of_lengths(generated: Sequence[Rollout]) -> dict[str, float]:
    lengths = [rollout.response_ids.size for rollout in generated]
    return {"response_length": sum(lengths) / len(lengths), "longest_response": max(lengths)}


def _by_source(run: Run, report: Report, evaluation: Evaluation | None) -> dict[str, SourceMetrics]:
    metrics, held_out = {}, evaluation.sources if evaluation else {}
    for label in run.task.weights:
        rollouts = [one for one in report.generated if run.problems[one.start.problem_id].source == label]
        metrics[label] = SourceMetrics(
            starts=float(len({rollout.start.id for rollout in rollouts})),
            root_success=_success([rollout for rollout in rollouts if rollout.start.from_root]),
            replay_success=_success([rollout for rollout in rollouts if rollout.start.replayed]),
            reward=sum(rollout.reward for rollout in rollouts) / len(rollouts) if rollouts else math.nan,
            evaluation_success=held_out[label].success.mean if label in held_out else math.nan,
        )
    return metrics


def _by_reward(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Mean value of each of several rewards, over the responses to which it applies."""
    values: defaultdict[str, list[float]] = defaultdict(list)
    for rollout in rollouts:
        for label, value in rollout.verdict.parts:
            values[label].append(value)
    return {label: sum(of_label) / len(of_label) for label, of_label in sorted(values.items())}


def _success(rollouts: Sequence[Rollout]) -> float:
    return sum(rollout.verdict.correct for rollout in rollouts) / len(rollouts) if rollouts else math.nan


def _of_evaluation(evaluation: Evaluation | None) -> dict[str, float]:
    if evaluation is None:
        return {}
    scores = evaluation.overall
    return {
        "evaluation_success": scores.success.mean,
        "evaluation_reward": scores.reward.mean,
        "evaluation_pass": scores.passes[evaluation.samples].mean if scores.passes else math.nan,
        "evaluation_majority": scores.majority.mean if scores.majority is not None else math.nan,
    }


def _of_update(stats: UpdateStats) -> dict[str, float]:
    """The metrics of the update: they have the same name in both records."""
    names = {entry.name for entry in fields(stats)} & {entry.name for entry in fields(IterationMetrics)}
    absent = [*(() if stats.policy_trained else OF_POLICY), *(() if stats.critic else OF_CRITIC)]
    return {name: getattr(stats, name) for name in names} | dict.fromkeys(absent, math.nan)


def _of_memory(report: Report) -> dict[str, float]:
    engine, learner = report.broadcast.engine, report.broadcast.learner
    sizes = {
        "driver_memory": peak_memory().resident,
        "judge_memory": sum(child.peak_memory for child in list(STARTED)),
        "engine_memory": engine.resident,
        "learner_memory": learner.resident,
        "engine_gpu_memory": engine.gpu,
        "learner_gpu_memory": learner.gpu,
    }
    return {name: size / 2**30 for name, size in sizes.items() if size}


def _of_flow(run: Run, report: Report, seconds: PhaseSeconds, busy_before: float) -> dict[str, float]:
    queues = run.pool.queues()
    versions = [rollout.versions[rollout.generated] for rollout in report.trained]
    staleness = report.broadcast.version - 1 - np.concatenate(versions)
    busy = queues.busy - busy_before
    return {
        "rollout_actors": queues.actors,
        "stale_tokens": float((staleness > 0).mean()),
        "mean_staleness": float(staleness.mean()),
        "max_staleness": int(staleness.max()),
        "actor_idle": max(0.0, 1.0 - busy / (max(queues.actors, 1) * seconds.total)),
        "learner_idle": 1.0 - (seconds.score + seconds.update + seconds.broadcast) / seconds.total,
        "waiting_samples": queues.waiting,
        "running_samples": queues.running,
        "finished_starts": run.engines.finished,
    }
