import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core.config import Aggregation, KlEstimator
from learner.losses import (
    CORRECTIONS,
    adapted_coefficient,
    aggregation,
    faded_coefficient,
    kl,
    of_sequences,
    ratio,
    value_loss,
)
from tests.learner.reference import reference_numbers


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_agrees_with_the_reference_values(estimator: KlEstimator) -> None:
    cases = reference_numbers()["kl"]
    assert len(cases) == 2
    for case in cases:
        got = kl(torch.tensor([case["logp"]]).double(), torch.tensor([case["ref"]]).double(), estimator)
        assert float(got) == pytest.approx(case[estimator], abs=1e-6)


def test_k3_is_exact_above_and_a_tangent_where_the_reference_gives_ten_times_the_probability() -> None:
    logprobs = torch.tensor([29.0, -1.0, -math.log(10), -15.0, -1000.0], dtype=torch.float64, requires_grad=True)
    found = kl(logprobs, torch.zeros(5).double(), "k3")
    found.sum().backward()
    knee = 10 - math.log(10) - 1  # at d = -log 10, where the slope is 1 - 10 = -9
    expected = [28.0, math.e - 2, knee, knee + 9 * (15 - math.log(10)), knee + 9 * (1000 - math.log(10))]
    assert found.tolist() == pytest.approx(expected, rel=1e-9)
    assert logprobs.grad is not None
    assert logprobs.grad.tolist()[:2] == pytest.approx([1.0, 1 - math.e])
    assert logprobs.grad.tolist()[3:] == pytest.approx([-9.0, -9.0])


