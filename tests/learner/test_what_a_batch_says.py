"""A batch whose task rewards are equal says nothing about the task, whatever else is in its rewards."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from core.config import AlgorithmConfig
from core.records import FloatArray, Rollout
from tests.learner.conftest import credited, make_judged
from tests.learner.test_credit import grouped, scored_from


def with_reference(scored: list[Rollout]) -> list[Rollout]:
    """A reference policy that differs from token to token, so that the KL does."""
    rng = np.random.default_rng(0)
    return [replace(s, reference=s.proximal - rng.random(len(s.proximal), np.float32)) for s in scored]


@pytest.mark.parametrize(
    "fields",
    [
        {"normalise": "global"},
        {"estimator": "reinforce++"},
        {"estimator": "grpo"},
        {"estimator": "reinforce++_baseline"},
    ],
    ids=lambda fields: "-".join(fields.values()),
)
def test_a_kl_in_the_reward_alone_makes_no_step(fields: dict[str, Any]) -> None:
    kl = {"kl_coefficient": 0.1, "kl_placement": "reward"}
    config = AlgorithmConfig.model_validate({**fields, **kl, "positive_coefficient": 1.0})
    equal = credited(with_reference(grouped([0.5] * 5, [0, 0, 1, 1, 1])), config, 0, kl_coefficient=0.1)
    assert not equal.columns.advantages.any()
    assert not equal.policy_learns()
    assert equal.columns.returns.std() > 0.01  # the critic still learns of the KL
    varied = credited(with_reference(grouped([0.5, 1, 0, 0, 1], [0, 0, 1, 1, 1])), config, 0, kl_coefficient=0.1)
    assert varied.policy_learns()


@pytest.mark.parametrize("fields", [{}, {"estimator": "reinforce++"}])
def test_the_language_model_loss_leaves_out_equal_rewards_with_every_estimator(fields: dict[str, str]) -> None:
    config = AlgorithmConfig.model_validate({"normalise": "none", "positive_coefficient": 1.0, **fields})
    equal, varied = (grouped(rewards, [0, 1, 2, 3]) for rewards in ([1.0] * 4, [1.0, 0.0, 1.0, 0.0]))
    assert credited(equal, config, 0).columns.advantages.any()  # they are not compared with each other
    assert not credited(equal, config, 0).components.ce.tokens.any()
    assert credited(varied, config, 0).components.ce.tokens.any()


def test_equal_groups_take_no_part_in_whitening() -> None:
    """R - mean is +-1/2 in the first group and 0 in the other; over all tokens the deviation would be smaller than
    1/2."""
    scored = grouped([1.0, 0.0, 0.1, 0.1, 0.1], [0, 0, 1, 1, 1])
    batch = credited(scored, AlgorithmConfig(estimator="reinforce++_baseline", normalise="global"), 0)
    used = batch.columns.advantages[batch.token_index([0, 1])]
    assert float(used.mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(np.square(used).mean()) == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_metric_of_the_kl_is_unbiased_whatever_the_loss_uses(estimator: str) -> None:
    judged = next(j for j in make_judged(3) if len(j.tokens) == 3)
    away: FloatArray = np.array([0.5, 0.0, 1.0], np.float32)
    (scored,) = scored_from([judged])
    config = AlgorithmConfig.model_validate(
        {"kl_coefficient": 0.1, "kl_estimator": estimator, "kl_placement": "reward"}
    )
    stats = credited([replace(scored, reference=scored.proximal - away)], config, 0, kl_coefficient=0.1).stats
    assert stats.reference_kl == pytest.approx(0.5)  # k1: (0.5 + 0 + 1) / 3; k2 would be 0.208, k3 0.158
