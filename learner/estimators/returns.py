"""Advantages from the rewards that follow each token: GAE, REINFORCE++, ReMax and VinePPO. In `ESTIMATORS` (`__init__.py`)."""

import torch
from torch import Tensor

from learner.advantages import gae
from learner.estimators.base import Episodes, Estimator


def advantages_by_critic(episodes: Episodes) -> Tensor:
    """GAE [B, T] (1506.02438) with a lambda per sequence: decoupled from the critic's (VC-PPO, 2503.01491) or length-adaptive
    (VAPO, 2504.05118)."""
    return gae(episodes.rewards, episodes.values, episodes.mask, episodes.gamma, episodes.lam)


def returns(episodes: Episodes) -> Tensor:
    """REINFORCE++ [B, T]: the discounted return of every token (2501.03262), without a critic."""
    return gae(episodes.rewards, torch.zeros_like(episodes.rewards), episodes.mask, episodes.gamma, 1.0)


def remax(episodes: Episodes) -> Tensor:
    """ReMax [B, T]: the return of every token less the reward of the greedy continuation of the same start (2310.10505)."""
    return torch.where(episodes.mask, returns(episodes) - episodes.baselines[:, None], 0.0)


def vineppo(episodes: Episodes) -> Tensor:
    """VinePPO [B, T]: what a step changes in the chance of success, the same for all its tokens (2410.01679, section 4).

    A = (rewards received in the step) + gamma V(next step) - V(step),    V = mean reward of continuations; 0 after the end
    """
    out = torch.zeros_like(episodes.rewards)
    step = torch.full_like(episodes.groups, -1)  # of the next token
    following = torch.zeros_like(out[:, 0])  # V where that step begins
    after = torch.zeros_like(following)  # gamma V behind the present step, and its rewards
    for t in range(out.shape[1] - 1, -1, -1):
        here, value = episodes.mask[:, t], episodes.step_values[:, t]
        after = torch.where(here & (episodes.steps[:, t] != step), episodes.gamma * following, after)
        after = torch.where(here, after + episodes.rewards[:, t], after)
        following = torch.where(here, value, following)
        step = torch.where(here, episodes.steps[:, t], step)
        out[:, t] = after - value
    return torch.where(episodes.mask, out, 0.0)


GAE = Estimator(advantages_by_critic, needs_values=True, whitened=True)
REINFORCE = Estimator(returns, whitened=True)
REMAX = Estimator(remax, needs_greedy=True)
VINEPPO = Estimator(vineppo, needs_continuations=True)
