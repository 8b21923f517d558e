import math
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch

from core.config import AlgorithmConfig
from learner.objective import PolicySums, loss_settings, policy_objective, value_objective
from learner.packing.micro_batches import Components, TokenColumns

SURROGATE = Components(rl=1.0, ce=0.0, kl=0.0, entropy=0.0, value=0.0)


class Tokens(NamedTuple):
    """N tokens, each a sequence of its own, of pi_prox = e^-1 and pi_ref = e^-2."""

    advantages: list[float]
    importance: list[float]
    weights: list[float]
    ce: list[float] | None = None
    sequence: list[int] | None = None

    def columns(self) -> TokenColumns[torch.Tensor]:
        count = len(self.advantages)
        return TokenColumns(
            proximal=torch.full((count,), -1.0),
            advantages=torch.tensor(self.advantages),
            old_values=torch.zeros(count),
            returns=torch.zeros(count),
            reference=torch.full((count,), -2.0),
            sequence=torch.arange(count) if self.sequence is None else torch.tensor(self.sequence),
        )

    def parts(self) -> Components[torch.Tensor]:
        w, folded = torch.tensor(self.weights), torch.tensor(self.weights) * torch.tensor(self.importance)
        return Components(rl=folded, ce=torch.tensor(self.ce or [0.0] * len(w)), kl=folded, entropy=w, value=w)


def objective(
    logprobs: torch.Tensor,
    entropy: torch.Tensor,
    tokens: Tokens,
    coefficients: Components[float] = SURROGATE,
    policy_loss: str = "ppo",
) -> tuple[torch.Tensor, PolicySums]:
    settings = loss_settings(AlgorithmConfig(kl_estimator="k2", policy_loss=policy_loss), 1.0)
    return policy_objective(logprobs, entropy, tokens.columns(), tokens.parts(), coefficients, settings)


def test_loss_and_statistics_by_hand() -> None:
    # ratios 1 and 1.5; A = 1, 1: losses -1 and -1.2 (clipped); importance 1 and 2, weights 1/2: (-1 - 2.4) / 2 = -1.7
    logprobs = torch.tensor([-1.0, -1.0 + math.log(1.5)])
    loss, sums = objective(logprobs, torch.tensor([2.0, 4.0]), Tokens([1.0, 1.0], [1.0, 2.0], [0.5, 0.5]))
    assert float(loss) == pytest.approx(-1.7)
    assert sums.loss == pytest.approx(-1.7)
    assert sums.clipped == pytest.approx(0.5)
    assert sums.entropy == pytest.approx(3.0)
    # KL(prox || theta) by k3 with d = log prox - log theta = -log 1.5: exp(-d) + d - 1 = 1.5 - log 1.5 - 1, over 2
    # tokens
    assert sums.kl == pytest.approx((0.5 - math.log(1.5)) / 2, abs=1e-6)


def test_entropy_and_kl_terms_are_added_with_their_weights() -> None:
    # zero advantage: - 0.1 entropy 2 + 0.5 (k2: (-1 - -2)^2 / 2 = 1/2) = 0.05; the surrogate alone is 0
    c = Components(rl=1.0, ce=0.0, kl=0.5, entropy=0.1, value=0.0)
    loss, sums = objective(torch.tensor([-1.0]), torch.tensor([2.0]), Tokens([0.0], [1.0], [1.0]), c)
    assert float(loss) == pytest.approx(0.05)
    assert sums.loss == 0.0


def test_the_language_model_loss_acts_on_tokens_with_a_weight_alone() -> None:
    # zero advantage, pi_prox = e^-1; weights 1/2 of the first two tokens, whose probability is as it was and half of
    # it; the third, which has been raised by e^0.5 > 1.2, is at the clip: -0.1 (0.5 + 0.25 + 0.5 x 1.2)
    tokens = Tokens([0.0] * 4, [1.0] * 4, [1 / 4] * 4, ce=[0.5, 0.5, 0.5, 0.0])
    logprobs = torch.tensor([-1.0, -1.0 - math.log(2), -0.5, -7.0], requires_grad=True)
    c = Components(rl=1.0, ce=0.1, kl=0.0, entropy=0.0, value=0.0)
    loss, sums = objective(logprobs, torch.zeros(4), tokens, c)
    assert float(loss.detach()) == pytest.approx(-0.135)
    assert sums.loss == 0.0
    loss.backward()
    assert logprobs.grad is not None  # that of the log-probability, times the ratio
    torch.testing.assert_close(logprobs.grad, torch.tensor([-0.05, -0.025, 0.0, 0.0]))


def test_a_policy_loss_sees_whole_sequences() -> None:
    # ratios 2 and 1/2 in one sequence: GSPO's ratio is 1, so the loss is -A whatever the numbers of the sequences are
    tokens = Tokens([1.0, 1.0], [1.0, 1.0], [0.5, 0.5], sequence=[17, 17])
    logprobs = torch.tensor([-1.0 + math.log(2), -1.0 - math.log(2)])
    loss, sums = objective(logprobs, torch.zeros(2), tokens, policy_loss="gspo")
    assert float(loss) == pytest.approx(-1.0)
    assert sums.clipped == 0.0


def test_the_gradient_raises_what_was_better_and_lowers_what_was_worse() -> None:
    logprobs = torch.tensor([-1.0, -1.0, -1.0], requires_grad=True)
    tokens = Tokens([2.0, -1.0, 5.0], [1.0, 1.0, 0.0], [0.5, 0.25, 0.25])
    loss, _ = objective(logprobs, torch.zeros(3), tokens)
    loss.backward()
    assert logprobs.grad is not None
    # d loss / d log pi = -A x importance x weight at ratio 1; the masked token (importance 0) teaches nothing
    torch.testing.assert_close(logprobs.grad, torch.tensor([-1.0, 0.25, 0.0]))


def test_critic_loss_by_hand() -> None:
    columns = replace(Tokens([0.0, 0.0], [1.0, 1.0], [0.75, 0.25]).columns(), returns=torch.tensor([1.0, 0.0]))
    # 1/2 (0.4 - 1)^2 = 0.18, 1/2 0.2^2 = 0.02: 0.75 x 0.18 + 0.25 x 0.02 = 0.14
    loss = value_objective(torch.tensor([0.4, 0.2]), columns, torch.tensor([0.75, 0.25]), 0.5)
    assert float(loss) == pytest.approx(0.14)


def test_sums_add() -> None:
    assert PolicySums(1, 2, 3, 4) + PolicySums(10, 20, 30, 40) == PolicySums(11, 22, 33, 44)
