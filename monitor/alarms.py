"""Lines that warn a person about a run that has stopped learning.

Called by the console after every iteration. Invariant: pure functions of the iterations so far; each warning is given once per spell.
"""

from collections.abc import Callable, Mapping, Sequence

from trainer.metrics import IterationMetrics

SPELL = 10
"""Iterations without any reward, after which a person is told."""
GONE = 0.02
"""Entropy in nats per token, and share of its first value, below which a policy explores nothing."""


def alarms(shown: Sequence[IterationMetrics]) -> list[str]:
    """The warnings that are true of the newest iteration and were not of the one before."""
    return [text for text, holds in WARNINGS.items() if holds(shown) and not holds(shown[:-1])]


def no_reward(shown: Sequence[IterationMetrics]) -> bool:
    """Whether every reward of the last iterations was 0."""
    return len(shown) >= SPELL and all(one.reward == 0 for one in shown[-SPELL:])


def entropy_gone(shown: Sequence[IterationMetrics]) -> bool:
    """Whether the policy has (almost) no entropy left, and had some in the beginning. NaN, of the critic's warm-up, is no entropy."""
    measured = [one.entropy for one in shown if one.entropy == one.entropy]
    return bool(measured) and measured[-1] < GONE and measured[-1] < GONE * measured[0]


WARNINGS: Mapping[str, Callable[[Sequence[IterationMetrics]], bool]] = {
    f"warning: no reward in {SPELL} iterations: look at samples/; the problems may be too hard, or the answers lack their form": no_reward,
    "warning: the policy's entropy is gone: it no longer explores; lower learner.policy_lr, or set algorithm.entropy_coefficient": entropy_gone,
}
