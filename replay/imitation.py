"""Right answers that every update repeats (self-imitation, 1806.05635): one of each problem, the newest, while the root
does not solve it. Two rules say which are kept.

`own_successes` keeps those from the root (`replay.imitated`). Example, 8 rollouts of a problem in each visit: 2
succeed, and the last of them is kept. None succeeds, and it stays. 5 succeed, and it is dropped: the root itself
teaches more. A truncated success, or one that contains an error, counts and is never kept.

`discoveries` keeps successes that continue a replayed state of a problem whose root does not succeed
(`replay.discoveries`). The policy gradient of the continuation gives its prefix no credit, so the whole text is
repeated from the root, prefix and continuation, until a visit of the root has a success: first return, then robustify
(Go-Explore, 2004.12919).

The weight of an answer halves every `HALF_LIFE` weight versions, because an old one is what another policy wrote; after
three half-lives it is dropped. Invariant: a draw depends only on the seed, the iteration and what was kept.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from core.parts.sources import Progress, StartSource, root_start
from core.records import Flags, IntArray, Problem, Rollout, Use
from core.seeds import derive, generator
from replay.coverage import Coverage, continued, root_visits
from replay.cutting import IsWrong

SOLVED = 0.5  # a problem of which a larger share of a visit's rollouts succeeds is not imitated
MOST = 1024  # answers that are kept; the oldest goes first
HALF_LIFE = 32  # weight versions in which the weight of an answer halves
FADED = 0.125  # weight below which it is dropped: after three half-lives
FILE = "answers.json"

Rule = Callable[[Sequence[Rollout]], tuple[set[str], list[Rollout]]]
"""An iteration's rollouts -> problems whose answer is dropped, and right responses to keep, the newest last."""


def own_successes(rollouts: Sequence[Rollout]) -> tuple[set[str], list[Rollout]]:
    """Drop the answers of solved problems; keep the successes of others. A visit's rollouts come together."""
    visits = root_visits(rollouts)
    right = {name: [one for one in visit if one.verdict.correct] for name, visit in visits.items()}
    solved = {name for name, visit in visits.items() if len(right[name]) > SOLVED * len(visit)}
    return solved, [one for name, successes in right.items() if name not in solved for one in successes]


def discoveries(coverage: Coverage, rollouts: Sequence[Rollout]) -> tuple[set[str], list[Rollout]]:
    """Drop the answers of problems whose root succeeds; keep the successes behind states of others. `coverage` has
    observed this iteration already. Episodes of an environment are left out: which tokens of their prefix the
    environment wrote is not known, also where no mask says so because it wrote none of the continuation."""
    succeeds = {name for name, life in coverage.lives.items() if life.root_succeeds}
    right = [one for one in continued(rollouts) if one.verdict.correct and one.episode is None]
    return succeeds, [one for one in right if one.start.problem_id not in succeeds]


class Answer(NamedTuple):
    """A whole right answer to a problem."""

    response_ids: IntArray  # [R]
    version: int  # weight version of the learner when it was kept
    mask: Flags | None  # [R] as of the rollout


class Imitation(StartSource):
    """One answer of each problem, the oldest first. It proposes no start; every update repeats some of its answers."""

    def __init__(
        self, kind: str, most: int, rule: Rule, problems: Mapping[str, Problem], is_wrong: IsWrong | None = None
    ) -> None:
        """`kind`: of the repeated answers' starts; its draws have a seed of this name. `most`: answers that an update
        repeats. `problems`: to train on, by id. `is_wrong`: finds errors in the text of an answer."""
        self._kind, self._most, self._rule, self._problems, self._is_wrong = kind, most, rule, problems, is_wrong
        self._kept: dict[str, Answer] = {}

    def observe(self, rollouts: Sequence[Rollout], at: Progress) -> None:
        """Keep what the rule says, the whole response of each rollout, prefix and continuation. Left out are responses
        without an end, and those in which an error is found."""
        dropped, right = self._rule(rollouts)
        self._kept = {name: answer for name, answer in self._kept.items() if name not in dropped}
        for rollout in right:
            name, response = rollout.start.problem_id, rollout.response_ids
            if not (rollout.finish.truncated or (self._is_wrong is not None and self._is_wrong(name, response))):
                self._kept.pop(name, None)  # the newest comes last
                self._kept[name] = Answer(response, at.version, rollout.mask)
        self._kept = dict(list(self._kept.items())[-MOST:])

    def extra(self, rollouts: Sequence[Rollout], at: Progress) -> list[Rollout]:  # noqa: ARG002
        """Some of the answers that have not faded, drawn at random without replacement. Faded ones are dropped."""
        weights = {name: 0.5 ** ((at.version - one.version) / HALF_LIFE) for name, one in self._kept.items()}
        self._kept = {name: one for name, one in self._kept.items() if weights[name] >= FADED}
        names, seed = list(self._kept), derive(at.seed, self._kind, at.iteration)
        order = generator(seed, "successes").permutation(len(names))[: self._most].tolist()
        return [self._repeated(names[place], weights[names[place]], at, index) for index, place in enumerate(order)]

    def _repeated(self, name: str, weight: float, at: Progress, index: int) -> Rollout:
        start, answer = root_start(self._problems[name], at, index, self._kind), self._kept[name]
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

    def metrics(self) -> dict[str, float]:
        """See `StartSource`."""
        return {"discoveries": len(self._kept)} if self._kind == "discovered" else {}
