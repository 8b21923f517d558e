"""Tries the estimator and the policy loss of a configuration on a few tokens before a run: they may be a user's own
(`module:function`)."""

import torch
from torch import Tensor

from core.errors import ConfigError
from learner.estimators import Episodes, find_estimator
from learner.policy_losses import PolicyTokens, find_policy_loss


def example_episodes() -> Episodes:
    """Two starts with two sequences each, of 3, 1, 2 and 3 tokens, with different rewards."""
    mask = torch.arange(3)[None, :] < torch.tensor([3, 1, 2, 3])[:, None]
    rewards = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0], [0.0, 0.5, 0.0], [0.0, 0.0, -1.0]]).double()
    return Episodes(
        rewards=rewards,
        values=torch.where(mask, 0.25, 0.0).double(),
        mask=mask,
        groups=torch.tensor([0, 0, 1, 1]),
        with_prefix=torch.tensor([False, False, True, True]),
        gamma=1.0,
        lam=0.95,
    )


def check_estimator(name: str) -> None:
    """Compute the advantages of `example_episodes`. Raises ConfigError naming what is wrong with them."""
    episodes, estimator = example_episodes(), find_estimator(name)
    prefix = f"algorithm.estimator {name!r} on a batch of 4 sequences"
    try:
        advantages = estimator.advantages(episodes)
    except Exception as error:  # the user's code
        raise ConfigError(f"{prefix}: {type(error).__name__}: {error}") from error
    _check_tensor(prefix, "advantages", advantages, episodes.rewards)
    if not bool(torch.isfinite(advantages[episodes.mask]).all()):
        raise ConfigError(f"{prefix}: an advantage is NaN or Inf; return finite numbers where the mask is 1")


def check_policy_loss(name: str, clip_low: float, clip_high: float, dual_clip: float) -> None:
    """Compute the loss and the gradient of 4 tokens in two sequences. Raises ConfigError naming what is wrong."""
    loss_function = find_policy_loss(name)
    prefix = f"algorithm.policy_loss {name!r} on a batch of 4 tokens"
    logprobs = torch.tensor([-1.0, -2.0, -0.5, -3.0], requires_grad=True)
    proximal, advantages = torch.tensor([-1.5, -2.0, -1.0, -1.0]), torch.tensor([1.0, 1.0, -1.0, 0.5])
    sequence = torch.tensor([0, 0, 1, 1])
    tokens = PolicyTokens(logprobs, proximal, advantages, sequence, clip_low, clip_high, dual_clip)
    try:
        loss, clipped = loss_function(tokens)
        _check_tensor(prefix, "the loss", loss, logprobs)
        _check_tensor(prefix, "clipped", clipped, logprobs)
        (gradient,) = torch.autograd.grad(loss.sum(), logprobs)
    except ConfigError:
        raise
    except Exception as error:  # the user's code
        raise ConfigError(f"{prefix}: {type(error).__name__}: {error}") from error
    if not bool(torch.isfinite(loss).all() and torch.isfinite(gradient).all()):
        raise ConfigError(f"{prefix}: the loss or its gradient is NaN or Inf; return finite numbers")


def _check_tensor(prefix: str, what: str, result: object, like: Tensor) -> None:
    wanted = f"return a tensor of shape {list(like.shape)}"
    if not isinstance(result, Tensor):
        raise ConfigError(f"{prefix}: {what} is {type(result).__name__}; {wanted}")
    if result.shape != like.shape:
        raise ConfigError(f"{prefix}: {what} has the shape {list(result.shape)}; {wanted}")
