"""The policy losses and the objective on a few tokens, worked out by hand, and their gradients."""

import math
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from core.config import AlgorithmConfig
from core.sections.registry import names
from learner.packing.micro_batches import Components, TokenColumns
from learner.policy_losses import (
    PolicySums,
    PolicyTokens,
    cispo,
    find_policy_loss,
    gmpo,
    gspo,
    policy_objective,
    ppo,
)
from tests.learner.reference import reference_numbers


def tokens(ratios: list[float], advantages: list[float], sequence: list[int]) -> PolicyTokens:
    """Tokens of proximal log-probability -1 whose ratio to it is given."""
    logprobs = torch.tensor([math.log(ratio) - 1.0 for ratio in ratios], dtype=torch.float64, requires_grad=True)
    proximal = torch.full_like(logprobs, -1.0).detach()
    return PolicyTokens(logprobs, proximal, torch.tensor(advantages).double(), torch.tensor(sequence), 0.2, 0.3, 3.0)


def gradient(loss: Tensor, of: PolicyTokens) -> list[float]:
    (found,) = torch.autograd.grad(loss.sum(), of.logprobs)
    values: list[float] = found.tolist()
    return values


def test_ppo_clips_tokens() -> None:
    batch = tokens([1.5, 0.5, 1.1], [1.0, -1.0, 2.0], [0, 0, 1])
    loss, clipped = ppo(batch)
    # 1.5 cut at 1.3; 0.5 at 0.8; 1.1 within
    assert loss.tolist() == pytest.approx([-1.3, 0.8, -2.2])
    assert clipped.tolist() == [True, True, False]


def test_ppo_agrees_with_the_reference_values() -> None:
    (case,) = reference_numbers()["policy_loss_per_token"]
    batch = tokens(case["ratios"], case["advantages"], [0] * len(case["ratios"]))
    loss, _ = ppo(replace(batch, clip_low=case["clip_low"], clip_high=case["clip_high"]))
    torch.testing.assert_close(loss, torch.tensor(case["loss"]).double(), atol=1e-6, rtol=1e-5)


def test_separate_clips_bound_only_the_side_that_would_profit() -> None:
    loss, clipped = ppo(tokens([1.5, 1.5, 0.5, 0.5], [1.0, -1.0, 1.0, -1.0], [0] * 4))
    # A > 0: r is cut at 1.3 above, free below; A < 0: cut at 0.8 below, free above
    assert loss.tolist() == pytest.approx([-1.3, 1.5, -0.5, 0.8])
    assert clipped.tolist() == [True, False, False, True]


def test_dual_clip_ends_the_gradient_of_a_runaway_token() -> None:
    batch = tokens([10.0], [-4.0], [0])
    loss, clipped = ppo(batch)
    assert loss.item() == 12.0  # 3 * 4 instead of 40
    assert clipped.item()
    assert gradient(loss, batch) == [0.0]


def test_gspo_clips_sequences() -> None:
    # sequence 0: ratios 2 and 1/2: geometric mean 1, not clipped although both tokens are far off
    # sequence 1: ratios 1.5 and 1.5: s = 1.5, cut at 1.3 for A > 0
    batch = tokens([2.0, 0.5, 1.5, 1.5], [1.0, 1.0, 2.0, 2.0], [0, 0, 1, 1])
    loss, clipped = gspo(batch)
    assert loss.tolist() == pytest.approx([-1.0, -1.0, -2.6, -2.6])
    assert clipped.tolist() == [False, False, True, True]
    # the mean over a sequence has the gradient -A s / length in each of its tokens; the loss here is a sum: -A s
    assert gradient(loss, batch) == pytest.approx([-1.0, -1.0, 0.0, 0.0])


def test_cispo_bounds_the_weight_and_keeps_the_gradient() -> None:
    batch = tokens([1.5, 0.5, 1.1], [1.0, -1.0, 2.0], [0, 0, 1])
    loss, clipped = cispo(batch)
    weights = [1.3, 0.8, 1.1]
    assert gradient(loss, batch) == pytest.approx([-w * a for w, a in zip(weights, [1.0, -1.0, 2.0], strict=True)])
    logs = batch.logprobs.tolist()
    assert loss.tolist() == pytest.approx([-1.3 * logs[0], 0.8 * logs[1], -2.2 * logs[2]])
    assert clipped.tolist() == [True, True, False]


def test_gmpo_takes_the_geometric_mean_of_clipped_ratios() -> None:
    # A = 1: ratios 2 (cut at 1.3) and 0.5 (free below): sqrt(1.3 x 0.5) = 0.8062258
    # A = -2: ratios 2 (free above) and 0.5 (cut at 0.8): -(-2) sqrt(2 x 0.8) = 2.5298221
    batch = tokens([2.0, 0.5, 2.0, 0.5], [1.0, 1.0, -2.0, -2.0], [0, 0, 1, 1])
    loss, clipped = gmpo(batch)
    assert loss.tolist() == pytest.approx([-0.8062258, -0.8062258, 2.5298221, 2.5298221])
    assert clipped.tolist() == [True, False, False, True]
    # of the sum over a sequence: -A x geometric mean for a token that is not cut (2 tokens x 1/2), 0 for one that is
    assert gradient(loss, batch) == pytest.approx([0.0, -0.8062258, 2.5298221, 0.0])


@pytest.mark.parametrize("name", names("algorithm.policy_loss"))
def test_at_ratio_one_every_loss_has_the_policy_gradient(name: str) -> None:
    batch = tokens([1.0, 1.0, 1.0, 1.0], [2.0, 2.0, 2.0, -1.0], [0, 0, 0, 1])
    loss, clipped = find_policy_loss(name)(batch)
    assert gradient(loss, batch) == pytest.approx([-2.0, -2.0, -2.0, 1.0])
    assert not clipped.any()


@pytest.mark.parametrize("name", names("algorithm.policy_loss"))
def test_a_batch_may_be_split_between_sequences(name: str) -> None:
    whole = tokens([1.5, 0.7, 0.9, 2.0, 1.1], [1.0, -2.0, 0.5, 0.5, 3.0], [0, 0, 1, 1, 2])
    loss, _ = find_policy_loss(name)(whole)
    parts = [
        find_policy_loss(name)(
            replace(
                whole,
                logprobs=whole.logprobs[part],
                proximal=whole.proximal[part],
                advantages=whole.advantages[part],
                sequence=whole.sequence[part] - whole.sequence[part][0],
            )
        )[0]
        for part in (slice(0, 2), slice(2, 5))
    ]
    torch.testing.assert_close(torch.cat(parts), loss)


@pytest.mark.parametrize("name", names("algorithm.policy_loss"))
def test_a_runaway_ratio_does_not_overflow(name: str) -> None:
    batch = tokens([1.0, 1.0], [1.0, -1.0], [0, 1])
    far = replace(batch, proximal=torch.tensor([1000.0, -1000.0]).double())
    loss, _ = find_policy_loss(name)(far)
    assert bool(torch.isfinite(loss).all())
    assert all(math.isfinite(value) for value in gradient(loss, far))


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
    settings = AlgorithmConfig(kl_estimator="k2", policy_loss=policy_loss)
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


def test_sums_add() -> None:
    assert PolicySums(1, 2, 3, 4) + PolicySums(10, 20, 30, 40) == PolicySums(11, 22, 33, 44)
