"""Right answers that an update repeats: one of each problem, the newest, in the order in which they came.

The weight of an answer halves every `HALF_LIFE` weight versions, because an old one is what another policy wrote; after
three half-lives it is dropped. Invariant: a draw depends only on the seed, the iteration and what was kept.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from core.parts.sources import Progress, root_start
from core.records import Finish, Flags, IntArray, Problem, Rollout, Use, Verdict
from core.seeds import derive, generator

MOST = 1024  # answers that are kept; the oldest goes first
HALF_LIFE = 32  # weight versions in which the weight of an answer halves
FADED = 0.125  # weight below which it is dropped: after three half-lives
RIGHT = Verdict(1.0, True, "an earlier right answer")


class Answer(NamedTuple):
    """A whole right answer to a problem."""

    response_ids: IntArray  # [R]
    version: int  # weight version that wrote it
    mask: Flags | None  # [R] as of the rollout

    def repeated(self, problem: Problem, at: Progress, index: int, kind: str, weight: float) -> Rollout:
        """It as rollout `index` of its kind in the iteration. `weight`: of its tokens in the loss."""
        zeros = np.zeros(self.response_ids.size)
        return Rollout(
            root_start(problem, at, index, kind),
            0,
            self.response_ids,
            zeros.astype(np.float32),
            zeros.astype(np.int32),
            Finish.STOP,
            self.mask,
            use=Use.IMITATE,
            weight=weight,
            verdict=RIGHT,
        )


class Answers:
    """One answer of each problem, the oldest first."""

    def __init__(self, most: int, problems: Mapping[str, Problem], kind: str) -> None:
        """`most`: answers that an update repeats. `problems`: to train on, by id. `kind`: of their starts, and of the
        seed of their draw."""
        self._most, self._problems, self._kind = most, problems, kind
        self._kept: dict[str, Answer] = {}

    def __len__(self) -> int:
        """Answers that are kept."""
        return len(self._kept)

    def __iter__(self) -> Iterator[str]:
        """The problems of the answers."""
        return iter(self._kept)

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

    def draw(self, at: Progress) -> list[Rollout]:
        """Some of the answers that have not faded, drawn at random without replacement. Faded ones are dropped."""
        weights = {name: 0.5 ** ((at.version - one.version) / HALF_LIFE) for name, one in self._kept.items()}
        self._kept = {name: one for name, one in self._kept.items() if weights[name] >= FADED}
        names, seed = list(self._kept), derive(at.seed, self._kind, at.iteration)
        order = generator(seed, "successes").permutation(len(names))[: self._most].tolist()
        return [
            self._kept[name].repeated(self._problems[name], at, index, self._kind, weights[name])
            for index, name in enumerate(names[place] for place in order)
        ]

    def to_json(self) -> list[Any]:
        """For a checkpoint."""
        return [
            (name, one.response_ids.tolist(), one.version, None if one.mask is None else one.mask.tolist())
            for name, one in self._kept.items()
        ]

    def from_json(self, saved: Sequence[Any]) -> None:
        """Set it to what `to_json` returned."""
        self._kept = {
            name: Answer(np.array(tokens, np.int32), version, None if mask is None else np.array(mask, np.bool_))
            for name, tokens, version, mask in saved
        }
