"""How much of the training problems a run has seen and solved: what exploration means. An observer: it proposes no
start."""

import json
from collections.abc import Sequence
from pathlib import Path

from core.parts.sources import Progress, StartSource
from core.records import Rollout, Use, used

FILE = "coverage.json"


class Coverage(StartSource):
    """Counts visits of problems from the root, and which problems ever succeeded: from the root, and at all."""

    def __init__(self, problems: int) -> None:
        """`problems`: to train on."""
        self._problems = problems
        self._visits: dict[str, int] = {}
        self._from_root: set[str] = set()
        self._at_all: set[str] = set()

    def observe(self, rollouts: Sequence[Rollout], at: Progress) -> None:  # noqa: ARG002
        """Count an iteration."""
        generated = used(rollouts, Use.TRAIN, Use.COUNT)
        for problem_id in {one.start.id: one.start.problem_id for one in generated if not one.start.replayed}.values():
            self._visits[problem_id] = self._visits.get(problem_id, 0) + 1
        right = [rollout.start for rollout in generated if rollout.verdict.correct]
        self._at_all |= {start.problem_id for start in right}
        self._from_root |= {start.problem_id for start in right if not start.replayed}

    def metrics(self) -> dict[str, float]:
        """See `StartSource`."""
        return {
            "visited": len(self._visits) / self._problems,
            "visits": sum(self._visits.values()) / max(1, len(self._visits)),
            "covered_from_root": len(self._from_root) / self._problems,
            "covered": len(self._at_all) / self._problems,
        }

    def save(self, folder: Path) -> None:
        """See `StartSource`."""
        known = {"visits": self._visits, "from_root": sorted(self._from_root), "at_all": sorted(self._at_all)}
        (folder / FILE).write_text(json.dumps(known), encoding="utf-8")

    def restore(self, folder: Path | None) -> None:
        """See `StartSource`."""
        known = {} if folder is None else json.loads((folder / FILE).read_text(encoding="utf-8"))
        self._visits = dict(known.get("visits", {}))
        self._from_root, self._at_all = set(known.get("from_root", ())), set(known.get("at_all", ()))
