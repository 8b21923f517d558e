"""What the driver collects of values and outcomes. The success model (`replay/success.py`) is fitted to it.

Used by `replay/store.py`. Invariant: it depends on what was added, drawn and recorded, so the number of shards changes nothing.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from core.records import Candidate, Outcome, Provenance
from replay.keys import Reals
from replay.rankings.base import Ranking, SuccessModel
from replay.records import Drawn
from replay.success import fit

NEWEST = 2048
"""Rows of evidence that are kept, newest first: about 30 iterations of 64 replayed starts."""
REMEMBERED = 8192
"""Number of drawn states whose features are kept until their outcomes arrive: more than are ever in flight."""
LEAST_SPREAD = 1e-6
"""Deviation of values below which they count as equal: an untrained critic gives one number for all states."""


@dataclass(slots=True)
class Evidence:
    """Outcomes of replayed states and of rollouts from roots, and the scale of the critic's values. All are decayed per `refit`."""

    rows: Reals = field(default_factory=lambda: np.zeros((0, 9)))  # [N, 9] the seven features, wins, losses
    expected: float = 0.0  # pairs of continuations of one state that would differ if states of equal chance were alike
    differing: float = 0.0  # pairs that differ
    roots: list[int] = field(default_factory=lambda: [0, 0])  # wins and losses of roots since the last `refit`
    # fresh problems without a success, and all of them: since the last `refit`, and before it
    fresh: list[int] = field(default_factory=lambda: [0, 0])
    fresh_record: list[float] = field(default_factory=lambda: [0.0, 0.0])
    values: Reals = field(default_factory=lambda: np.zeros(3))  # count, sum, and sum of squares
    drawn: dict[int, list[float]] = field(default_factory=dict)  # key of a drawn state -> its chance and features then

    @property
    def unsolved_share(self) -> float:
        """Share of fresh problems of which every rollout from the root failed; 1 before there are any."""
        unsolved, tried = self.fresh_record
        return unsolved / tried if tried else 1.0

    def add(self, candidates: Sequence[Candidate]) -> None:
        """Count the values of new states, and the rollouts from the root: all of a problem come together."""
        roots = [c for c in candidates if c.from_root]
        won = [c.problem_id for c in roots if c.provenance == Provenance.OWN_SUCCESSFUL]
        self.roots[0] += len(won)
        self.roots[1] += len(roots) - len(won)
        problems = {c.problem_id for c in roots}
        self.fresh[0] += len(problems) - len(set(won))
        self.fresh[1] += len(problems)
        values = np.concatenate([np.zeros(0), *(c.values for c in candidates)])
        self.values += [len(values), values.sum(), (values * values).sum()]

    def remember(self, drawn: Drawn) -> None:
        """Keep what the model knew of drawn states. It outlives the first outcome: a state may be drawn again before it arrives."""
        known = np.column_stack([drawn.chances, drawn.features])
        for key, row in zip(drawn.keys.tolist(), known.tolist(), strict=True):
            self.drawn.pop(key, None)  # a state that is drawn again becomes the newest
            self.drawn[key] = row
        for key in list(itertools.islice(self.drawn, max(0, len(self.drawn) - REMEMBERED))):
            del self.drawn[key]

    def refit(self, outcomes: Sequence[Outcome], decay: float, ranking: Ranking) -> SuccessModel:
        """Count outcomes of drawn states, and the rollouts from the root since the last call. Returns the model for a ranking."""
        number, total, squares = self.values.tolist()
        centre = total / number if number else 0.0
        spread = max(squares / number - centre**2, 0.0) ** 0.5 if number else 0.0
        spread = spread if spread > LEAST_SPREAD else 1.0
        (wins, losses), self.roots = self.roots, [0, 0]
        self.fresh_record = [decay * old + new for old, new in zip(self.fresh_record, self.fresh, strict=True)]
        self.fresh = [0, 0]
        self.values = decay * self.values
        counts: dict[int, list[int]] = {}
        for outcome in outcomes:
            if outcome.state_key in self.drawn:
                counts.setdefault(outcome.state_key, [0, 0])[not outcome.correct] += 1
        known = np.array([[*self.drawn[key], *count] for key, count in counts.items()]).reshape(-1, 10)
        self.join(known[:, 0], known[:, 1:], decay)
        self.join_roots(wins, losses)
        if ranking.uses_model:
            return fit(self.rows, self.expected, self.differing, centre, spread)
        return SuccessModel(centre=centre, spread=spread) if ranking.uses_spread else SuccessModel()

    def join(self, chances: Reals, rows: Reals, decay: float) -> None:
        """Decay the rows, and append new ones [M, 9] of states that had the `chances` [M]."""
        wins, losses = rows[:, 7], rows[:, 8]
        pairs = (wins + losses) * (wins + losses - 1.0) / 2.0
        self.expected = decay * self.expected + float((2.0 * chances * (1.0 - chances) * pairs).sum())
        self.differing = decay * self.differing + float((wins * losses).sum())
        self.rows = np.concatenate([self.rows * np.array([1.0] * 7 + [decay] * 2), rows])[-NEWEST:]

    def join_roots(self, wins: int, losses: int) -> None:
        """Append rollouts from roots as one row: all is still to come, and the critic is taken at its mean."""
        if wins + losses:
            row = [[1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, wins, losses]]
            self.rows = np.concatenate([self.rows, row])[-NEWEST:]

    def to_json(self) -> dict[str, Any]:
        """The evidence, for the manifest of a checkpoint."""
        return {
            "evidence": [self.rows.tolist(), self.expected, self.differing],
            "roots": self.roots,
            "fresh": [self.fresh, self.fresh_record],
            "values": self.values.tolist(),
            "drawn": list(self.drawn.items()),
        }

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> "Evidence":
        """What `to_json` returned."""
        rows, expected, differing = saved["evidence"]
        fresh, fresh_record = saved["fresh"]
        return cls(
            np.array(rows).reshape(-1, 9),
            expected,
            differing,
            saved["roots"],
            fresh,
            fresh_record,
            np.array(saved["values"]),
            dict(saved["drawn"]),
        )
