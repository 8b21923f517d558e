"""From an iteration to its numbers: shares by hand, and no policy numbers while only the critic learns."""

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from actors.ledger import Queues
from core.config import AlgorithmConfig
from core.machine import Memory
from core.parts.sources import StartSource, roots
from core.records import Episode, Finish, IntArray, Problem, Rollout, Start, Use, Verdict
from learner.credit import Algorithm
from learner.probe import Gap
from learner.stats import BroadcastReport, UpdateStats
from tests.learner.conftest import every_token
from tests.trainer.examples import SECONDS
from trainer.collect import collect_metrics
from trainer.metrics import IterationMetrics
from trainer.run import Report, Run

PROBLEM = Problem("p", np.array([1, 2], np.int32), "gold")
START, OTHER = roots([PROBLEM, replace(PROBLEM, id="q")], 2, seed=0)
NUMBERS = {entry.name: (index + 1) / 64 for index, entry in enumerate(fields(UpdateStats))}  # all different
STATS = replace(UpdateStats(**NUMBERS), policy_trained=True, critic=True)  # type: ignore[arg-type]
POLICY = {"policy_loss", "kl", "first_kl", "entropy", "clip_fraction", "policy_grad_norm"}


def scored(start: Start, length: int, correct: bool) -> Rollout:
    zeros = np.zeros(length, np.float32)
    finish = Finish.STOP if correct else Finish.LENGTH
    verdict = Verdict(float(correct), correct, judge_failed=not correct)
    ids = np.zeros(length, np.int32)
    return Rollout(start, 0, ids, zeros, ids, finish, verdict=verdict, values=zeros, proximal=zeros, reference=zeros)


class Store(StartSource):
    """A source that knows a number."""

    def metrics(self) -> dict[str, float]:
        return {"store_hit_rate": 0.25}


def collected(iteration: Report, tokens_before: int = 0) -> IterationMetrics:
    """With two engines that have worked for 3.25 seconds in this iteration."""
    queues = Queues(waiting=4, running=8, busy=13.25, actors=2)
    parts = SimpleNamespace(
        pool=SimpleNamespace(queues=lambda: queues, restarts=0, quarantined=0, dropped=0),
        sources=Store(),
        engines=SimpleNamespace(finished=1),
        task=SimpleNamespace(weights={"maths": 1.0}),
        problems={START.problem_id: SimpleNamespace(source="maths")},
        algorithm=Algorithm(AlgorithmConfig(), 8, every_token),
    )
    return collect_metrics(
        cast(Run, parts), iteration, SECONDS, tokens_before=tokens_before, busy_before=10.0, evaluation=None
    )


def result(number: int, rollouts: Sequence[Rollout], stats: UpdateStats) -> Report:
    return Report(number, [*rollouts], stats, BroadcastReport(number, Gap(1e-6, 4e-6)))


def measured(stats: UpdateStats) -> IterationMetrics:
    iteration = result(1, [scored(START, 3, True), scored(START, 10, False)], stats)
    return collected(iteration, tokens_before=7)


def test_shares_and_sums_by_hand() -> None:
    metrics = measured(STATS)
    assert metrics.root_success == metrics.reward == metrics.truncated_share == 0.5  # one of two
    assert math.isnan(metrics.replay_success)
    assert metrics.judge_failures == 1
    assert (metrics.reward_deviation, metrics.equal_groups) == (0.5, 0.0)  # of 1 and 0, of one start
    assert (metrics.response_length, metrics.longest_response) == (6.5, 10)
    assert (metrics.generated_tokens, metrics.total_tokens) == (13, 20)  # 3 + 10; 7 before
    assert metrics.tokens_per_second == pytest.approx(13 / 6.5)
    assert (metrics.store_hit_rate, metrics.store_states) == (0.25, 0)  # what a source says; 0 of what none says


def test_the_memory_of_every_role() -> None:
    report = result(1, [scored(START, 3, True)], STATS)
    broadcast = replace(report.broadcast, engine=Memory(2**30, 2**31), learner=Memory(2**29))
    metrics = collected(replace(report, broadcast=broadcast))
    assert (metrics.engine_memory, metrics.engine_gpu_memory, metrics.learner_memory) == (1.0, 2.0, 0.5)
    assert math.isnan(metrics.learner_gpu_memory)  # it has no GPU
    assert 0 < metrics.driver_memory < 1000


