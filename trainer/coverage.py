"""How much of the training problems a run has seen and solved: what exploration means. An observer: it proposes no
start."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

from core.errors import CheckpointError, first_line
from core.parts.sources import Progress, StartSource
from core.records import Rollout, Use, used

FILE = "coverage.json"
RECENT = 32  # starts of a problem that are kept, the newest


@dataclass(slots=True)
class Life:
    """What a run did with a problem."""

    visits: int = 0  # starts from the root
    first_from_root: int | None = None  # iteration of the first success from the root
    first: int | None = None  # of the first success at all
    recent: list[list[int]] = field(default_factory=list)
    """Newest starts: iteration, tokens of the replayed prefix (0: the root), right continuations, continuations."""

    def add(self, iteration: int, group: Sequence[Rollout]) -> None:
        """Count the continuations of one start."""
        depth, right = group[0].start.prefix_ids.size, sum(rollout.verdict.correct for rollout in group)
        self.recent = [*self.recent, [iteration, depth, right, len(group)]][-RECENT:]
        self.visits += not depth
        if right and self.first is None:
            self.first = iteration
        if right and not depth and self.first_from_root is None:
            self.first_from_root = iteration


class Coverage(StartSource):
    """The life of every problem that was started."""

    def __init__(self, problems: int) -> None:
        """`problems`: to train on."""
        self._problems = problems
        self._lives: dict[str, Life] = {}

    def observe(self, rollouts: Sequence[Rollout], at: Progress) -> None:
        """Count an iteration."""
        groups: dict[str, list[Rollout]] = {}
        for rollout in used(rollouts, Use.TRAIN, Use.COUNT):
            groups.setdefault(rollout.start.id, []).append(rollout)
        for group in groups.values():
            self._lives.setdefault(group[0].start.problem_id, Life()).add(at.iteration, group)

    def metrics(self) -> dict[str, float]:
        """See `StartSource`."""
        lives = self._lives.values()
        visited = sum(life.visits > 0 for life in lives)
        return {
            "visited": visited / self._problems,
            "visits": sum(life.visits for life in lives) / max(1, visited),
            "covered_from_root": sum(life.first_from_root is not None for life in lives) / self._problems,
            "covered": sum(life.first is not None for life in lives) / self._problems,
        }

    def save(self, folder: Path) -> None:
        """See `StartSource`."""
        known = {name: asdict(life) for name, life in self._lives.items()}
        (folder / FILE).write_text(json.dumps(known), encoding="utf-8")

    def restore(self, folder: Path | None) -> None:
        """See `StartSource`."""
        self._lives = {} if folder is None else dict(read_lives(folder))


def read_lives(folder: Path) -> Mapping[str, Life]:
    """The lives of problems, by id, that a checkpoint's sources have in `folder`; none if it has no such file. Raises
    CheckpointError for a damaged one."""
    file = folder / FILE
    try:
        known = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        return TypeAdapter(dict[str, Life]).validate_python(known)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: damaged ({first_line(error)}); resume from another checkpoint") from None
