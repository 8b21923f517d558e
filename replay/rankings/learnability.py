"""The ranking `learnability`: replay what teaches most, and only problems that the root does not solve yet.

p is the chance that a continuation succeeds (`replay/success.py`). A group teaches by how much its outcomes differ, so
a state is worth their variance:

    worth    = 4 p (1 - p)
    priority = log worth - log(sum of worth over the problem's states) + log(largest worth of the problem)

At temperature 1 a problem is drawn in proportion to its best worth, whatever the number of its states, and a state in
proportion to its worth within the problem. (With `replay.bounded`, the default, the draw then takes problems whose root
fails first, and those that were replayed longest ago: `rested` in replay/source.py. The priority decides among equals,
and which state of a problem.) A draw has at most one state of a problem: a policy that is trained on many
continuations of the same few chains becomes sure of wrong choices elsewhere. -inf, so never drawn, are

    states of solved problems   root success (W + 1) / (W + L + 2) above 1/2: from there on the root itself teaches more
    hopeless states             p < 0.05
    states that never fail      every continuation so far succeeded, or p > 0.95: only the end is left to write
    states that are drawn often 24 decayed outcomes (`replay.bounded`): many states, each a few times

Where own successes are imitated (`replay.imitated`), a problem without any comes first: the priority of the others is
lower by `LATER`. Imitation repeats what they could teach, and it has nothing to repeat for the first ones.

A chain is trained from where p is near 1/2. As that is mastered, 4 p (1 - p) falls there and p rises before it, so the
start moves back towards the root. A lucky success proves nothing: continuations of its chain fail, which lowers p of
these states, of their problem, and a little of all states of successes. States of own failures begin below 0.05; a
critic that has predicted outcomes elsewhere can lift them. Those of failures that solve part of their task begin like
those of a success, and so do those whose text the task finds right (`replay.exclude_wrong`). As continuations of such
states fail, the others rest, too. The tokens that a
continuation takes do not count: divided by them, the priority stays at the ends of chains for too long.

Nor do the steps of an environment: k are repeated and the rest is new, so a restart takes as many as the root does.

Worked example: default model, a canonical chain of 100 tokens, states at 25, 50, 75 (x = 0.75, 0.5, 0.25), no outcomes:

    log odds 2 - 5 x = -1.75, -0.5, 0.75        p = 0.148, 0.378, 0.679
    worth = 0.504, 0.940, 0.872                 the middle is drawn with 0.940 / 2.316 = 41 %
"""

import numpy as np

from core.config import ReplayConfig
from core.records import FloatArray, Provenance
from replay.rankings.base import (
    CERTAIN,
    HOPELESS,
    IS_SOLVED,
    NEVER_FAILS,
    OFTEN,
    Ranking,
    Rules,
    StateColumns,
    excluded,
    solved,
)
from replay.rankings.chains import chains_of, kept_longest
from replay.store.keys import Reals
from replay.success import chances, features_of

OUTCOMES = 24.0  # decayed outcomes from which on a state rests: four groups of 8, until visits of its problem fade them
LATER = 10.0  # in log odds of the draw: e^-10 is less than one draw in 20,000


class Learnability(Ranking):
    """The formula of this module."""

    temperature = 1.0
    values = "used"
    model = "success"
    one_per_problem = True

    def __init__(self, config: ReplayConfig) -> None:
        self._later, self._bounded = LATER if config.imitated else 0.0, config.bounded

    def why_not(self, states: StateColumns) -> Rules:
        """States of solved problems, hopeless ones, and those that never fail."""
        return rules(states, state_chances(states), self._bounded)

    def success(self, states: StateColumns) -> Reals:
        """p of this module."""
        return state_chances(states)

    def priority(self, states: StateColumns) -> FloatArray:
        """Priority [S]: log worth, less what the other states of the problem are worth."""
        success = state_chances(states)
        out = excluded(rules(states, success, self._bounded), len(success))
        worth = np.where(out, 0.0, 4.0 * (success - success**2))
        whole = np.bincount(states.problem, worth)[states.problem]
        best = np.zeros(int(states.problem[-1]) + 1)
        np.maximum.at(best, states.problem, worth)
        with np.errstate(divide="ignore", invalid="ignore"):
            priority = np.log(worth) - np.log(whole) + np.log(best[states.problem])
        priority -= self._later * (states.root_solved > 0)
        return np.where(worth > 0.0, priority, -np.inf).astype(np.float32)

    def retention(self, states: StateColumns, priority: FloatArray) -> FloatArray:
        """Retention [S]: 2 + `kept_longest` of proven states, so that a chain's shallow states stay until the start has
        moved back to them; 1 + `kept_longest` of partial ones; 1 / (1 + e^-priority) of other failures. A
        solved problem keeps nothing before others."""
        retention = np.zeros(len(priority), np.float32)
        open_ = ~np.isneginf(priority)
        retention[open_] = 1.0 / (1.0 + np.exp(-priority[open_]))
        found = chains_of(states, (states.provenance != Provenance.OWN_FAILED) & ~solved(states))
        retention[found.order] = 1.0 + states.proven[found.order] + kept_longest(states, found, open_)
        return retention


def rules(states: StateColumns, success: Reals, bounded: bool) -> Rules:
    """The rules of this module, given each state's chance of success [S]. `bounded`: states drawn often rest."""
    never_failed = (states.tried > 0) & (states.losses == 0.0)
    often = bounded & (states.wins + states.losses >= OUTCOMES)
    return (
        (solved(states), IS_SOLVED),
        (success < HOPELESS, f"its chance of success is below {HOPELESS:.0%}"),
        (never_failed, NEVER_FAILS),
        (often, OFTEN),
        (success > CERTAIN, f"its chance of success is above {CERTAIN:.0%}"),
    )


def state_chances(states: StateColumns) -> Reals:
    """[S] p: the chance that a continuation of each state succeeds. The model's counts as n outcomes, next to the
    state's own."""
    n, tried = states.model.strength, (states.wins + states.losses).astype(np.float64)
    found: Reals = (n * chances(states, features_of(states)) + states.wins) / (n + tried)
    return found