def test_rewards_and_steps_of_environments_by_hand() -> None:
    """The first has 0.25 for a turn and 1 at the end, after a state of two turns; the second nothing for one turn."""
    rows = []
    for correct, rewards, repeated in ((True, ((1, 0.25), (2, 1.0)), 2), (False, ((2, 0.0),), 0)):
        row = scored(START, 3, correct)
        episode = Episode(rewards, 1.25, len(rewards) + repeated, repeated=repeated)
        steps = np.array([0, 0.25, 0], np.float32) if correct else None
        rows.append(replace(row, episode=episode, step_rewards=steps))
    metrics = collected(result(1, rows, STATS))
    assert metrics.reward == (1.25 + 0) / 2
    assert (metrics.environment_steps, metrics.repeated_steps) == (2 + 2 + 1, 2)
    assert (measured(STATS).environment_steps, measured(STATS).repeated_steps) == (0, 0)


def test_each_of_several_rewards_is_a_mean_over_the_responses_to_which_it_applies() -> None:
    parts = [(("right", 1.0), ("form", 0.5)), (("right", 0.0),)]
    rows = [scored(START, 3, correct) for correct in (True, False)]
    judged = [replace(row, verdict=replace(row.verdict, parts=own)) for row, own in zip(rows, parts, strict=True)]
    metrics = collected(result(1, judged, STATS))
    assert metrics.rewards == {"form": 0.5, "right": 0.5}


def test_rollouts_that_are_not_trained_on_count_in_what_was_generated() -> None:
    dropped, imitated = (
        replace(scored(START, 5, False), use=Use.COUNT),
        replace(scored(START, 9, True), use=Use.IMITATE),
    )
    valued = replace(imitated, use=Use.VALUE)
    metrics = collected(result(1, [scored(START, 3, True), dropped, *[imitated] * 3, valued], STATS))
    assert metrics.generated_tokens == 3 + 5
    assert metrics.root_success == metrics.sources["maths"].root_success == 0.5
    assert metrics.resampled_starts == 1
    assert metrics.imitated == 3


def test_no_critic_numbers_without_a_critic() -> None:
    metrics = measured(replace(STATS, critic=False))
    assert math.isnan(metrics.value_loss)
    assert math.isnan(metrics.explained_variance)
    assert metrics.policy_loss == NUMBERS["policy_loss"]


def test_staleness_and_idle_shares_by_hand() -> None:
    new, old = scored(START, 3, True), scored(START, 5, False)
    versions = np.array([4, 5, 5, 6, 6], np.int32)
    old, new = replace(old, versions=versions), replace(new, versions=np.full(3, 6, np.int32))
    iteration = result(7, [new, old], STATS)  # trained at version 6
    metrics = collected(iteration)
    assert metrics.stale_tokens == 3 / 8  # 4, 5, 5 of eight tokens
    assert metrics.mean_staleness == (2 + 1 + 1) / 8
    assert metrics.max_staleness == 2
    assert metrics.actor_idle == 1 - 3.25 / (2 * 6.5)
    assert metrics.learner_idle == 1 - (0.75 + 2.0 + 0.25) / 6.5  # score, update, broadcast
    assert (metrics.waiting_samples, metrics.running_samples, metrics.finished_starts) == (4, 8, 1)


def test_the_update_is_reported_under_its_own_names() -> None:
    metrics = measured(STATS)
    same = {entry.name for entry in fields(UpdateStats)} & {entry.name for entry in fields(IterationMetrics)}
    assert {"value_auc", "value_auc_within", "policy_lr", "shared_share", "first_kl", "kl", "behaviour_gap_max"} <= same
    assert {name: getattr(metrics, name) for name in same} == {name: NUMBERS[name] for name in same}


def test_no_policy_numbers_while_only_the_critic_learns() -> None:
    metrics = measured(replace(STATS, policy_trained=False))
    assert {name for name in POLICY if math.isnan(getattr(metrics, name))} == POLICY
    assert metrics.value_loss == NUMBERS["value_loss"]


def ids(*tokens: int) -> IntArray:
    return np.array(tokens, np.int32)
