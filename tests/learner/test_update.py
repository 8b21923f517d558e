"""The steps of an update, without ranks."""

from collections.abc import Sequence

import pytest

from core.config import AlgorithmConfig, ResolvedLearner
from core.errors import DivergenceError
from learner.batch import Batch
from learner.packing.assign import Assignment, assign_trees
from learner.packing.micro_batches import Row
from learner.policy_losses import PolicySums
from learner.state import LearnerState
from learner.stats import StepSums
from learner.update import MOST_SKIPPED, Step, note, planned, summary
from tests.learner.conftest import credited, make_judged
from tests.learner.test_credit import scored_from

CONFIG = ResolvedLearner(
    micro_batch_tokens=1000, threads=1, policy_lr=1.0, value_lr=2.0, warmup_steps=8, epochs=1, minibatches=2
)


def on_two_ranks(rows: Sequence[Row]) -> Assignment:
    return assign_trees([row.tokens for row in rows], 1000, 2)


def made() -> Batch:
    return credited(scored_from(make_judged(0)), AlgorithmConfig())


def steps_of(batch: Batch, state: LearnerState, before: list[Step]) -> list[Step]:
    return planned(batch, [[0, 1], [2, 3]], before, state, CONFIG, 100, on_two_ranks)


def test_the_rates_of_a_pass_go_on_after_the_steps_before_it() -> None:
    """Warm-up over 8 steps; the critic has taken 4 of them, the policy 2."""
    batch, state = made(), LearnerState(0.0, 0.0, steps=4, policy_steps=2)
    first = steps_of(batch, state, [])
    second = steps_of(batch, state, first)
    plans = [step.plans[0] for step in [*first, *second]]
    assert [plan.policy_lr for plan in plans] == [3 / 8, 4 / 8, 5 / 8, 6 / 8]
    assert [plan.value_lr for plan in plans] == [2 * 5 / 8, 2 * 6 / 8, 2 * 7 / 8, 2.0]
    assert [(len(step.plans), step.members, step.finite) for step in first] == [(2, [0, 1], True), (2, [2, 3], True)]


def test_ranks_add_up_and_a_skipped_step_counts_in_no_mean() -> None:
    batch = made()
    ranks = [StepSums(PolicySums(1.0, 2.0, 0.5, 3.0), 4.0, 0.1, 0.2, skipped=False)] * 2
    first, second = steps_of(batch, LearnerState(0.0, 0.0), [])
    found = summary(
        batch, [first.taken(ranks), second.taken([StepSums(PolicySums(), 0.0, 9.0, 9.0, skipped=True)] * 2)], True
    )
    assert (found.policy_loss, found.kl, found.clip_fraction, found.entropy, found.value_loss) == (2, 4, 1, 6, 8)
    assert (found.policy_grad_norm, found.value_grad_norm) == (0.1, 0.2)
    assert (found.steps, found.policy_steps, found.skipped_steps) == (2, 1, 1)


def test_a_run_whose_steps_are_all_skipped_stops() -> None:
    batch, state = made(), LearnerState(0.0, 0.0)
    for _ in range(MOST_SKIPPED // 2 - 1):
        note(state, batch, steps_of(batch, state, []), CONFIG, None)  # none is taken
    with pytest.raises(DivergenceError, match=r"learner\.policy_lr"):
        note(state, batch, steps_of(batch, state, []), CONFIG, None)
    assert state.skipped_in_row == MOST_SKIPPED
