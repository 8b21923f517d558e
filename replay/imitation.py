"""Self-imitation (1806.05635) as a start source: it proposes no start. It keeps the newest own success of each problem
that the root does not solve yet, and repeats some of them in every update (`replay.imitated`).

Their weight halves every `HALF_LIFE` weight versions, because an old success is what another policy wrote. Invariant:
all depends only on the rollouts from the root that were observed, in their order. Example, 8 rollouts of a problem in
each visit: 2 succeed, and the last of them is kept. None succeeds, and it stays. 5 succeed, and it is dropped: the root
itself teaches more. A truncated success, or one that contains an error, counts and is never kept.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from core.parts.sources import Progress, StartSource, root_start
from core.records import Finish, Flags, IntArray, Problem, Rollout, Use, Verdict, used
from core.seeds import derive, generator
from replay.cutting import IsWrong

MOST = 1024  # successes that are kept; the oldest goes first
SOLVED = 0.5  # a problem of which a larger share of a visit's rollouts succeeds is not imitated
HALF_LIFE = 32  # weight versions in which the weight of a success halves
FADED = 0.125  # weight below which it is dropped: after three half-lives
FILE = "successes.json"
OWN_SUCCESS = Verdict(1.0, True, "own success")


class Answer(NamedTuple):
    """A whole right answer to a problem, as the policy wrote it."""

    response_ids: IntArray  # [R]
    version: int  # weight version that wrote it
    mask: Flags | None  # [R] as of the rollout

    def repeated(self, problem: Problem, at: Progress, index: int, weight: float) -> Rollout:
        """It as rollout `index` of those that iteration `at` repeats. `weight`: of its tokens in the loss."""
        zeros = np.zeros(self.response_ids.size)
        return Rollout(
            root_start(problem, at, index, "imitated"),
            0,
            self.response_ids,
            zeros.astype(np.float32),
            zeros.astype(np.int32),
            Finish.STOP,
            self.mask,
            use=Use.IMITATE,
            weight=weight,
            verdict=OWN_SUCCESS,
        )


class Imitation(StartSource):
    """One own success of each problem, the oldest first."""

    def __init__(self, most: int, problems: Mapping[str, Problem], is_wrong: IsWrong | None = None) -> None:
        """`most`: successes that an update repeats. `problems`: to train on, by id. `is_wrong`: finds errors in the
        text of a success."""
        self._most, self._problems, self._is_wrong = most, problems, is_wrong
        self._kept: dict[str, Answer] = {}

    def repeat(self, rollouts: Sequence[Rollout], at: Progress) -> list[Rollout]:  # noqa: ARG002
        """Some of the successes that have not faded, drawn at random without replacement. Faded ones are dropped."""
        weights = {name: 0.5 ** ((at.version - one.version) / HALF_LIFE) for name, one in self._kept.items()}
        self._kept = {name: one for name, one in self._kept.items() if weights[name] >= FADED}
        names, seed = list(self._kept), derive(at.seed, "imitated", at.iteration)
        order = generator(seed, "successes").permutation(len(names))[: self._most].tolist()
        return [
            self._kept[name].repeated(self._problems[name], at, index, weights[name])
            for index, name in enumerate(names[place] for place in order)
        ]

    def observe(self, rollouts: Sequence[Rollout], at: Progress) -> None:
        """Keep the newest success of each problem; drop solved problems. A visit's rollouts come together."""
        visits: dict[str, list[Rollout]] = {}
        for rollout in used(rollouts, Use.TRAIN, Use.COUNT):
            if not rollout.start.replayed:
                visits.setdefault(rollout.start.problem_id, []).append(rollout)
        for name, visit in visits.items():
            successes = [rollout for rollout in visit if rollout.verdict.correct]
            whole = [rollout for rollout in successes if not (rollout.finish.truncated or self._lucky(rollout))]
            solved = len(successes) > SOLVED * len(visit)
            if solved or whole:
                self._kept.pop(name, None)
            if whole and not solved:
                self._kept[name] = Answer(whole[-1].response_ids, at.version, whole[-1].mask)
        for name in list(self._kept)[: max(0, len(self._kept) - MOST)]:
            del self._kept[name]

    def _lucky(self, rollout: Rollout) -> bool:
        """Whether a success contains an error."""
        return self._is_wrong is not None and bool(self._is_wrong(rollout.start.problem_id, rollout.response_ids))

    def save(self, folder: Path) -> None:
        """See `StartSource`."""
        answers = [
            (name, one.response_ids.tolist(), one.version, None if one.mask is None else one.mask.tolist())
            for name, one in self._kept.items()
        ]
        (folder / FILE).write_text(json.dumps(answers), encoding="utf-8")

    def restore(self, folder: Path | None) -> None:
        """See `StartSource`."""
        answers = [] if folder is None else json.loads((folder / FILE).read_text(encoding="utf-8"))
        self._kept = {
            name: Answer(np.array(tokens, np.int32), version, None if mask is None else np.array(mask, np.bool_))
            for name, tokens, version, mask in answers
        }
