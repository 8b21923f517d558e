"""From an iteration to its numbers: shares by hand, and no policy numbers while only the critic learns."""

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from actors.ledger import Queues
from core.records import Episode, Finish, Imitated, Judged, Problem, Scored, Start, Trajectory, Verdict
from learner.probe import Gap
from learner.stats import BroadcastReport, UpdateStats
from replay.stats import combine
from tests.trainer.examples import SECONDS
from trainer.collect import collect_metrics
from trainer.metrics import IterationMetrics
from trainer.records import Batch, Components, IterationResult
from trainer.starts import fresh_starts

START = fresh_starts([Problem("p", np.array([1, 2], np.int32), "gold")], 2, seed=0, iteration=1)[0]
EMPTY = combine([], requested=8, sampled=0)
NUMBERS = {entry.name: (index + 1) / 64 for index, entry in enumerate(fields(UpdateStats))}  # all different
STATS = replace(UpdateStats(**NUMBERS), policy_trained=True, critic=True)  # type: ignore[arg-type]
POLICY = {"policy_loss", "kl", "first_kl", "entropy", "clip_fraction", "policy_grad_norm"}


def scored(start: Start, length: int, correct: bool) -> Scored:
    zeros = np.zeros(length, np.float32)
    finish = Finish.STOP if correct else Finish.LENGTH
    trajectory = Trajectory(start, 0, np.zeros(length, np.int32), zeros, np.zeros(length, np.int32), finish)
    return Scored(Judged(trajectory, Verdict(float(correct), correct, judge_failed=not correct)), zeros, zeros, zeros)


def collected(iteration: IterationResult, tokens_before: int = 0, *, find_wrong: bool = False) -> IterationMetrics:
    """With two engines that have worked for 3.25 seconds in this iteration. Responses over 4 tokens are wrong."""
    queues = Queues(waiting=4, running=8, busy=13.25, actors=2)
    parts = SimpleNamespace(
        actors=SimpleNamespace(queues=lambda: queues, restarts=0, quarantined=0, dropped=0),
        replay=SimpleNamespace(stats=lambda: EMPTY),
        pipeline=SimpleNamespace(finished=1),
        task=SimpleNamespace(prefix_is_wrong=lambda _, response: bool(response.size > 4), weights={}),
        boundaries=lambda response: np.array([n for n in (2, 6) if n < len(response)], np.int32),
        by_id={},
    )
    return collect_metrics(
        cast(Components, parts),
        iteration,
        SECONDS,
        tokens_before=tokens_before,
        busy_before=10.0,
        evaluation=None,
        find_wrong=find_wrong,
    )


def result(
    number: int,
    trained: list[Scored],
    stats: UpdateStats,
    dropped: Sequence[Judged] = (),
    imitated: Sequence[Imitated] = (),
) -> IterationResult:
    batch = Batch([item.judged for item in trained], [*dropped])
    report = BroadcastReport(number, Gap(1e-6, 4e-6))
    return IterationResult(number, batch, trained, stats, report, [*imitated])


def measured(stats: UpdateStats) -> IterationMetrics:
    iteration = result(1, [scored(START, 3, True), scored(START, 10, False)], stats)
    return collected(iteration, tokens_before=7)


def test_shares_and_sums_by_hand() -> None:
    metrics = measured(STATS)
    assert metrics.root_success == metrics.reward == metrics.truncated_share == 0.5  # one of two
    assert math.isnan(metrics.replay_success)
    assert metrics.judge_failures == 1
    assert (metrics.generated_tokens, metrics.total_tokens) == (13, 20)  # 3 + 10; 7 before
    assert metrics.tokens_per_second == pytest.approx(13 / 6.5)
    assert metrics.store_hit_rate == 0.0  # 0 of 8


def test_rewards_and_steps_of_environments_by_hand() -> None:
    """The first has 0.25 for a turn and 1 at the end, after a state of two turns; the second nothing for one turn."""
    rows = []
    for correct, rewards, repeated in ((True, ((1, 0.25), (2, 1.0)), 2), (False, ((2, 0.0),), 0)):
        row = scored(START, 3, correct)
        episode = Episode(rewards, 1.25, len(rewards) + repeated, repeated=repeated)
        one = replace(row.judged, trajectory=replace(row.trajectory, episode=episode))
        steps = np.array([0, 0.25, 0], np.float32) if correct else None
        rows.append(replace(row, judged=replace(one, step_rewards=steps)))
    metrics = collected(result(1, rows, STATS))
    assert metrics.reward == (1.25 + 0) / 2
    assert (metrics.environment_steps, metrics.repeated_steps) == (2 + 2 + 1, 2)
    assert (measured(STATS).environment_steps, measured(STATS).repeated_steps) == (0, 0)


def test_each_of_several_rewards_is_a_mean_over_the_responses_to_which_it_applies() -> None:
    parts = [(("right", 1.0), ("form", 0.5)), (("right", 0.0),)]
    rows = [scored(START, 3, correct) for correct in (True, False)]
    told = [
        replace(row.judged, verdict=replace(row.judged.verdict, parts=own))
        for row, own in zip(rows, parts, strict=True)
    ]
    metrics = collected(result(1, [replace(row, judged=one) for row, one in zip(rows, told, strict=True)], STATS))
    assert metrics.rewards == {"form": 0.5, "right": 0.5}


def test_rollouts_that_are_not_trained_on_count_in_what_was_generated() -> None:
    dropped = scored(START, 5, False).judged
    metrics = collected(
        result(1, [scored(START, 3, True)], STATS, [dropped], [Imitated(scored(START, 9, True), 0.5)] * 3)
    )
    assert metrics.generated_tokens == 3 + 5
    assert metrics.root_success == 0.5
    assert metrics.resampled_starts == 1
    assert metrics.imitated == 3


def test_shares_of_wrong_texts_are_measured_where_they_are_excluded() -> None:
    names = ("erroneous_share", "erroneous_states", "erroneous_imitated", "lucky_share")
    rows = [scored(START, 3, True), scored(START, 10, True), scored(START, 10, False)]
    one = result(1, rows, STATS, (), [Imitated(row, 1.0) for row in rows[:2]])
    found = collected(one, find_wrong=True)
    # states after 2 and 6 tokens: two of five are wrong; nothing is replayed
    assert [getattr(found, name) for name in names[1:]] == [2 / 5, 1 / 2, 1 / 2]
    assert math.isnan(found.erroneous_share)
    assert all(math.isnan(getattr(collected(one), name)) for name in names)


def test_no_critic_numbers_without_a_critic() -> None:
    metrics = measured(replace(STATS, critic=False))
    assert math.isnan(metrics.value_loss)
    assert math.isnan(metrics.explained_variance)
    assert metrics.policy_loss == NUMBERS["policy_loss"]


def test_staleness_and_idle_shares_by_hand() -> None:
    new, old = scored(START, 3, True), scored(START, 5, False)
    versions = np.array([4, 5, 5, 6, 6], np.int32)
    old = replace(old, judged=replace(old.judged, trajectory=replace(old.trajectory, versions=versions)))
    new = replace(new, judged=replace(new.judged, trajectory=replace(new.trajectory, versions=np.full(3, 6, np.int32))))
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
