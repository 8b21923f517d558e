"""The ranking `learnability`: replay what teaches most, and only problems that the root does not solve yet.

Invariant: the priority of a state depends only on its problem's columns and on the success model.

Formula. p is the chance that a continuation succeeds (`replay/success.py`). A group of continuations teaches only if some succeed
and some fail, so

    worth    = 4 p (1 - p)
    priority = log worth - log(sum of worth over the problem's states) + log(largest worth of the problem)

At temperature 1 a problem is drawn in proportion to its best worth, whatever the number of its states, and a state in proportion to
its worth within the problem. An iteration replays at most one state of a problem: a policy that is trained on many continuations of
the same few chains becomes sure of wrong choices elsewhere. -inf, so never drawn, are

    states of solved problems      root success (W + 1) / (W + L + 2) above 1/2: from there on the root itself teaches more
    hopeless states                p < 0.05

Each of the aims follows from p. A chain is trained from where p is near 1/2. As that is mastered, 4 p (1 - p) falls there and p rises
before it, by the problem's own outcomes, so the start moves back towards the root. A lucky success proves nothing: continuations of
its chain fail, which lowers p of these states, of their problem, and of all chains that come from one success. States of own failures
begin below 0.05; a critic that has predicted outcomes elsewhere can lift them.

The tokens that a continuation takes do not count. Divided by them, the priority stays at the ends of chains for too long
(bench/tuning.md).

Worked example: default model, one canonical chain of 100 tokens with states at 25, 50, 75, no outcomes (x = 0.75, 0.5, 0.25):

    log odds 2 - 5 x = -1.75, -0.5, 0.75        p = 0.148, 0.378, 0.679
    worth = 0.504, 0.940, 0.872                 the middle is drawn with 0.940 / 2.316 = 41 %
"""

import numpy as np

from core.records import FloatArray, Provenance
from replay.keys import Reals
from replay.rankings.base import HOPELESS, Flags, Ranking, RankSettings, StateColumns, success_rate
from replay.rankings.chains import chains_of, kept_longest
from replay.success import chances, features_of

SOLVED = 0.5
"""Root success above which a problem is not replayed: 4 p (1 - p) of the root only falls from there on."""


def learnability(columns: StateColumns, settings: RankSettings) -> FloatArray:
    """Priority [S] by the formula of this module."""
    if not len(columns.value):
        return columns.value
    success = state_chances(columns, settings)
    worth = np.where(replayed(columns, success), 4.0 * success * (1.0 - success), 0.0)
    whole = np.bincount(columns.problem, worth)[columns.problem]
    best = np.zeros(int(columns.problem[-1]) + 1)
    np.maximum.at(best, columns.problem, worth)
    with np.errstate(divide="ignore", invalid="ignore"):
        priority = np.log(worth) - np.log(whole) + np.log(best[columns.problem])
    return np.where(worth > 0.0, priority, -np.inf).astype(np.float32)


def replayed(columns: StateColumns, success: Reals) -> Flags:
    """[S] whether a state may be replayed, given its chance of success: its problem is not solved, and it is not hopeless."""
    return np.asarray(~solved(columns.root_wins, columns.root_losses) & (success >= HOPELESS))


def state_chances(columns: StateColumns, settings: RankSettings) -> Reals:
    """[S] p: the chance of success of each state, its own outcomes included."""
    model = settings.model
    before = chances(columns, features_of(columns, model), model)
    tried = (columns.wins + columns.losses).astype(np.float64)
    return (model.strength * before + columns.wins) / (model.strength + tried)


def solved(root_wins: FloatArray, root_losses: FloatArray) -> Flags:
    """Whether a problem is solved from its root."""
    return np.asarray(success_rate(root_wins, root_losses) > SOLVED)


def proven_first(columns: StateColumns, priority: FloatArray) -> FloatArray:
    """Retention [S]: 1 + `kept_longest` of proven states, 1 / (1 + e^-priority) of failures.

    So the shallow states of a chain stay until the start has moved back to them. A solved problem keeps nothing before others.
    """
    retention = np.zeros(len(priority), np.float32)
    open_ = ~np.isneginf(priority)
    retention[open_] = 1.0 / (1.0 + np.exp(-priority[open_]))
    proven = columns.provenance != Provenance.OWN_FAILED
    found = chains_of(columns, proven & ~solved(columns.root_wins, columns.root_losses))
    retention[found.order] = 1.0 + kept_longest(columns, found, open_)
    return retention


RANKING = Ranking(
    learnability,
    proven_first,
    needs_values=True,
    values_optional=True,
    uses_model=True,
    temperature=1.0,
    one_per_problem=True,
)
