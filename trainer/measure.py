"""From what an iteration produced to the numbers that are reported. Pure; called by `trainer/session.py`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from core.records import Scored
from trainer.loop import Iteration
from trainer.metrics import IterationMetrics, PhaseSeconds

if TYPE_CHECKING:
    from learner.stats import UpdateStats
    from replay.stats import StoreStats
    from trainer.evaluation import Evaluation


@dataclass(frozen=True, slots=True)
class Flow:
    """How generation stood at the end of an iteration."""

    restarts: int  # of rollout actors, since the run was started
    quarantined: int  # starts
    actors: int  # that serve
    busy: float  # seconds that they generated in this iteration, summed
    waiting: int  # samples without an engine
    running: int  # samples in engines
    finished: int  # complete starts that wait for the learner


def success(scored: Sequence[Scored]) -> float:
    """Share of correct continuations; NaN of none."""
    return sum(item.judged.verdict.correct for item in scored) / len(scored) if scored else math.nan


def measure(
    iteration: Iteration,
    seconds: PhaseSeconds,
    store: "StoreStats",
    *,
    erroneous: float,
    flow: Flow,
    tokens_before: int,
    evaluation: "Evaluation | None",
) -> IterationMetrics:
    """The metrics of an iteration. `tokens_before`: generated in earlier iterations of the run."""
    scored, stats = iteration.scored, iteration.stats
    replayed = [item for item in scored if item.trajectory.start.replayed]
    tokens = sum(item.trajectory.tokens.size for item in scored)
    return IterationMetrics(
        iteration=iteration.number,
        weight_version=iteration.broadcast.version,
        restarts=flow.restarts,
        quarantined=flow.quarantined,
        rollout_actors=flow.actors,
        root_success=success([item for item in scored if not item.trajectory.start.replayed]),
        replay_success=success(replayed),
        **_of_evaluation(evaluation),
        reward=sum(item.judged.verdict.reward for item in scored) / len(scored),
        replay_share=sum(start.replayed for start in iteration.starts) / len(iteration.starts),
        erroneous_share=erroneous,
        judge_failures=sum(item.judged.verdict.judge_failed for item in scored),
        **_of_update(stats),
        logprob_gap=iteration.broadcast.logprob_gap,
        generated_tokens=tokens,
        total_tokens=tokens_before + tokens,
        truncated_share=sum(item.trajectory.finish.truncated for item in scored) / len(scored),
        tokens_per_second=tokens / (seconds.total - seconds.evaluate),
        **_of_flow(iteration, flow, seconds),
        **_of_store(store),
        seconds=seconds,
    )


def _of_flow(iteration: Iteration, flow: Flow, seconds: PhaseSeconds) -> dict[str, Any]:
    """How old the tokens were, and who waited for whom."""
    trained_at = iteration.broadcast.version - 1
    staleness = trained_at - np.concatenate([item.trajectory.versions for item in iteration.scored])
    return {
        "stale_tokens": float((staleness > 0).mean()),
        "mean_staleness": float(staleness.mean()),
        "max_staleness": int(staleness.max()),
        "actor_idle": max(0.0, 1.0 - flow.busy / (max(flow.actors, 1) * seconds.total)),
        "learner_idle": 1.0 - (seconds.score + seconds.update + seconds.broadcast) / seconds.total,
        "waiting_samples": flow.waiting,
        "running_samples": flow.running,
        "finished_starts": flow.finished,
    }


def _of_evaluation(evaluation: "Evaluation | None") -> dict[str, Any]:
    """What was measured on held-out problems; nothing without an evaluation."""
    if evaluation is None:
        return {}
    scores = evaluation.overall
    return {
        "evaluation_success": scores.success.mean,
        "evaluation_pass": scores.passes[-1].estimate.mean if scores.passes else math.nan,
        "evaluation_majority": scores.majority.mean if scores.majority is not None else math.nan,
    }


def _of_update(stats: "UpdateStats") -> dict[str, Any]:
    """What learner and batch say of the update."""

    def policy(number: float) -> float:
        """A number of the policy's update; NaN while only the critic learns (critic warm-up)."""
        return number if stats.policy_trained else math.nan

    return {
        "policy_loss": policy(stats.policy_loss),
        "value_loss": stats.value_loss,
        "kl": policy(stats.policy_kl),
        "first_kl": policy(stats.first_kl),
        "reference_kl": stats.reference_kl,
        "kl_coefficient": stats.kl_coefficient,
        "entropy": policy(stats.entropy),
        "explained_variance": stats.explained_variance,
        "value_auc": stats.value_auc,
        "value_auc_within": stats.value_auc_within,
        "value_brier": stats.value_brier,
        "clip_fraction": policy(stats.clip_fraction),
        "policy_grad_norm": policy(stats.policy_grad_norm),
        "value_grad_norm": stats.value_grad_norm,
        "policy_lr": stats.policy_lr,
        "value_lr": stats.value_lr,
        "importance_mean": stats.importance_mean,
        "importance_truncated": stats.importance_truncated,
        "skipped_steps": stats.skipped_steps,
        "behaviour_gap_mean": stats.engine_gap_mean,
        "behaviour_gap_max": stats.engine_gap_max,
        "padding_share": stats.padding_share,
    }


def _of_store(store: "StoreStats") -> dict[str, Any]:
    """How the replay store stands after the iteration."""
    return {
        "store_states": store.states,
        "store_bytes": store.memory_bytes,
        "store_evictions": store.evicted,
        "store_replayable": store.replayable,
        "store_hit_rate": store.hit_rate,
        "store_mean_age": store.mean_age,
        "store_max_age": store.max_age,
        "store_mean_depth": store.mean_depth,
        "store_mean_value": store.mean_value,
        "lost_outcomes": store.lost_outcomes,
    }
