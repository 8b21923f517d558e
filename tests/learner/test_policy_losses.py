"""The policy losses on a few tokens, worked out by hand, and their gradients."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from core.sections.registry import names
from learner.methods import find_policy_loss
from learner.policy_losses import PolicyTokens, cispo, gmpo, gspo, ppo
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
