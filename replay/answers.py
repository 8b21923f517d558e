"""Right answers that an update repeats: one of each problem, the newest, in the order in which they came. The start
sources of `replay/imitation.py` say which are kept.

The weight of an answer halves every `HALF_LIFE` weight versions, because an old one is what another policy wrote; after
three half-lives it is dropped. Invariant: a draw depends only on the seed, the iteration and what was kept.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from core.parts.sources import Progress, StartSource, root_start
from core.records import Flags, IntArray, Problem, Rollout, Use
from core.seeds import derive, generator
from replay.cutting import IsWrong

MOST = 1024  # answers that are kept; the oldest goes first
HALF_LIFE = 32  # weight versions in which the weight of an answer halves
FADED = 0.125  # weight below which it is dropped: after three half-lives
FILE = "answers.json"


class Answer(NamedTuple):
    """A whole right answer to a problem."""

    response_ids: IntArray  # [R]
    version: int  # weight version that wrote it
    mask: Flags | None  # [R] as of the rollout


class Answers(StartSource):
    """One answer of each problem, the oldest first. It proposes no start; every update repeats some of its answers."""

    kind = ""  # of the repeated answers' starts; its draws have a seed of this name

    def __init__(self, most: int, problems: Mapping[str, Problem], is_wrong: IsWrong | None = None) -> None:
        """`most`: answers that an update repeats. `problems`: to train on, by id. `is_wrong`: finds errors in the text
        of an answer."""
        self._most, self._problems, self._is_wrong = most, problems, is_wrong
        self._kept: dict[str, Answer] = {}

    def keep(self, rollout: Rollout, version: int) -> None:
        """Keep the whole response of a rollout, prefix and continuation, in the place of an earlier one."""
        problem_id = rollout.start.problem_id
        self.drop(problem_id)
        self._kept[problem_id] = Answer(rollout.response_ids, version, rollout.mask)
        for name in list(self._kept)[: max(0, len(self._kept) - MOST)]:
            del self._kept[name]

    def drop(self, problem_id: str) -> None:
        """Forget the answer of a problem, if there is one."""
        self._kept.pop(problem_id, None)

    def is_whole(self, rollout: Rollout) -> bool:
        """Whether a right response may be repeated: it has its end, and no error is found in it."""
        found = self._is_wrong is not None and self._is_wrong(rollout.start.problem_id, rollout.response_ids)
        return not (rollout.finish.truncated or found)

    def extra(self, rollouts: Sequence[Rollout], at: Progress) -> list[Rollout]:  # noqa: ARG002
        """Some of the answers that have not faded, drawn at random without replacement. Faded ones are dropped."""
        weights = {name: 0.5 ** ((at.version - one.version) / HALF_LIFE) for name, one in self._kept.items()}
        self._kept = {name: one for name, one in self._kept.items() if weights[name] >= FADED}
        names, seed = list(self._kept), derive(at.seed, self.kind, at.iteration)
        order = generator(seed, "successes").permutation(len(names))[: self._most].tolist()
        return [self._repeated(names[place], weights[names[place]], at, index) for index, place in enumerate(order)]

    def _repeated(self, name: str, weight: float, at: Progress, index: int) -> Rollout:
        start, answer = root_start(self._problems[name], at, index, self.kind), self._kept[name]
        return Rollout.given(start, answer.response_ids, Use.IMITATE, answer.mask, weight)

    def save(self, folder: Path) -> None:
        """See `StartSource`."""
        known = [
            (name, one.response_ids.tolist(), one.version, None if one.mask is None else one.mask.tolist())
            for name, one in self._kept.items()
        ]
        (folder / FILE).write_text(json.dumps(known), encoding="utf-8")

    def restore(self, folder: Path | None) -> None:
        """See `StartSource`."""
        saved = [] if folder is None else json.loads((folder / FILE).read_text(encoding="utf-8"))
        self._kept = {
            name: Answer(np.array(tokens, np.int32), version, None if mask is None else np.array(mask, np.bool_))
            for name, tokens, version, mask in saved
        }
