"""Cuts rollouts into states: at which boundaries of a response it pays to begin again.

Invariant: results depend only on the rollout, so an iteration repeats.
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from core.records import Boundaries, FloatArray, IntArray, Provenance, Rollout, Use

IsWrong = Callable[[str, IntArray], bool | None]
"""Problem id, beginning of a response -> whether it is wrong already; None if that cannot be told. What is wrong stays
wrong."""
REPEATED = 0.95  # probability of repeating the rest of a response above which nothing is left to decide
FORM = 0.05  # share of its task that a wrong answer solves at most by its form alone
SURE = 0.02  # nats that a token counts as a decision if the policy was sure of it: -log 0.98
ROOM = 0.25
"""Least share of the response budget that a state of a truncated rollout leaves: with less it can only lose."""


class States(NamedTuple):
    """The states of one rollout: state i is its problem and response_ids[:lengths[i]]."""

    rollout: Rollout
    lengths: IntArray  # [S] increasing, strictly inside the response
    checked: bool = False  # whether the task can tell that none of them is wrong

    @property
    def problem_id(self) -> str:
        """The problem of the states."""
        return self.rollout.start.problem_id

    @property
    def values(self) -> FloatArray:
        """[S] the critic's value of each state."""
        return self.rollout.values[self.lengths - self.rollout.start.prefix_ids.size]

    @property
    def left(self) -> FloatArray:
        """[S] share of the response's decisions that are still to come at each state."""
        return 1.0 - decided_share(self.rollout)[self.lengths - self.rollout.start.prefix_ids.size]

    @property
    def provenance(self) -> Provenance:
        """Where they come from. Right lines of a failure are a part. Some tasks give a wrong answer a small score for
        its form: that is none."""
        verdict = self.rollout.verdict
        if self.rollout.use is Use.SOLUTION:
            return Provenance.CANONICAL
        if verdict.correct:
            return Provenance.OWN_SUCCESSFUL
        part = self.checked or (verdict.share or 0.0) > FORM
        return Provenance.OWN_PARTIAL if part else Provenance.OWN_FAILED


def cut(rollout: Rollout, boundaries: Boundaries, budget: int, is_wrong: IsWrong | None = None) -> States:
    """The states of a rollout that have a finite value and leave something to decide; perhaps none.

    `boundaries`: response tokens [R] -> lengths at which a step ends. Those inside a replayed prefix are states
    already. `budget`: most tokens of a response; a state of a truncated rollout must leave a quarter of it. `is_wrong`:
    states after an error are left out.
    """
    depth, known = rollout.start.prefix_ids.size, rollout.values
    lengths = rollout.states(boundaries)
    lengths = lengths[lengths - depth < known.size]  # without values there are no states
    lengths = lengths[np.isfinite(known[lengths - depth])]
    if rollout.finish.truncated:
        lengths = lengths[lengths <= (1.0 - ROOM) * budget]
    lengths = undecided(rollout, lengths)
    if is_wrong is None or not lengths.size:
        return States(rollout, lengths)
    lengths, problem = before_error(rollout, lengths, is_wrong), rollout.start.problem_id
    checked = lengths.size > 0 and is_wrong(problem, rollout.response_ids[: lengths[-1]]) is False
    return States(rollout, lengths, checked)


def decided_share(rollout: Rollout) -> FloatArray:
    """[C] share of the response's decisions that come before each token of the continuation.

    A token that the policy was sure of is no decision: it counts with its surprisal -log p, plus `SURE`. So a state
    after which only the answer has to be copied has little left, however long that is. What a replayed prefix decided
    is not known: it counts as its share of the tokens.

    >>> from core.records import EMPTY, Finish, Start
    >>> start = Start("1.f0", "p", EMPTY, EMPTY, 1, 0)
    >>> log_p = np.array([-1.98, -0.98, 0.0, 0.0], np.float32)
    >>> tokens = np.zeros(4, np.int32)
    >>> (100 * decided_share(Rollout(start, 0, tokens, log_p, tokens, Finish.STOP))).round().tolist()
    [0.0, 66.0, 99.0, 99.0]
    """
    decisions = rollout.generated * (SURE - _logprobs(rollout).astype(np.float64))
    before = np.cumsum(decisions) - decisions
    prefix = rollout.start.prefix_ids.size
    known = prefix / (prefix + rollout.tokens.size)
    share: FloatArray = (known + (1.0 - known) * before / decisions.sum()).astype(np.float32)
    return share


def _logprobs(rollout: Rollout) -> FloatArray:
    """[C] log-probabilities by the policy: of what it wrote those of the engine, of a canonical solution the
    learner's."""
    return rollout.proximal if rollout.use is Use.SOLUTION else rollout.logprobs


def undecided(rollout: Rollout, lengths: IntArray) -> IntArray:
    """The lengths of those states from which the policy may well go on in another way than it did. It repeats the rest
    of its response with the probability of its tokens; where that is above `REPEATED` all continuations end as this one
    did, in success or in failure, so a group of them teaches nothing.

    >>> from core.records import EMPTY, Finish, Start
    >>> start = Start("1.f0", "p", EMPTY, EMPTY, 1, 0)
    >>> log_p, tokens = np.array([-1.0, -0.06, -0.04, 0.0], np.float32), np.zeros(4, np.int32)
    >>> rollout = Rollout(start, 0, tokens, log_p, tokens, Finish.STOP)
    >>> undecided(rollout, np.array([1, 2, 3])).tolist()  # the rest has a probability of 0.90, 0.96 and 1
    [1]
    """
    rest = np.cumsum(_logprobs(rollout)[::-1], dtype=np.float64)[::-1]  # [C] log probability from each token on
    return lengths[rest[lengths - rollout.start.prefix_ids.size] <= math.log(REPEATED)]


def before_error(rollout: Rollout, lengths: IntArray, is_wrong: IsWrong) -> IntArray:
    """The lengths, which ascend, of those states that are not wrong yet."""
    problem, response = rollout.start.problem_id, rollout.response_ids
    if not is_wrong(problem, response):
        return lengths
    return lengths[: bisect_left(lengths, True, key=lambda length: bool(is_wrong(problem, response[:length])))]
