"""What the driver collects of values and outcomes; the success model (`replay/success.py`) is fitted to it. Invariant:
it depends on what was added, drawn and recorded, so the number of shards changes nothing."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from core.records import Rollout, Use
from replay.cutting import States
from replay.rankings.base import SuccessModel
from replay.store.keys import Reals
from replay.store.table import DECAY
from replay.success import Feature, Known, fit, strength

NEWEST = 2048  # rows of evidence that are kept, newest first: about 30 iterations of 64 replayed starts
REMEMBERED = 8192  # drawn states whose features are kept until their outcomes arrive: more than are ever in flight
LEAST_SPREAD = 1e-6  # deviation of values that counts as none: an untrained critic gives one number for all states


@dataclass(slots=True)
class Evidence:
    """Outcomes of replayed states and of roots, and the scale of the critic's values, decayed per `record`."""

    # one row per drawn state with outcomes, and one per call for all roots
    features: Reals = field(default_factory=lambda: np.zeros((0, len(Feature))))  # [N, F]
    wins: Reals = field(default_factory=lambda: np.zeros(0))  # [N] successes
    losses: Reals = field(default_factory=lambda: np.zeros(0))  # [N] failures
    # Sums over the pairs of continuations of one state.
    differing: float = 0.0  # 1 where one of them succeeds and one fails
    expected: float = 0.0  # the same, if all states of equal predicted chance had equal true chance
    value_count: float = 0.0  # of the critic's values
    value_sum: float = 0.0
    value_squares: float = 0.0
    centre: float = 0.0  # their mean at the last `record`
    spread: float = 1.0  # their standard deviation then
    fresh_before: float = 0.0  # fresh problems before the last `record`
    unsolved_before: float = 0.0  # of these, without a success
    fresh: int = 0  # the same since then
    unsolved: int = 0
    root_tried: int = 0  # rollouts from roots since then
    root_solved: int = 0  # of these, successes
    drawn: dict[int, Known] = field(default_factory=dict)  # by the keys of drawn states

    @property
    def decayed_unsolved_share(self) -> float:
        """Share of fresh problems of which every rollout from the root failed; 1 before there are any."""
        return self.unsolved_before / self.fresh_before if self.fresh_before else 1.0

    def add(self, found: Sequence[States]) -> None:
        """Count the values of new states, and the rollouts from the root: all of a problem come together."""
        rollouts = [states.rollout for states in found]
        roots = [r for r in rollouts if r.use is not Use.SOLUTION and r.start.from_root]
        self.root_tried += len(roots)
        self.root_solved += sum(r.verdict.correct for r in roots)
        problems = {r.start.problem_id for r in roots}
        won = {r.start.problem_id for r in roots if r.verdict.correct}
        self.fresh += len(problems)
        self.unsolved += len(problems - won)
        values = np.concatenate([np.zeros(0), *(states.values for states in found)])
        self.value_count += len(values)
        self.value_sum += float(values.sum())
        self.value_squares += float((values * values).sum())

    def remember(self, drawn: Mapping[int, Known]) -> None:
        """Keep what the model knew of drawn states. It is kept after an outcome, too: others may be on their way."""
        for key, known in drawn.items():
            self.drawn.pop(key, None)  # a state that is drawn again becomes the newest
            self.drawn[key] = known
        for key in list(itertools.islice(self.drawn, max(0, len(self.drawn) - REMEMBERED))):
            del self.drawn[key]

    def record(self, outcomes: Sequence[Rollout]) -> None:
        """Decay what is known. Count outcomes of drawn states, and the rollouts from the root since the last call."""
        self.unsolved_before = DECAY * self.unsolved_before + self.unsolved
        self.fresh_before = DECAY * self.fresh_before + self.fresh
        self.centre, self.spread = self._scale()
        self.value_count *= DECAY
        self.value_sum *= DECAY
        self.value_squares *= DECAY
        found: dict[int, list[bool]] = {}
        for outcome in outcomes:
            if (key := outcome.start.state_key) is not None and key in self.drawn:
                found.setdefault(key, []).append(outcome.verdict.correct)
        self.join([self.drawn[key] for key in found], list(found.values()), DECAY)
        self.join_roots()
        self.fresh = self.unsolved = 0

    def join(self, known: Sequence[Known], successes: Sequence[Sequence[bool]], decay: float) -> None:
        """Decay the rows, and append new ones: states [M] with what was known of them, and their outcomes [M][n]."""
        self.differing, self.expected = decay * self.differing, decay * self.expected
        for state, outcomes in zip(known, successes, strict=True):
            total, count = sum(outcomes), len(outcomes)
            self.differing += count * total - total**2
            self.expected += count * (count - 1) * (state.chance - state.chance**2)
        wins = np.array([sum(outcomes) for outcomes in successes], np.float64)
        tried = np.array([len(outcomes) for outcomes in successes], np.float64)
        self.wins, self.losses = decay * self.wins, decay * self.losses
        self._append([state.features for state in known], wins, tried - wins)

    def join_roots(self) -> None:
        """Append the rollouts from roots as one row: all is still to come, and the critic is taken at its mean."""
        if self.root_tried:
            root, wins = {Feature.ONE: 1.0, Feature.LEFT: 1.0}, float(self.root_solved)
            row = [root.get(feature, 0.0) for feature in Feature]
            self._append([row], np.array([wins]), np.array([self.root_tried - wins]))
        self.root_tried, self.root_solved = 0, 0

    def _append(self, features: list[list[float]], wins: Reals, losses: Reals) -> None:
        rows = np.array(features).reshape(-1, len(Feature))
        self.features = np.concatenate([self.features, rows])[-NEWEST:]
        self.wins = np.concatenate([self.wins, wins])[-NEWEST:]
        self.losses = np.concatenate([self.losses, losses])[-NEWEST:]

    def _scale(self) -> tuple[float, float]:
        if not self.value_count:
            return 0.0, 1.0
        centre = self.value_sum / self.value_count
        spread = max(self.value_squares / self.value_count - centre**2, 0.0) ** 0.5
        return centre, spread if spread > LEAST_SPREAD else 1.0

    def model(self, *, of_success: bool) -> SuccessModel:
        """The most probable success model; without `of_success` only the scale of values in it is new."""
        if not of_success:
            return SuccessModel(centre=self.centre, spread=self.spread)
        weights, alike = fit(self.features, self.wins, self.losses), strength(self.expected, self.differing)
        return SuccessModel(weights, alike, self.centre, self.spread)

    def to_json(self) -> dict[str, Any]:
        """The evidence, for the manifest of a checkpoint."""
        columns = {
            one.name: np.asarray(getattr(self, one.name)).tolist() for one in fields(self) if one.name != "drawn"
        }
        return columns | {"drawn": list(self.drawn.items())}

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> "Evidence":
        """What `to_json` returned."""
        rows = {name: np.array(saved[name], np.float64) for name in ("features", "wins", "losses")}
        rows["features"].shape = (-1, len(Feature))
        return cls(**saved | rows | {"drawn": {key: Known(*known) for key, known in saved["drawn"]}})
