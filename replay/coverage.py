"""What a run did with each training problem: how much it has seen and solved (what exploration means), how its root
fares, and when it was replayed. It proposes no start. Replay reads it to choose problems and to halve its share, and
imitation to know which discoveries to keep.

Invariant: only `observe` and `evaluated` change it, so it depends on the rollouts alone.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter

from core.errors import CheckpointError, first_line
from core.parts.sources import Progress, StartSource
from core.records import Rollout, outcomes

FILE = "coverage.json"
RECENT = 32  # starts of a problem that are kept, the newest
DECAY = 0.9  # of the successes of replayed states, per iteration: about the last ten
LEAST = 16  # problems that were met twice, below which nothing is said of a change
ERRORS = 2.0  # standard errors below 0
MASTERED = 0.5  # recent success of replayed states


@dataclass(slots=True)
class Life:
    """What a run did with a problem."""

    visits: int = 0  # starts from the root
    first_from_root: int | None = None  # iteration of the first success from the root
    first: int | None = None  # of the first success at all
    recent: list[list[int]] = field(default_factory=list)
    """Newest starts: iteration, tokens of the replayed prefix (0: the root), right continuations, continuations."""
    root: list[float] = field(default_factory=list)
    """[first] or [first, latest]: mean success from the root in these iterations that started there."""
    root_succeeds: bool = False  # whether the latest iteration that started at the root had a success
    replayed: int = 0  # latest iteration that replayed a state of it; 0: none did

    def add(self, iteration: int, group: Sequence[Rollout]) -> None:
        """Count the continuations of one start."""
        depth, right = group[0].start.prefix_ids.size, sum(rollout.verdict.correct for rollout in group)
        self.recent = [*self.recent, [iteration, depth, right, len(group)]][-RECENT:]
        self.visits += not depth
        if right and self.first is None:
            self.first = iteration
        if right and not depth and self.first_from_root is None:
            self.first_from_root = iteration
        if group[0].start.replayed:
            self.replayed = iteration

    def visit(self, visit: Sequence[Rollout]) -> None:
        """Note all rollouts from the root of one iteration."""
        self.root = [*self.root[:1], sum(rollout.verdict.correct for rollout in visit) / len(visit)]
        self.root_succeeds = any(rollout.verdict.correct for rollout in visit)


class Coverage(StartSource):
    """The life of every problem that was started. It observes each iteration before the sources that read it."""

    def __init__(self, problems: int) -> None:
        """`problems`: to train on."""
        self._problems = problems
        self.lives: dict[str, Life] = {}
        self._replayed = [0.0, 0.0]  # decayed successes of replayed states, and their count
        self._held_out: list[dict[str, float]] = []
        """[first] or [first, latest]: mean success of each held-out problem in these evaluations."""

    def observe(self, rollouts: Sequence[Rollout], at: Progress) -> None:
        """Count an iteration."""
        groups: dict[str, list[Rollout]] = {}
        for rollout in outcomes(rollouts):
            groups.setdefault(rollout.start.id, []).append(rollout)
        for group in groups.values():
            self.lives.setdefault(group[0].start.problem_id, Life()).add(at.iteration, group)
        for problem_id, visit in root_visits(rollouts).items():
            self.lives[problem_id].visit(visit)
        states = continued(rollouts)
        wins, tried = self._replayed
        successes = sum(rollout.verdict.correct for rollout in states)
        self._replayed = [DECAY * wins + successes, DECAY * tried + len(states)]

    def evaluated(self, rollouts: Sequence[Rollout]) -> None:
        """Note an evaluation."""
        found = {
            problem_id: sum(rollout.verdict.correct for rollout in visit) / len(visit)
            for problem_id, visit in root_visits(rollouts).items()
        }
        self._held_out = [*self._held_out[:1], found]

    @property
    def replay_costs(self) -> bool:
        """Whether most continuations of replayed states succeed, while the root succeeds clearly less than at first: on
        the training problems that it met twice, or on the held-out ones."""
        before, now = self._held_out if len(self._held_out) > 1 else ({}, {})
        training = [life.root[1] - life.root[0] for life in self.lives.values() if len(life.root) > 1]
        held_out = [now[name] - before[name] for name in before.keys() & now.keys()]
        return self.replayed_success > MASTERED and (_falls(training) or _falls(held_out))

    @property
    def replayed_success(self) -> float:
        """Recent mean success of replayed states; 0 before there is one."""
        wins, tried = self._replayed
        return wins / tried if tried else 0.0

    def metrics(self) -> dict[str, float]:
        """See `StartSource`."""
        lives = self.lives.values()
        visited = sum(life.visits > 0 for life in lives)
        return {
            "visited": visited / self._problems,
            "visits": sum(life.visits for life in lives) / max(1, visited),
            "covered_from_root": sum(life.first_from_root is not None for life in lives) / self._problems,
            "covered": sum(life.first is not None for life in lives) / self._problems,
        }

    def save(self, folder: Path) -> None:
        """See `StartSource`."""
        lives = {name: asdict(life) for name, life in self.lives.items()}
        saved = {"lives": lives, "replayed": self._replayed, "held_out": self._held_out}
        (folder / FILE).write_text(json.dumps(saved), encoding="utf-8")

    def restore(self, folder: Path | None) -> None:
        """See `StartSource`."""
        known = _Saved() if folder is None else _read(folder)
        self.lives, self._replayed, self._held_out = known.lives, known.replayed, known.held_out


@dataclass(slots=True)
class _Saved:
    lives: dict[str, Life] = field(default_factory=dict)
    replayed: list[float] = field(default_factory=lambda: [0.0, 0.0])
    held_out: list[dict[str, float]] = field(default_factory=list)


def _falls(changes: Sequence[float]) -> bool:
    """Whether the mean change of success of many problems, each compared with itself, is below 0 by more than two
    standard errors."""
    change = np.sort(np.array(changes))  # a sum depends on the order
    return len(change) >= LEAST and bool(change.mean() < -ERRORS * change.std(ddof=1) / len(change) ** 0.5)


def read_lives(folder: Path) -> Mapping[str, Life]:
    """The lives of problems, by id, that a checkpoint's sources have in `folder`; none if it has no such file. Raises
    CheckpointError for a damaged one."""
    return _read(folder).lives


def _read(folder: Path) -> _Saved:
    file = folder / FILE
    try:
        return TypeAdapter(_Saved).validate_json(file.read_bytes()) if file.is_file() else _Saved()
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: damaged ({first_line(error)}); resume from another checkpoint") from None


def root_visits(rollouts: Sequence[Rollout]) -> dict[str, list[Rollout]]:
    """The judged rollouts from the root, by problem."""
    visits: dict[str, list[Rollout]] = {}
    for rollout in outcomes(rollouts):
        if rollout.start.from_root:
            visits.setdefault(rollout.start.problem_id, []).append(rollout)
    return visits


def continued(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """The judged continuations of states of the replay store; not those of another source's prefixes."""
    return [rollout for rollout in outcomes(rollouts) if rollout.start.replayed]
