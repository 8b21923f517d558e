"""A ranking is a class that gives each state of the store its priority, and says why a state is not drawn. Invariant:
what it says of a state depends only on the columns of the state's problem and on the success model, not on placement. A
state of priority -inf is never drawn, others with probability ~ exp(priority / temperature)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from core.config import ReplayConfig
from core.records import Flags, FloatArray, Provenance

Index = npt.NDArray[np.int64]
Rules = Sequence[tuple[Flags, str]]
"""Which states [S] a rule keeps from being drawn, and why. Of several that hold, the first explains."""

IS_SOLVED = "its problem is solved from the root"
NEVER_FAILS = "none of its continuations fails"
OFTEN = "it was continued often enough for now"
HOPELESS = 0.05  # success below which no start is replayed: at 5 %, four in five groups of 4 continuations have none
CERTAIN = 1.0 - HOPELESS  # success above which none is: as many of its groups have no failure


@dataclass(frozen=True, slots=True)
class SuccessModel:
    """What is known of success on all problems together (`replay/success.py`); by default, before outcomes."""

    # A state succeeds at its end with 0.88, near the root with 0.05; one of a failure without any part below 0.05.
    weights: tuple[float, ...] = (2.0, -5.0, -5.0, *6 * (0.0,))  # of `replay.success.Feature`
    strength: float = 4.0  # outcomes that the model's chance counts as against a state's own
    centre: float = 0.0  # mean of the critic's values
    spread: float = 1.0  # their standard deviation


@dataclass(frozen=True, slots=True)
class StateColumns:
    """The states of whole problems, [S] each: grouped by problem, oldest first. A ranking must not change them."""

    problem: Index  # number of the problem, from 0, non-decreasing
    chain: Index  # number of the trajectory that the state was cut from
    length: Index  # tokens of the prefix
    total: Index  # tokens of that trajectory's response
    left: FloatArray  # share of that trajectory's decisions that are still to come
    value: FloatArray  # the critic's V(s)
    provenance: npt.NDArray[np.uint8]  # core.records.Provenance
    wins: FloatArray  # its continuations that succeeded, decayed
    losses: FloatArray  # the same of those that failed
    tried: Index  # continuations so far, not decayed
    root_wins: FloatArray  # the same of rollouts of the problem from its root
    root_losses: FloatArray
    root_solved: Index  # rollouts from the root that were correct, not decayed
    model: SuccessModel = SuccessModel()

    @property
    def proven(self) -> Flags:
        """[S] which states come from an own success or a canonical solution."""
        return np.isin(self.provenance, (Provenance.OWN_SUCCESSFUL, Provenance.CANONICAL))


class Ranking:
    """A ranking. A user's own is a subclass that `replay.ranking` names as module:class."""

    temperature: ClassVar[float] = 0.2
    """Of the draw. 0.2: priority 1 is drawn e^2.5 = 12 times as often as 1/2."""
    values: ClassVar[Literal["unused", "used", "needed"]] = "unused"
    """Whether it reads the critic's values, which are then refreshed. `used`: it also works when all are 0."""
    model: ClassVar[Literal["unused", "scale", "success"]] = "unused"
    """What it reads of `StateColumns.model`: the scale only, or all. Its change ranks all states again."""
    one_per_problem: ClassVar[bool] = False
    """Whether a draw has at most one state of each problem, the winner of its states, so that few problems take few
    starts. With `replay.bounded` every draw has."""

    def __init__(self, config: ReplayConfig) -> None:
        """Take its settings, if it has any, from the replay section."""

    def why_not(self, states: StateColumns) -> Rules:  # noqa: ARG002  one signature for all rankings
        """The rules that keep states from being drawn."""
        return ()

    def success(self, states: StateColumns) -> npt.NDArray[np.float64]:
        """[S] the mean success of a continuation by which it decides; NaN if it reads none."""
        return np.full(len(states.value), np.nan)

    def priority(self, states: StateColumns) -> FloatArray:
        """Priority [S] by which states are drawn. Without an own formula 0, and -inf where a rule holds."""
        return only(~excluded(self.why_not(states), len(states.value)))

    def retention(self, states: StateColumns, priority: FloatArray) -> FloatArray:  # noqa: ARG002
        """Retention [S], given the priorities: the lowest is evicted first. By default the priority."""
        return priority


def excluded(rules: Rules, count: int) -> Flags:
    """[S] whether any of the rules holds for a state; `count`: of the states."""
    found: Flags = np.any([np.zeros(count, np.bool_), *(holds for holds, _ in rules)], axis=0)
    return found


def in_words(rules: Rules, count: int) -> npt.NDArray[np.object_]:
    """[S] why a state is not drawn, by the first rule that holds; an empty text for one that may be drawn."""
    found = np.full(count, "", np.object_)
    for holds, why in reversed(rules):
        found[holds] = why
    return found


def success_rate(wins: FloatArray, losses: FloatArray) -> FloatArray:
    """[S] Laplace's estimate of success, (w + 1) / (w + l + 2): 1/2 without outcomes."""
    return (wins + 1) / (wins + losses + 2)


def solved(states: StateColumns) -> Flags:
    """[S] whether the problem's root success is above 1/2: the more it succeeds, the less there is to learn."""
    return np.asarray(success_rate(states.root_wins, states.root_losses) > 0.5)


def only(chosen: Flags) -> FloatArray:
    """[S] 0 for the chosen states, -inf for the others."""
    return np.where(chosen, np.float32(0.0), np.float32(-np.inf))
