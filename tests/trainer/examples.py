"""Made-up iterations for the tests of the watching part: plausible numbers that differ from iteration to iteration."""

import math
from dataclasses import replace
from typing import Any

from trainer.metrics import IterationMetrics, PhaseSeconds

SECONDS = PhaseSeconds(
    generate=3.0,
    reward=0.25,
    score=0.75,
    replay=0.125,
    update=2.0,
    broadcast=0.25,
    evaluate=0.0,
    other=0.125,
    total=6.5,
)


FLOW: dict[str, Any] = {
    "dropped_episodes": 0,
    "environment_steps": 0,
    "repeated_steps": 0,
    "stale_tokens": 0.0,
    "mean_staleness": 0.0,
    "max_staleness": 0,
    "actor_idle": 0.5,
    "learner_idle": 0.5,
    "waiting_samples": 0,
    "running_samples": 0,
    "finished_starts": 0,
    "reward_deviation": 0.5,
    "equal_groups": 0.25,
    "response_length": 123.5,
    "longest_response": 200,
    "driver_memory": 0.75,
    "learner_memory": 2.5,
}


def iteration(number: int) -> IterationMetrics:
    """Iteration `number`; nothing is replayed in the first, every second is evaluated."""
    return IterationMetrics(
        iteration=number,
        weight_version=number,
        restarts=0,
        quarantined=0,
        rollout_actors=1,
        root_success=0.25 + number / 100,
        replay_success=0.5 if number > 1 else math.nan,
        evaluation_success=0.25 + number / 50 if number % 2 == 0 else math.nan,
        evaluation_reward=0.3 + number / 50 if number % 2 == 0 else math.nan,
        reward=0.25 + number / 100,
        replay_share=0.5 if number > 1 else 0.0,
        imitated=0,
        judge_failures=0,
        resampled_starts=0,
        policy_loss=-0.015625,
        value_loss=0.0625,
        kl=0.0005,
        first_kl=1e-9,
        reference_kl=0.0,
        kl_coefficient=0.0,
        entropy=0.5,
        explained_variance=0.375,
        value_auc=0.75,
        value_auc_within=0.5625,
        value_brier=0.1875,
        clip_fraction=0.03125,
        policy_grad_norm=0.5,
        value_grad_norm=0.25,
        policy_lr=1e-4,
        value_lr=3e-4,
        importance_mean=1.0,
        effective_samples=0.99,
        importance_truncated=0.0,
        policy_steps=4,
        skipped_steps=0,
        logprob_gap=2e-6,
        logprob_gap_high=9e-6,
        behaviour_gap_mean=1e-6,
        behaviour_gap_max=1e-5,
        generated_tokens=13_000,
        total_tokens=13_000 * number,
        truncated_share=0.0,
        shared_share=0.125,
        tokens_per_second=2000.0,
        **FLOW,
        store_states=600 * number,
        store_bytes=2**20 * number,
        store_evictions=0,
        store_replayable=500 * number,
        store_hit_rate=0.875,
        store_mean_age=1.5,
        store_max_age=4,
        store_mean_depth=24.0,
        store_mean_value=0.25,
        lost_outcomes=0,
        seconds=SECONDS,
    )


def lasting(number: int, total: float) -> IterationMetrics:
    """Iteration `number` that took `total` seconds."""
    return replace(iteration(number), seconds=replace(SECONDS, total=total))
