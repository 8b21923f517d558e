"""Collects the metrics of an iteration."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from core.records import IntArray, Judged
from trainer.evaluation.scores import Evaluation
from trainer.metrics import IterationMetrics, PhaseSeconds, SourceMetrics
from trainer.records import Components, IterationResult
from trainer.starts import erroneous_share, erroneous_states

if TYPE_CHECKING:
    from learner.stats import UpdateStats
    from replay.stats import StoreStats

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
    parts: Components,
    result: IterationResult,
    seconds: PhaseSeconds,
    *,
    tokens_before: int,
    busy_before: float,
    evaluation: Evaluation | None,
    find_wrong: bool = False,
) -> IterationMetrics:
    """An iteration's metrics. `tokens_before`, `busy_before`: generated tokens and engines' seconds before it.
    `find_wrong`: look for texts that are wrong before they end."""
    batch, gap = result.batch, result.broadcast.gap
    judged = batch.all_judged
    tokens = sum(int(item.trajectory.generated.sum()) for item in judged)
    episodes = [item.trajectory.episode for item in judged if item.trajectory.episode is not None]
    return IterationMetrics(
        iteration=result.number,
        weight_version=result.broadcast.version,
        restarts=parts.actors.restarts,
        quarantined=parts.actors.quarantined,
        dropped_episodes=parts.actors.dropped,
        root_success=_success([item for item in judged if not item.trajectory.start.replayed]),
        replay_success=_success([item for item in judged if item.trajectory.start.replayed]),
        **_of_evaluation(evaluation),
        reward=sum(item.reward for item in judged) / len(judged),
        replay_share=sum(start.replayed for start in batch.starts) / len(batch.starts),
        **(_of_errors(parts, result) if find_wrong else {}),
        imitated=len(result.imitated) if result.stats.policy_trained else 0,
        judge_failures=sum(item.verdict.judge_failed for item in judged),
        resampled_starts=len({item.trajectory.start.id for item in batch.dropped}),
        **_of_update(result.stats),
        logprob_gap=math.nan if gap is None else gap.mean,
        logprob_gap_high=math.nan if gap is None else gap.high,
        generated_tokens=tokens,
        total_tokens=tokens_before + tokens,
        environment_steps=sum(one.steps for one in episodes),
        repeated_steps=sum(one.repeated for one in episodes),
        truncated_share=sum(item.trajectory.finish.truncated for item in judged) / len(judged),
        tokens_per_second=tokens / (seconds.total - seconds.evaluate),
        **_of_flow(parts, result, seconds, busy_before),
        **_of_store(parts.replay.stats()),
        seconds=seconds,
        sources=_by_source(parts, result, evaluation),
        rewards=_by_reward(judged),
    )


def _of_errors(parts: Components, result: IterationResult) -> dict[str, Any]:
    """Shares of texts that are wrong before they end."""
    judged, is_wrong = result.batch.all_judged, parts.task.prefix_is_wrong
    replayed = [(start.problem_id, start.prefix_ids) for start in result.batch.starts if start.replayed]
    return {
        "erroneous_share": erroneous_share(replayed, is_wrong),
        "erroneous_states": erroneous_states(judged, parts.boundaries, is_wrong),
        "erroneous_imitated": erroneous_share((_response(item.scored.judged) for item in result.imitated), is_wrong),
        "lucky_share": erroneous_share((_response(item) for item in judged if item.verdict.correct), is_wrong),
    }


def _response(item: Judged) -> tuple[str, IntArray]:
    """Problem id and whole response."""
    return item.trajectory.start.problem_id, item.trajectory.response_ids


def _by_source(parts: Components, result: IterationResult, evaluation: Evaluation | None) -> dict[str, SourceMetrics]:
    found, held_out = {}, evaluation.sources if evaluation else {}
    for label in parts.task.weights:
        own = [item for item in result.scored if parts.by_id[item.trajectory.start.problem_id].source == label]
        found[label] = SourceMetrics(
            starts=float(len({item.trajectory.start.id for item in own})),
            root_success=_success([item.judged for item in own if not item.trajectory.start.replayed]),
            replay_success=_success([item.judged for item in own if item.trajectory.start.replayed]),
            reward=sum(item.judged.reward for item in own) / len(own) if own else math.nan,
            evaluation_success=held_out[label].success.mean if label in held_out else math.nan,
        )
    return found


def _by_reward(judged: Sequence[Judged]) -> dict[str, float]:
    """Mean value of each of several rewards, over the responses to which it applies."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for item in judged:
        for label, value in item.verdict.parts:
            found[label].append(value)
    return {label: sum(values) / len(values) for label, values in sorted(found.items())}


def _success(judged: Sequence[Judged]) -> float:
    return sum(item.verdict.correct for item in judged) / len(judged) if judged else math.nan


def _of_evaluation(evaluation: Evaluation | None) -> dict[str, Any]:
    if evaluation is None:
        return {}
    scores = evaluation.overall
    return {
        "evaluation_success": scores.success.mean,
        "evaluation_pass": scores.passes[evaluation.samples].mean if scores.passes else math.nan,
        "evaluation_majority": scores.majority.mean if scores.majority is not None else math.nan,
    }


def _of_update(stats: UpdateStats) -> dict[str, Any]:
    """The metrics of the update: they have the same name in both records."""
    names = {entry.name for entry in fields(stats)} & {entry.name for entry in fields(IterationMetrics)}
    absent = [*(() if stats.policy_trained else OF_POLICY), *(() if stats.critic else OF_CRITIC)]
    return {name: getattr(stats, name) for name in names} | dict.fromkeys(absent, math.nan)


def _of_flow(parts: Components, result: IterationResult, seconds: PhaseSeconds, busy_before: float) -> dict[str, Any]:
    queues = parts.actors.queues()
    versions = [item.trajectory.versions[item.trajectory.generated] for item in result.scored]
    staleness = result.broadcast.version - 1 - np.concatenate(versions)
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
        "finished_starts": 0 if parts.pipeline is None else parts.pipeline.finished,
    }


def _of_store(store: StoreStats) -> dict[str, Any]:
    names = ("states", "replayable", "hit_rate", "mean_age", "max_age", "mean_depth", "mean_value")
    counts = {"store_bytes": store.memory_bytes, "store_evictions": store.evicted, "lost_outcomes": store.lost_outcomes}
    return counts | {f"store_{name}": getattr(store, name) for name in names}
