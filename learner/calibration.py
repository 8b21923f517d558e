"""How well the critic predicts success: explained variance, AUC and Brier score of V against outcomes. Pure numpy.

Called by `learner.targets` on the scored batch, before the update.
"""

from collections.abc import Sequence

import numpy as np

from core.records import Boundaries, FloatArray, IntArray, Scored
from core.scoring import Flags, Numbers, Reals, auc, brier


def explained_variance(values: Reals, returns: Reals) -> float:
    """1 - Var(R - V) / Var(R): 1 is perfect, below 0 is worse than a constant; 0 if the returns do not vary or are NaN."""
    if not varies(returns):
        return 0.0
    spread = float(np.var(returns.astype(np.float64)))
    return 1.0 - float(np.var(returns.astype(np.float64) - values.astype(np.float64))) / spread


def varies(returns: Reals) -> bool:
    """Whether the returns leave a critic anything to explain; False if one is NaN."""
    return float(np.var(returns.astype(np.float64))) > 1e-12


def every_token(response: IntArray) -> IntArray:
    """The boundaries of a response if there is one after every token."""
    return np.arange(1, len(response), dtype=np.int32)


def critic_calibration(scored: Sequence[Scored], boundaries: Boundaries) -> tuple[float, float, float]:
    """(AUC, AUC within start and depth, Brier score) of V against outcomes, measured at the starts and the boundaries."""
    correct = np.array([s.judged.verdict.correct for s in scored])
    trajectories = [s.trajectory for s in scored]
    # of each continuation: its boundaries, counted from its first token
    depths = [one.states(boundaries) - one.start.prefix_ids.size for one in trajectories]

    def _states(read: Sequence[IntArray]) -> tuple[FloatArray, Flags]:
        values = np.concatenate([s.values[at] for s, at in zip(scored, read, strict=True)])
        return values, np.repeat(correct, [at.size for at in read])

    values, succeed = _states([np.append(0, own) for own in depths])
    read, groups = comparable_states(
        [one.start.id for one in trajectories], [one.generated for one in trajectories], depths
    )
    return auc(values, succeed), auc(*_states(read), groups), brier(values, succeed)


def comparable_states(
    starts: Sequence[str], generated: Sequence[Flags], depths: Sequence[IntArray]
) -> tuple[list[IntArray], Numbers]:
    """Groups of states with the same start and depth: a critic that knows only problem and depth cannot rank states within one.

    Steps seldom end at the same token, so a continuation is read wherever any continuation of its start has a boundary.

    Args:
        starts: id of each continuation's start.
        generated: [C] of each continuation, its tokens that are the policy's; states begin only before them.
        depths: its boundaries, in tokens from the start.

    Returns:
        For each continuation the depths at which its value is read, and for all these states, flat, the group (start, depth).
    """
    shared: dict[str, list[IntArray]] = {}
    for start, own in zip(starts, depths, strict=True):
        shared.setdefault(start, []).append(own)
    numbers = {start: number for number, start in enumerate(shared)}
    union = {start: np.unique(np.concatenate(all_of)) for start, all_of in shared.items()}
    inside = [union[start][union[start] < len(own)] for start, own in zip(starts, generated, strict=True)]
    read = [at[own[at]] for at, own in zip(inside, generated, strict=True)]
    span = max(map(len, generated), default=0) + 1
    groups = [numbers[start] * span + at.astype(np.int64) for start, at in zip(starts, read, strict=True)]
    return read, np.concatenate([np.zeros(0, np.int64), *groups])
