import math
from dataclasses import replace

import pytest
import torch

from core.config import AlgorithmConfig
from learner.objective import PolicySums, policy_objective, value_objective
from learner.packing.batch import TokenTargets

PLAIN = AlgorithmConfig()


def targets(advantages: list[float], importance: list[float], weights: list[float]) -> TokenTargets[torch.Tensor]:
    count = len(advantages)
    return TokenTargets(
        proximal=torch.full((count,), -1.0),
        advantages=torch.tensor(advantages),
        importance=torch.tensor(importance),
        old_values=torch.zeros(count),
        returns=torch.zeros(count),
        reference=torch.full((count,), -2.0),
        weights=torch.tensor(weights),
        policy_weights=torch.tensor(weights),
        positive=torch.zeros(count),
        sequence=torch.arange(count).float(),
    )


def test_loss_and_statistics_by_hand() -> None:
    # ratios 1 and 1.5; A = 1, 1: losses -1 and -1.2 (clipped); importance 1 and 2, weights 1/2: (-1 - 2.4) / 2 = -1.7
    logprobs = torch.tensor([-1.0, -1.0 + math.log(1.5)])
    loss, sums = policy_objective(logprobs, torch.tensor([2.0, 4.0]), targets([1, 1], [1, 2], [0.5, 0.5]), PLAIN, 0.0)
    assert float(loss) == pytest.approx(-1.7)
    assert sums.loss == pytest.approx(-1.7)
    assert sums.clipped == pytest.approx(0.5)
    assert sums.entropy == pytest.approx(3.0)
    # KL(prox || theta) by k3 with d = log prox - log theta = -log 1.5: exp(-d) + d - 1 = 1.5 - log 1.5 - 1, over 2
    # tokens
    assert sums.kl == pytest.approx((0.5 - math.log(1.5)) / 2, abs=1e-6)


def test_entropy_and_kl_terms_are_added_with_their_weights() -> None:
    # zero advantage: - 0.1 entropy 2 + 0.5 (k2: (-1 - -2)^2 / 2 = 1/2) = 0.05; the surrogate alone is 0
    settings = AlgorithmConfig(kl_estimator="k2", entropy_coefficient=0.1)
    loss, sums = policy_objective(torch.tensor([-1.0]), torch.tensor([2.0]), targets([0], [1], [1]), settings, 0.5)
    assert float(loss) == pytest.approx(0.05)
    assert sums.loss == 0.0


def test_the_language_model_loss_acts_on_correct_responses_alone() -> None:
    # zero advantage, pi_prox = e^-1; weights 1/2 of the two tokens of correct responses, whose probability is as it was
    # and half of it; the third, which has been raised by e^0.5 > 1.2, is at the clip: -0.1 (0.5 + 0.25 + 0.5 x 1.2)
    t = replace(targets([0] * 4, [1] * 4, [1 / 4] * 4), positive=torch.tensor([0.5, 0.5, 0.5, 0.0]))
    logprobs = torch.tensor([-1.0, -1.0 - math.log(2), -0.5, -7.0], requires_grad=True)
    loss, sums = policy_objective(logprobs, torch.zeros(4), t, AlgorithmConfig(positive_coefficient=0.1), 0.0)
    assert float(loss.detach()) == pytest.approx(-0.135)
    assert sums.loss == 0.0
    loss.backward()
    assert logprobs.grad is not None  # that of the log-probability, times the ratio
    torch.testing.assert_close(logprobs.grad, torch.tensor([-0.05, -0.025, 0.0, 0.0]))


def test_a_policy_loss_sees_whole_sequences() -> None:
    # ratios 2 and 1/2 in one sequence: GSPO's ratio is 1, so the loss is -A whatever the numbers of the sequences are
    t = replace(targets([1, 1], [1, 1], [0.5, 0.5]), sequence=torch.tensor([17.0, 17.0]))
    logprobs = torch.tensor([-1.0 + math.log(2), -1.0 - math.log(2)])
    loss, sums = policy_objective(logprobs, torch.zeros(2), t, AlgorithmConfig(policy_loss="gspo"), 0.0)
    assert float(loss) == pytest.approx(-1.0)
    assert sums.clipped == 0.0


def test_the_gradient_raises_what_was_better_and_lowers_what_was_worse() -> None:
    logprobs = torch.tensor([-1.0, -1.0, -1.0], requires_grad=True)
    loss, _ = policy_objective(logprobs, torch.zeros(3), targets([2, -1, 5], [1, 1, 0], [0.5, 0.25, 0.25]), PLAIN, 0.0)
    loss.backward()
    assert logprobs.grad is not None
    # d loss / d log pi = -A x importance x weight at ratio 1; the masked token (importance 0) teaches nothing
    torch.testing.assert_close(logprobs.grad, torch.tensor([-1.0, 0.25, 0.0]))


def test_critic_loss_by_hand() -> None:
    t = replace(targets([0, 0], [1, 1], [0.75, 0.25]), returns=torch.tensor([1.0, 0.0]))
    # 1/2 (0.4 - 1)^2 = 0.18, 1/2 0.2^2 = 0.02: 0.75 x 0.18 + 0.25 x 0.02 = 0.14
    assert float(value_objective(torch.tensor([0.4, 0.2]), t, 0.5)) == pytest.approx(0.14)


def test_sums_add() -> None:
    assert PolicySums(1, 2, 3, 4) + PolicySums(10, 20, 30, 40) == PolicySums(11, 22, 33, 44)
