"""Self-imitation (1806.05635) as a start source: it proposes no start. It keeps the newest own success of each problem
that the root does not solve yet, and repeats some of them in every update (`replay.imitated`).

Invariant: all depends only on the rollouts from the root that were observed, in their order. Example, 8 rollouts of a
problem in each visit: 2 succeed, and the last of them is kept. None succeeds, and it stays. 5 succeed, and it is
dropped: the root itself teaches more. A truncated success, or one that contains an error, counts and is never kept.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from core.parts.sources import Progress, StartSource
from core.records import Problem, Rollout, Use, used
from replay.answers import Answers
from replay.cutting import IsWrong

SOLVED = 0.5  # a problem of which a larger share of a visit's rollouts succeeds is not imitated
FILE = "successes.json"


class Imitation(StartSource):
    """One own success of each problem, the oldest first."""

    def __init__(self, most: int, problems: Mapping[str, Problem], is_wrong: IsWrong | None = None) -> None:
        """`most`: successes that an update repeats. `problems`: to train on, by id. `is_wrong`: finds errors in the
        text of a success."""
        self._answers, self._is_wrong = Answers(most, problems, "imitated"), is_wrong

    def extra(self, rollouts: Sequence[Rollout], at: Progress) -> list[Rollout]:  # noqa: ARG002
        """Some of the successes that have not faded."""
        return self._answers.draw(at)

    def observe(self, rollouts: Sequence[Rollout], at: Progress) -> None:
        """Keep the newest success of each problem; drop solved problems. A visit's rollouts come together."""
        for name, visit in root_visits(rollouts).items():
            successes = [rollout for rollout in visit if rollout.verdict.correct]
            whole = [rollout for rollout in successes if is_whole(rollout, self._is_wrong)]
            if len(successes) > SOLVED * len(visit):
                self._answers.drop(name)
            elif whole:
                self._answers.keep(whole[-1], at.version)

    def save(self, folder: Path) -> None:
        """See `StartSource`."""
        (folder / FILE).write_text(json.dumps(self._answers.to_json()), encoding="utf-8")

    def restore(self, folder: Path | None) -> None:
        """See `StartSource`."""
        self._answers.from_json([] if folder is None else json.loads((folder / FILE).read_text(encoding="utf-8")))


def root_visits(rollouts: Sequence[Rollout]) -> dict[str, list[Rollout]]:
    """The generated rollouts from the root, by problem."""
    visits: dict[str, list[Rollout]] = {}
    for rollout in used(rollouts, Use.TRAIN, Use.COUNT):
        if not rollout.start.replayed:
            visits.setdefault(rollout.start.problem_id, []).append(rollout)
    return visits


def is_whole(rollout: Rollout, is_wrong: IsWrong | None) -> bool:
    """Whether a right response may be repeated: it has its end, and no error is found in it."""
    wrong = is_wrong is not None and bool(is_wrong(rollout.start.problem_id, rollout.response_ids))
    return not (rollout.finish.truncated or wrong)
