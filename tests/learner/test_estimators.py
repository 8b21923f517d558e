"""The estimators on small batches, worked out by hand."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from core.sections.registry import names
from learner.advantages import gae
from learner.estimators import Episodes
from learner.methods import find_estimator


def episodes(totals: list[float], groups: list[int], lengths: list[int] | None = None) -> Episodes:
    """Two tokens each (or of `lengths`), the reward with the last; values that a critic-free estimator must not
    read."""
    counts = torch.tensor(lengths or [2] * len(totals))
    mask = torch.arange(int(counts.max()))[None, :] < counts[:, None]
    rewards = torch.zeros(mask.shape, dtype=torch.float64)
    rewards[torch.arange(len(totals)), counts - 1] = torch.tensor(totals).double()
    none = torch.full_like(rewards, float("nan"))
    fresh = torch.zeros(len(totals), dtype=torch.bool)
    lam = torch.full((len(totals),), 0.95).double()
    return Episodes(rewards, none, mask, torch.tensor(groups), fresh, 1.0, lam)


def estimate(name: str, batch: Episodes) -> Tensor:
    return find_estimator(name).advantages(batch)


def assert_per_sequence(found: Tensor, expected: list[float], atol: float = 1e-9) -> None:
    """Every token of a sequence of two has the same advantage."""
    torch.testing.assert_close(found, torch.tensor(expected).double()[:, None].expand(-1, 2), atol=atol, rtol=0)


def test_grpo_by_hand() -> None:
    # group 0: rewards 1, 0, 0, 1: mean 1/2, sample deviation sqrt(4 x 1/4 / 3) = 0.5773503 -> +-0.8660254
    # group 1: alone -> 0; group 2: all equal -> 0
    got = estimate("grpo", episodes([1.0, 0.0, 5.0, 0.0, 1.0, 2.0, 2.0], [0, 0, 1, 0, 0, 2, 2]))
    side = 0.8660254
    assert_per_sequence(got, [side, -side, 0.0, -side, side, 0.0, 0.0], atol=1e-5)


def test_dr_grpo_by_hand() -> None:
    # rewards 1, 0, 0, 1 less their mean 1/2, not divided
    assert_per_sequence(
        estimate("dr_grpo", episodes([1.0, 0.0, 0.0, 1.0, 7.0], [0, 0, 0, 0, 1])), [0.5, -0.5, -0.5, 0.5, 0]
    )


def test_rloo_by_hand() -> None:
    # rewards 1, 0, 0: 1 - mean(0, 0) = 1; 0 - mean(1, 0) = -0.5; a lone one has no baseline
    assert_per_sequence(estimate("rloo", episodes([1.0, 0.0, 0.0, 7.0], [0, 0, 0, 1])), [1.0, -0.5, -0.5, 0.0])


def test_opo_by_hand() -> None:
    # rewards 1 and 0 with 1 and 3 tokens: baseline (1 x 1 + 3 x 0) / 4 = 1/4
    got = estimate("opo", episodes([1.0, 0.0], [0, 0], lengths=[1, 3]))
    torch.testing.assert_close(got, torch.tensor([[0.75, 0.0, 0.0], [-0.25, -0.25, -0.25]]).double())


@pytest.mark.parametrize("name", [name for name in names("algorithm.estimator") if find_estimator(name).needs_groups])
def test_a_sequence_without_loss_counts_in_no_baseline(name: str) -> None:
    batch = episodes([1.0, 0.0, 100.0], [0, 0, 0])
    without = replace(batch, mask=batch.mask & torch.tensor([True, True, False])[:, None])
    alone = episodes([1.0, 0.0], [0, 0])
    got = estimate(name, without)
    torch.testing.assert_close(got[:2], estimate(name, alone))
    assert not got[2].any()


def test_reinforce_is_the_return_of_every_token() -> None:
    # rewards 0.5, 0, 1, discount 1/2: 1; 0 + 1/2 = 0.5; 0.5 + 1/4 = 0.75
    batch = replace(episodes([1.0], [0], lengths=[3]), gamma=0.5)
    batch.rewards[0, 0] = 0.5
    torch.testing.assert_close(estimate("reinforce++", batch), torch.tensor([[0.75, 0.5, 1.0]]).double())
    assert find_estimator("reinforce++").whitened


def test_the_baseline_form_of_reinforce_centres_groups_before_the_whitening() -> None:
    batch = episodes([1.0, 0.0, 9.0, 7.0], [0, 0, 1, 1])
    assert_per_sequence(estimate("reinforce++_baseline", batch), [0.5, -0.5, 1.0, -1.0])
    assert find_estimator("reinforce++_baseline").whitened


def test_gae_reads_the_lambda_of_each_sequence() -> None:
    batch = episodes([1.0, 1.0], [0, 0])
    values = torch.tensor([[0.5, 0.25], [0.5, 0.25]]).double()
    batch = replace(batch, values=values, lam=torch.tensor([0.0, 1.0]).double())
    # deltas -0.25, 0.75: first token -0.25 + lambda 0.75
    torch.testing.assert_close(estimate("gae", batch), torch.tensor([[-0.25, 0.75], [0.5, 0.75]]).double())
    torch.testing.assert_close(estimate("gae", batch), gae(batch.rewards, values, batch.mask, 1.0, batch.lam))


@pytest.mark.parametrize(
    "name", [each for each in names("algorithm.estimator") if not find_estimator(each).needs_values]
)
def test_an_estimator_that_needs_no_values_reads_none(name: str) -> None:
    batch = episodes([1.0, 0.0, 2.0], [0, 0, 0])
    assert bool(torch.isfinite(estimate(name, batch)).all())  # the values are NaN
