"""The ranking `learnability`: replay what teaches most, and only problems that the root does not solve yet.

p is the chance that a continuation succeeds (`replay/success.py`). A group teaches only if some succeed and some fail:

    worth    = 4 p (1 - p)
    priority = log worth - log(sum of worth over the problem's states) + log(largest worth of the problem)

At temperature 1 a problem is drawn in proportion to its best worth, whatever the number of its states, and a state in
proportion to its worth within the problem. An iteration replays at most one state of a problem: a policy that is
trained on many continuations of the same few chains becomes sure of wrong choices elsewhere. -inf, so never drawn, are

    states of solved problems   root success (W + 1) / (W + L + 2) above 1/2: from there on the root itself teaches more
    hopeless states             p < 0.05

A chain is trained from where p is near 1/2. As that is mastered, 4 p (1 - p) falls there and p rises before it, so the
start moves back towards the root. A lucky success proves nothing: continuations of its chain fail, which lowers p of
these states, of their problem, and of all chains that come from one success. States of own failures begin below 0.05; a
critic that has predicted outcomes elsewhere can lift them. The tokens that a continuation takes do not count: divided
by them, the priority stays at the ends of chains for too long (bench/tuning.md).

Worked example: default model, a canonical chain of 100 tokens, states at 25, 50, 75 (x = 0.75, 0.5, 0.25), no outcomes:

    log odds 2 - 5 x = -1.75, -0.5, 0.75        p = 0.148, 0.378, 0.679
    worth = 0.504, 0.940, 0.872                 the middle is drawn with 0.940 / 2.316 = 41 %
"""

import numpy as np

from core.records import FloatArray, Provenance
from replay.keys import Reals
from replay.rankings.base import HOPELESS, IS_SOLVED, Ranking, Rules, StateColumns, excluded, solved
from replay.rankings.chains import chains_of, kept_longest
from replay.success import chances, features_of


class Learnability(Ranking):
    """The formula of this module."""

    temperature = 1.0
    values = "used"
    model = "success"
    one_per_problem = True

    def why_not(self, states: StateColumns) -> Rules:
        """States of solved problems, and hopeless ones."""
        return rules(states, state_chances(states))

    def priority(self, states: StateColumns) -> FloatArray:
        """Priority [S]: log worth, less what the other states of the problem are worth."""
        success = state_chances(states)
        worth = np.where(excluded(rules(states, success), len(success)), 0.0, 4.0 * success * (1.0 - success))
        whole = np.bincount(states.problem, worth)[states.problem]
        best = np.zeros(int(states.problem[-1]) + 1)
        np.maximum.at(best, states.problem, worth)
        with np.errstate(divide="ignore", invalid="ignore"):
            priority = np.log(worth) - np.log(whole) + np.log(best[states.problem])
        return np.where(worth > 0.0, priority, -np.inf).astype(np.float32)

    def retention(self, states: StateColumns, priority: FloatArray) -> FloatArray:
        """Retention [S]: 1 + `kept_longest` of proven states, so that a chain's shallow states stay until the start has
        moved back to them; 1 / (1 + e^-priority) of failures. A solved problem keeps nothing before others."""
        retention = np.zeros(len(priority), np.float32)
        open_ = ~np.isneginf(priority)
        retention[open_] = 1.0 / (1.0 + np.exp(-priority[open_]))
        found = chains_of(states, (states.provenance != Provenance.OWN_FAILED) & ~solved(states))
        retention[found.order] = 1.0 + kept_longest(states, found, open_)
        return retention


def rules(states: StateColumns, success: Reals) -> Rules:
    """The rules of this module, given each state's chance of success [S]."""
    return (solved(states), IS_SOLVED), (success < HOPELESS, f"its chance of success is below {HOPELESS:.0%}")


def state_chances(states: StateColumns) -> Reals:
    """[S] p: the chance of success of each state, its own outcomes included."""
    n, tried = states.model.strength, (states.wins + states.losses).astype(np.float64)
    return (n * chances(states, features_of(states)) + states.wins) / (n + tried)