def gradient_of_mean(estimator: KlEstimator, logits: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Of the estimator's mean over the policy's own draws, with the draws held fixed: what a loss term gives."""
    leaf = logits.clone().requires_grad_(True)
    logprobs = torch.log_softmax(leaf, 0)
    (logprobs.detach().exp() * kl(logprobs, torch.log_softmax(reference, 0), estimator)).sum().backward()
    assert leaf.grad is not None
    return leaf.grad


def test_as_a_loss_k2_has_the_gradient_of_the_reverse_kl_and_the_others_do_not() -> None:
    logits, reference = torch.randn(2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    leaf = logits.clone().requires_grad_(True)
    logprobs = torch.log_softmax(leaf, 0)
    (logprobs.exp() * (logprobs - torch.log_softmax(reference, 0))).sum().backward()
    assert leaf.grad is not None
    torch.testing.assert_close(gradient_of_mean("k2", logits, reference), leaf.grad)
    assert gradient_of_mean("k1", logits, reference).abs().max() < 1e-12
    assert (gradient_of_mean("k3", logits, reference) - leaf.grad).norm() > 0.1 * leaf.grad.norm()


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_gradient_of_kl_never_pushes_the_policy_further_from_the_reference(estimator: KlEstimator) -> None:
    logprobs = torch.tensor([-1000.0, -30.0, -19.0, -1.0, 1.0, 19.0, 30.0], dtype=torch.float64, requires_grad=True)
    kl(logprobs, torch.zeros(7).double(), estimator).sum().backward()
    assert logprobs.grad is not None
    gradient = logprobs.grad.tolist()
    if (
        estimator == "k1"
    ):  # d/d(log pi) of log pi - log pi_ref: 1 everywhere; only its mean over pi's own tokens is a KL
        assert gradient == [1.0] * 7
        return
    assert all(g <= 0 for g in gradient[:4])
    assert all(g >= 0 for g in gradient[4:])
    assert gradient[2] < -1  # within the bound it pulls
    assert gradient[5] > 0.9


def test_ratio_is_bounded_at_exp_20() -> None:
    got = ratio(torch.tensor([1000.0, -1000.0]))
    torch.testing.assert_close(got, torch.tensor([math.exp(20), math.exp(-20)]))


def test_value_loss_takes_the_worse_of_clipped_and_free() -> None:
    values, old, returns = torch.tensor([0.9, 0.1, 0.3]), torch.zeros(3), torch.tensor([1.0, 1.0, 0.0])
    # clip 0.2: near values 0.2, 0.1, 0.2
    # token 0: max(0.1^2, 0.8^2) / 2 = 0.32; token 1: 0.9^2 / 2 = 0.405; token 2: max(0.3^2, 0.2^2) / 2 = 0.045
    torch.testing.assert_close(value_loss(values, old, returns, 0.2), torch.tensor([0.32, 0.405, 0.045]))


def test_importance_is_truncated_above_only() -> None:
    # ratios e^1 = 2.718 -> 2, e^0 = 1, e^-1 = 0.3679
    weights, bounded = CORRECTIONS["truncate"](torch.tensor([1.0, 0.0, -1.0]), torch.tensor([3]), 0.5, 2.0)
    torch.testing.assert_close(weights, torch.tensor([2.0, 1.0, math.exp(-1)]))
    assert bounded.tolist() == [True, False, False]


def test_masked_importance_drops_tokens_outside_the_band() -> None:
    # ratios e^1 = 2.718 (out), e^0 = 1, e^-0.5 = 0.6065, e^-1 = 0.3679 (out)
    weights, bounded = CORRECTIONS["mask"](torch.tensor([1.0, 0.0, -0.5, -1.0]), torch.tensor([4]), 0.5, 2.0)
    torch.testing.assert_close(weights, torch.tensor([0.0, 1.0, math.exp(-0.5), 0.0]))
    assert bounded.tolist() == [True, False, False, True]


def test_the_kl_coefficient_follows_its_target() -> None:
    # twice the target: error clipped at 0.2, 0.1 (1 + 0.2 * 50 / 100) = 0.11; at 0.9 of it: 0.1 (1 - 0.1 * 0.5) = 0.095
    assert adapted_coefficient(0.1, 0.02, 0.01, 5_000) == pytest.approx(0.11)
    assert adapted_coefficient(0.1, 0.009, 0.01, 5_000) == pytest.approx(0.095)
    assert adapted_coefficient(0.1, 0.01, 0.01, 5_000) == pytest.approx(0.1)
    assert adapted_coefficient(0.1, 0.02, 0.01, 50_000) == pytest.approx(0.12)  # at most 20 %


def test_the_kl_coefficient_fades_to_a_tenth() -> None:
    assert [faded_coefficient(0.2, share) for share in (1.0, 0.5, 0.0)] == pytest.approx([0.2, 0.1, 0.02])


def weights(lengths: list[int], counted: list[bool], how: Aggregation, longest: int = 0) -> list[float]:
    """Of a token of each row, in a step on all rows."""
    share, divisor = aggregation(np.array(lengths, np.float64), np.array(counted), how, longest)
    found: list[float] = (share / divisor.sum()).tolist()
    return found


def test_aggregations_by_hand() -> None:
    # rows of 3, 1 and 2 tokens, of which the last does not count. token-mean: 1 / 4 each; sequence-mean of two rows:
    # 1 / (2 x 3) and 1 / (2 x 1)
    rows = [3, 1, 2], [True, True, False]
    assert weights(*rows, "token-mean") == pytest.approx([1 / 4, 1 / 4, 0])
    assert weights(*rows, "sequence-mean") == pytest.approx([1 / 6, 1 / 2, 0])


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), st.sampled_from(["token-mean", "sequence-mean"]))
def test_the_weights_of_a_batch_sum_to_one(lengths: list[int], how: Aggregation) -> None:
    of_tokens = weights(lengths, [True] * len(lengths), how)
    assert sum(weight * length for weight, length in zip(of_tokens, lengths, strict=True)) == pytest.approx(1.0)


def test_the_constant_normaliser_does_not_depend_on_the_lengths() -> None:
    # two rows count, the longest possible response has 10 tokens: 1 / 20 for every token
    assert weights([3, 1, 2], [True, True, False], "constant", 10) == pytest.approx([0.05, 0.05, 0.0])


def test_the_weight_of_a_sequence_is_the_product_of_its_tokens() -> None:
    # log-ratios 0.1, 0.2 | -1: e^0.3 for both tokens, e^-1
    sums = of_sequences(torch.tensor([0.1, 0.2, -1.0]), torch.tensor([2, 1]))
    torch.testing.assert_close(sums, torch.tensor([0.3, 0.3, -1.0]))
