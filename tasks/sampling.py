"""Fresh problems as a start source, and the samplers behind it: all with equal probability, or hard ones more often.

Invariant: a draw is a function of the seed, the cursor and how many problems are asked for, so a restored sampler
continues exactly. A cursor belongs to these problems: a checkpoint of others is refused by their fingerprint."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from core.errors import CheckpointError
from core.parts.sources import Progress, StartSource, root_start
from core.records import Problem, Rollout, Start, outcomes
from core.seeds import derive, generator

MEMORY = 0.5  # weight of a problem's earlier success rate when it is blended with that of its newest rollouts
CURSOR = "cursor.json"
PROBLEMS = "problems"  # in the file of the cursor: the fingerprint of its problems
EASY = 0.2  # weight of a problem that is always solved, relative to one that never is


class UniformSampler:
    """Draws every training problem once per epoch, in a permutation that depends only on seed and epoch."""

    def __init__(self, problems: Sequence[Problem], seed: int) -> None:
        self._problems, self._seed = list(problems), seed
        self._epoch = self._position = 0

    def sample(self, n: int) -> list[Problem]:
        """The next n problems; continues with the next epoch when this one is used up."""
        drawn: list[Problem] = []
        while len(drawn) < n:
            if self._position == len(self._problems):
                self._epoch, self._position = self._epoch + 1, 0
            order = generator(self._seed, "problems", self._epoch).permutation(len(self._problems))
            taken = order[self._position : self._position + n - len(drawn)]
            drawn += [self._problems[i] for i in taken]
            self._position += len(taken)
        return drawn

    def record(self, rollouts: Iterable[Rollout]) -> None:
        """Do nothing: outcomes do not change the order."""

    def state(self) -> dict[str, Any]:
        """The cursor, as plain data."""
        return {"epoch": self._epoch, "position": self._position}

    def restore(self, cursor: Mapping[str, Any]) -> None:
        """Restore a cursor of `state`."""
        self._epoch, self._position = cursor["epoch"], cursor["position"]


class HardSampler:
    """Draws problems with a weight that falls with their running success rate from the root. It is EASY + (1 - EASY) (1
    - rate). So hard problems come up to 1 / EASY times as often as solved ones, which still come, so that the policy
    does not forget them. The rate of an unseen problem is 0, so all are tried early."""

    def __init__(self, problems: Sequence[Problem], seed: int) -> None:
        self._problems, self._seed, self._draws = list(problems), seed, 0
        self._index = {problem.id: at for at, problem in enumerate(self._problems)}
        self._rates = np.zeros(len(self._problems))
        self._seen = np.zeros(len(self._problems), dtype=bool)

    def sample(self, n: int) -> list[Problem]:
        """The next n problems; each at most once more than any other."""
        rng = generator(self._seed, "hard problems", self._draws)
        self._draws += 1
        drawn: list[int] = []
        while len(drawn) < n:
            # weighted draw without replacement: the largest log w + Gumbel (Efraimidis and Spirakis, 2006)
            keys = np.log(EASY + (1.0 - EASY) * (1.0 - self._rates)) + rng.gumbel(size=len(self._problems))
            drawn += np.argsort(-keys, kind="stable")[: n - len(drawn)].tolist()
        return [self._problems[at] for at in drawn]

    def record(self, rollouts: Iterable[Rollout]) -> None:
        """Blend the share of correct rollouts from the root into the rates of their problems."""
        results: dict[int, list[bool]] = {}
        for rollout in rollouts:
            start = rollout.start
            if start.from_root and start.problem_id in self._index:  # else of another data set of a mixture
                results.setdefault(self._index[start.problem_id], []).append(rollout.verdict.correct)
        for at, correct in results.items():
            newest = sum(correct) / len(correct)
            self._rates[at] = MEMORY * self._rates[at] + (1.0 - MEMORY) * newest if self._seen[at] else newest
            self._seen[at] = True

    def state(self) -> dict[str, Any]:
        """The cursor as plain data: number of draws, and the rates of the problems seen so far."""
        rates = {str(at): float(self._rates[at]) for at in np.flatnonzero(self._seen)}
        return {"draws": self._draws, "rates": rates}

    def restore(self, cursor: Mapping[str, Any]) -> None:
        """Restore a cursor of `state`."""
        self._draws = cursor["draws"]
        self._rates[:], self._seen[:] = 0.0, False
        for at, rate in cursor["rates"].items():
            self._rates[int(at)], self._seen[int(at)] = rate, True


class MixedSampler:
    """Draws from several data sets in proportion to their weights, each with a sampler of its own. The next problem
    comes from the one that is furthest behind: no number is off by more than the number of data sets."""

    def __init__(self, samplers: Mapping[str, UniformSampler | HardSampler], weights: Mapping[str, float]) -> None:
        self._samplers = dict(samplers)
        self._shares = {label: weights[label] / sum(weights.values()) for label in samplers}
        self._drawn = dict.fromkeys(samplers, 0)

    def sample(self, n: int) -> list[Problem]:
        """The next n problems."""
        order: list[str] = []
        for _ in range(n):
            total = sum(self._drawn.values()) + 1
            order.append(max(self._shares, key=lambda label: self._shares[label] * total - self._drawn[label]))
            self._drawn[order[-1]] += 1
        parts = {label: iter(sampler.sample(order.count(label))) for label, sampler in self._samplers.items()}
        return [next(parts[label]) for label in order]

    def record(self, rollouts: Iterable[Rollout]) -> None:
        """Hand the outcomes to the samplers of their problems."""
        rollouts = list(rollouts)
        for sampler in self._samplers.values():
            sampler.record(rollouts)

    def state(self) -> dict[str, Any]:
        """The cursor, as plain data."""
        return {"drawn": dict(self._drawn), "parts": {name: part.state() for name, part in self._samplers.items()}}

    def restore(self, cursor: Mapping[str, Any]) -> None:
        """Restore a cursor of `state`."""
        self._drawn = dict(cursor["drawn"])
        for name, part in self._samplers.items():
            part.restore(cursor["parts"][name])


ProblemSampler = UniformSampler | HardSampler | MixedSampler  # a source of training problems


def problem_sampler(
    how: Literal["uniform", "hard"], problems: Sequence[Problem], seed: int, weights: Mapping[str, float] | None = None
) -> ProblemSampler:
    """The sampler of `task.sampling`. `weights`: of the data sets of a mixture, by label."""
    kind = HardSampler if how == "hard" else UniformSampler
    if not weights:
        return kind(problems, seed)
    parts = {label: [problem for problem in problems if problem.source == label] for label in weights}
    return MixedSampler({label: kind(part, derive(seed, label)) for label, part in parts.items()}, weights)


def read_cursor(folder: Path, fingerprint: str) -> dict[str, Any]:
    """The cursor that `Fresh.save` wrote. Raises CheckpointError if it belongs to other problems."""
    saved: dict[str, Any] = json.loads((folder / CURSOR).read_text(encoding="utf-8"))
    if saved.get(PROBLEMS, fingerprint) != fingerprint:  # checkpoints of earlier code have none
        raise CheckpointError(
            f"{folder}: its training problems are not those of this run; resume with the data, tokenizer, "
            "environment and rollout.max_prompt_tokens that it began with, or start a new run"
        )
    return saved


class Fresh(StartSource):
    """The roots of problems that a sampler draws."""

    def __init__(self, sampler: ProblemSampler, fingerprint: str = "") -> None:
        """`fingerprint`: of the problems (`task_fingerprint`), for `restore`."""
        self._sampler, self._new, self._fingerprint = sampler, sampler.state(), fingerprint
        self._before: dict[str, Any] | None = None  # the cursor before an iteration that is not observed yet

    def propose(self, most: int, at: Progress) -> list[Start]:
        """`most` problems."""
        self._before = self._before or self._sampler.state()
        return [root_start(problem, at, index) for index, problem in enumerate(self._sampler.sample(most))]

    def observe(self, rollouts: Sequence[Rollout], at: Progress) -> None:  # noqa: ARG002
        """Tell the sampler which problems succeed."""
        self._sampler.record(outcomes(rollouts))
        self._before = None

    def save(self, folder: Path) -> None:
        """See `StartSource`."""
        cursor = {**(self._before or self._sampler.state()), PROBLEMS: self._fingerprint}
        (folder / CURSOR).write_text(json.dumps(cursor), encoding="utf-8")

    def restore(self, folder: Path | None) -> None:
        """See `StartSource`. Raises CheckpointError for a cursor of other problems."""
        self._sampler.restore(self._new if folder is None else read_cursor(folder, self._fingerprint))
        self._before = None
