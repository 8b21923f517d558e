"""What tokens weigh in the components of the loss."""

import math
from dataclasses import replace

import numpy as np
import pytest

from core.config import AlgorithmConfig
from core.records import Finish, FloatArray, Rollout, Use, Verdict
from learner.packing.micro_batches import Components
from tests.learner.conftest import credited, make_judged
from tests.learner.test_credit import grouped


def of_length(tokens: int, start: str, correct: bool) -> Rollout:
    """A scored rollout to whose tokens the engine gave 2/3 of the learner's probability: importance 1.5."""
    one = make_judged(0, count=1)[0]
    column = np.full(tokens, -1.0, np.float32)
    return replace(
        one,
        start=replace(one.start, id=start),
        tokens=np.arange(tokens, dtype=np.int32),
        logprobs=column - np.float32(math.log(1.5)),
        versions=np.zeros(tokens, np.int32),
        finish=Finish.STOP,
        verdict=Verdict(float(correct), correct),
        values=column,
        proximal=column,
        reference=column,
    )


def test_the_weights_of_a_batch_by_hand() -> None:
    """One start with rewards 1 and 0, one with equal rewards, a truncated response, and an imitated answer."""
    rollouts = [
        of_length(2, "a", correct=True),
        of_length(1, "a", correct=False),
        of_length(3, "b", correct=False),
        of_length(2, "b", correct=False),
        replace(of_length(4, "a", correct=True), finish=Finish.LENGTH),
        replace(of_length(2, "c", correct=True), use=Use.IMITATE, weight=0.5),
    ]
    settings = {"estimator": "grpo", "overlong": "mask", "positive_coefficient": 0.1, "entropy_coefficient": 0.01}
    batch = credited(rollouts, AlgorithmConfig.model_validate(settings), kl_coefficient=0.2)
    assert batch.coefficients == Components(rl=1.0, ce=1.0, kl=0.2, entropy=0.01, value=1.0)
    assert [batch.policy_learns([row]) for row in range(6)] == [True] * 6  # the KL acts on each, where some teach

    def by_row(weights: FloatArray) -> list[list[float]]:
        return [part.tolist() for part in np.split(weights, batch.offsets[1:-1])]

    one, none = 1 / 8, 0.0  # 2 + 1 + 3 + 2 tokens take part; of these 3 have rewards that differ
    weights = batch.weights(range(6))
    rows = [[one] * 2, [one], [one] * 3, [one] * 2, [none] * 4, [none] * 2]
    assert by_row(weights.value) == by_row(weights.entropy) == rows
    close = pytest.approx  # times the importance 1.5 of every token
    kl = [[1.5 * weight for weight in row] for row in rows]
    assert [close(row) for row in by_row(weights.kl)] == kl
    rl = [[1.5 / 3] * 2, [1.5 / 3], [none] * 3, [none] * 2, [none] * 4, [none] * 2]
    assert [close(row) for row in by_row(weights.rl)] == rl
    # the imitated answer counts in the mean, 8 + 2 tokens: correct ones weigh 0.1, it 1/2
    ce = [[0.1 / 10] * 2, [none], [none] * 3, [none] * 2, [none] * 4, [0.5 / 10] * 2]
    assert [close(row) for row in by_row(weights.ce)] == ce

    step = batch.weights([1, 2])  # a step on two rows is a mean over these: 1 + 3 tokens, of which 1 differs
    assert by_row(step.value)[1:3] == [[1 / 4], [1 / 4] * 3]
    assert by_row(step.rl)[1:3] == [[close(1.5)], [none] * 3]
    assert not step.value[batch.token_index([0, 3, 4, 5])].any()


@pytest.mark.parametrize("estimator", ["grpo", "dr_grpo", "rloo", "opo", "reinforce++_baseline"])
def test_a_group_of_equal_rewards_does_not_count_in_the_denominator(estimator: str) -> None:
    scored = grouped([1.0, 0.0, 0.1, 0.1, 0.1], [0, 0, 1, 1, 1])
    config = AlgorithmConfig(estimator=estimator)
    batch = credited(scored, config, 0)
    varied, equal = batch.token_index([0, 1]), batch.token_index([2, 3, 4])
    assert not batch.columns.advantages[equal].any()
    weights = batch.weights(range(5))
    assert not weights.rl[equal].any()
    np.testing.assert_allclose(weights.rl[varied], 1 / len(varied), rtol=1e-6)
    np.testing.assert_allclose(weights.value, 1 / len(weights.value), rtol=1e-6)  # the critic learns from all
    alone = credited(scored[:2], config, 0)
    if estimator != "reinforce++_baseline":  # which is whitened over the batch
        np.testing.assert_array_equal(batch.columns.advantages[varied], alone.columns.advantages)


def test_a_reward_at_the_mean_of_its_group_counts() -> None:
    batch = credited(grouped([0.0, 0.5, 1.0], [0, 0, 0]), AlgorithmConfig(estimator="dr_grpo"), 0)
    assert not batch.columns.advantages[batch.token_index([1])].any()
    weights = batch.weights(range(3))
    np.testing.assert_array_equal(weights.rl, weights.value)


def test_with_a_critic_all_rows_count() -> None:
    batch = credited(grouped([1.0, 0.0, 0.0, 0.0], [0, 0, 1, 1]), AlgorithmConfig(aggregation="sequence-mean"), 0)
    weights = batch.weights(range(4))
    np.testing.assert_array_equal(weights.rl, weights.value)


def test_the_weights_of_correct_responses() -> None:
    config = AlgorithmConfig(normalise="global", positive_coefficient=1.0)
    batch = credited(grouped([1.0, 0.0, 1.0], [0, 1, 2]), config, 0)
    right = batch.token_index([0, 2])
    ce = batch.weights(range(3)).ce
    np.testing.assert_allclose(ce[right], 1 / len(ce), rtol=1e-6)  # as every token of the batch
    assert not ce[batch.token_index([1])].any()
