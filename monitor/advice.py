"""Warnings of a run that wastes its rollouts or is about to unlearn, each with what to change. Pure.

`monitor/console.py` shows them. Invariant: a warning depends only on the metrics of the iterations so far.
"""

from collections.abc import Callable, Sequence

from trainer.metrics import IterationMetrics

STREAK = 10
"""Iterations in a row before a success rate near 0 or 1 is a warning; it is repeated after as many again."""
NEAR = 0.02
"""Distance from 0 or 1 at which 4 p (1 - p) is under 0.08: such starts teach next to nothing."""
RARE = 0.05
"""Root success below which rewards are rare: with 8 samples, two starts in three have none."""
MOST_KL = 0.02
"""KL of an update in nats per token. Runs with rare rewards lost the form of all their answers after updates of 0.01 to 0.07."""


def advice(shown: Sequence[IterationMetrics]) -> list[str]:
    """The warnings after the last of the iterations, in order."""
    last, found = shown[-1], []
    if last.kl > MOST_KL and last.root_success < RARE:
        found.append(
            f"warning: KL {last.kl:.3f} while {last.root_success:.1%} of the rollouts from the root succeed: the policy may lose what "
            "it can; lower learner.policy_lr, set learner.kl_stop, or raise learner.adam_epsilon"
        )
    if _lasts(shown, lambda m: m.root_success == 0 and not m.replay_success > 0):
        found.append(
            f"warning: no response was correct for {STREAK} iterations: neither PPO nor replay can learn from that; take easier "
            "problems, train on solutions first (launch.py sft), reward parts of an answer, or set replay.canonical if there are solutions"
        )
    elif _lasts(shown, lambda m: m.replay_success < NEAR):
        found.append(
            f"warning: hardly any replayed start succeeded for {STREAK} iterations: their prefixes are wrong or too hard to finish; set "
            "replay.ranking learnability, set replay.canonical if there are solutions, or lower replay.ratio"
        )
    elif _lasts(shown, lambda m: m.replay_success > 1 - NEAR):
        found.append(
            f"warning: nearly all replayed starts succeeded for {STREAK} iterations: they teach nothing; set replay.ranking learnability, "
            "replay.share unsolved, or lower replay.ratio"
        )
    return found


def _lasts(shown: Sequence[IterationMetrics], holds: Callable[[IterationMetrics], bool]) -> bool:
    """Whether this has held for the last STREAK iterations, or twice, three times ... as many. NaN holds for nothing."""
    streak = next((back for back, metrics in enumerate(reversed(shown)) if not holds(metrics)), len(shown))
    return streak > 0 and streak % STREAK == 0
