"""The estimators on small batches, worked out by hand."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from core.sections.registry import names
from learner.estimators import Episodes, find_estimator, gae, normalised, whiten
from tests.learner.reference import reference_numbers


def episodes(totals: list[float], groups: list[int], lengths: list[int] | None = None) -> Episodes:
    """Two tokens each (or of `lengths`), the reward with the last; values that a critic-free estimator must not
    read."""
    counts = torch.tensor(lengths or [2] * len(totals))
    mask = torch.arange(int(counts.max()))[None, :] < counts[:, None]
    rewards = torch.zeros(mask.shape, dtype=torch.float64)
    rewards[torch.arange(len(totals)), counts - 1] = torch.tensor(totals).double()
    none = torch.full_like(rewards, float("nan"))
    fresh = torch.zeros(len(totals), dtype=torch.bool)
    return Episodes(rewards, none, mask, torch.tensor(groups), fresh, 1.0, 0.95)


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


def test_gae_reads_values_and_lambda() -> None:
    batch = episodes([1.0], [0])
    batch = replace(batch, values=torch.tensor([[0.5, 0.25]]).double(), lam=0.5)
    # deltas -0.25, 0.75: first token -0.25 + lambda 0.75
    torch.testing.assert_close(estimate("gae", batch), torch.tensor([[0.125, 0.75]]).double())


@pytest.mark.parametrize(
    "name", [each for each in names("algorithm.estimator") if not find_estimator(each).needs_values]
)
def test_an_estimator_that_needs_no_values_reads_none(name: str) -> None:
    batch = episodes([1.0, 0.0, 2.0], [0, 0, 0])
    assert bool(torch.isfinite(estimate(name, batch)).all())  # the values are NaN


REALS = st.floats(-5, 5, width=32)


def row(values: list[float]) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


def test_gae_agrees_with_the_reference_values() -> None:
    cases = reference_numbers()["gae"]
    assert len(cases) == 4
    for case in cases:
        values = row(case["values"])
        advantages = gae(row(case["rewards"]), values, row(case["mask"]).bool(), case["gamma"], case["lam"])
        torch.testing.assert_close(advantages, row(case["advantages"]))
        if "returns" in case:
            torch.testing.assert_close(advantages + values, row(case["returns"]))


@pytest.mark.parametrize(("lam", "first"), [(0.0, -0.25), (1.0, 0.5)])
def test_the_bounds_of_lambda(lam: float, first: float) -> None:
    # rewards 0, 1; values 0.5, 0.25. delta_1 = 1 - 0.25 = 0.75, delta_0 = 0.25 - 0.5 = -0.25. A_0 = -0.25 + lambda 0.75
    advantages = gae(row([0.0, 1.0]), row([0.5, 0.25]), torch.ones(1, 2, dtype=torch.bool), 1.0, lam)
    torch.testing.assert_close(advantages, row([first, 0.75]))


@given(
    st.lists(st.tuples(REALS, REALS, st.booleans()), min_size=1, max_size=12),
    st.floats(0.5, 1.0),
    st.floats(0.0, 1.0),
)
def test_a_gap_in_the_mask_is_as_if_it_were_removed(
    steps: list[tuple[float, float, bool]], gamma: float, lam: float
) -> None:
    rewards, values = row([s[0] for s in steps]), row([s[1] for s in steps])
    mask = torch.tensor([[s[2] for s in steps]])
    whole = gae(rewards, values, mask, gamma, lam)
    assert torch.equal(whole[~mask], torch.zeros_like(whole[~mask]))
    if mask.any():
        short_rewards, short_values = rewards[mask][None], values[mask][None]
        short = gae(short_rewards, short_values, torch.ones_like(short_values, dtype=torch.bool), gamma, lam)
        torch.testing.assert_close(whole[mask], short[0], rtol=0, atol=0)


@given(st.lists(REALS, min_size=1, max_size=10), st.integers(0, 6), st.integers(0, 6), st.floats(0, 1))
def test_context_and_padding_do_not_leak_into_the_advantages(
    values: list[float], before: int, after: int, lam: float
) -> None:
    rewards = [0.0] * (len(values) - 1) + [1.0]
    junk = float("nan")  # a value leaking out of context or padding would show
    wide_values = row([junk] * before + values + [junk] * after)
    wide_rewards = row([junk] * before + rewards + [junk] * after)
    mask = row([0.0] * before + [1.0] * len(values) + [0.0] * after).bool()
    alone = gae(row(rewards), row(values), torch.ones(1, len(values), dtype=torch.bool), 1.0, lam)
    wide = gae(wide_rewards, wide_values, mask, 1.0, lam)
    torch.testing.assert_close(wide[mask], alone[0], rtol=0, atol=0)


def test_lambda_one_is_the_monte_carlo_return_minus_the_value() -> None:
    rewards, values = row([0.5, -1.0, 2.0]), row([3.0, 1.0, -4.0])
    # returns 1.5, 1.0, 2.0 minus the values
    torch.testing.assert_close(gae(rewards, values, torch.ones(1, 3).bool(), 1.0, 1.0), row([-1.5, 0.0, 6.0]))


def test_whitening_uses_only_the_mask() -> None:
    # chosen 1, 3, 5: mean 3, variance (4 + 0 + 4) / 3 = 8 / 3, deviation 1.6329932
    advantages = torch.tensor([[1.0, 3.0, 99.0], [5.0, -99.0, 0.0]]).double()
    mask = torch.tensor([[True, True, False], [True, False, False]])
    white = whiten(advantages, mask)
    torch.testing.assert_close(white[mask], torch.tensor([-1.2247449, 0.0, 1.2247449]).double(), atol=1e-6, rtol=0)
    assert float(white[~mask].abs().sum()) == 0.0


def test_fresh_and_replayed_rows_are_whitened_apart() -> None:
    # fresh -1, 1 are already white; replayed 10, 14: mean 12, deviation 2 -> -1, 1
    advantages = torch.tensor([[-1.0, 1.0], [10.0, 14.0]]).double()
    mask, replayed = torch.ones(2, 2, dtype=torch.bool), torch.tensor([False, True])
    expected = torch.tensor([[-1.0, 1.0], [-1.0, 1.0]]).double()
    torch.testing.assert_close(normalised(advantages, mask, replayed, "separate"), expected, atol=1e-7, rtol=0)
    together = normalised(advantages, mask, replayed, "global")
    torch.testing.assert_close(together.mean(), torch.zeros(()).double(), atol=1e-12, rtol=0)
    assert bool((together[0] < 0).all())
    assert torch.equal(normalised(advantages, mask, replayed, "none"), advantages)


def test_equal_advantages_whiten_to_zero() -> None:
    white = whiten(torch.full((2, 3), 0.7).double(), torch.ones(2, 3, dtype=torch.bool))
    assert float(white.abs().max()) < 1e-9
