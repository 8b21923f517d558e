import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from learner.advantages import gae, normalised, whiten
from tests.learner.reference import reference_numbers

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


def test_lambda_may_differ_per_sequence() -> None:
    # rewards 0, 1; values 0.5, 0.25. delta_1 = 1 - 0.25 = 0.75, delta_0 = 0.25 - 0.5 = -0.25.
    # A_0 = -0.25 + lambda 0.75: -0.25 for lambda 0, 0.5 for lambda 1.
    rewards, values = row([0.0, 1.0]).repeat(2, 1), row([0.5, 0.25]).repeat(2, 1)
    advantages = gae(rewards, values, torch.ones(2, 2, dtype=torch.bool), 1.0, torch.tensor([0.0, 1.0]).double())
    torch.testing.assert_close(advantages, torch.tensor([[-0.25, 0.75], [0.5, 0.75]]).double())


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
