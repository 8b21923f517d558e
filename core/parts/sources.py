"""Start sources: what proposes the starts of an iteration and observes what became of them. Fresh problems are one,
replayed states another, and a user's own is a class that `rollout.sources` names (docs/extending.md).

Invariant: what a source proposes depends only on its arguments, on what it has observed and on earlier calls, all of
which `save` keeps. So a run that restores its sources repeats.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from core.records import EMPTY, IntArray, Problem, Rollout, Start, StateKey
from core.seeds import derive

ROUND = 100_000  # the starts of round n of dynamic sampling are numbered from n x ROUND


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run is when an iteration begins."""

    seed: int  # of the run
    iteration: int  # from 1
    iterations: int  # of the whole run
    samples: int  # continuations of a start
    version: int = 0  # weight version of the learner
    round: int = 0  # of dynamic sampling, which asks for more starts; 0: the iteration's own


class StartSource:
    """What an iteration calls, in this order. A source overrides what it needs. A user's own is made with the training
    problems by id and the tokenizer."""

    def propose(self, most: int, at: Progress) -> list[Start]:  # noqa: ARG002  one signature for all sources
        """At most `most` starts for the iteration `at`. Fresh problems take the places that are left."""
        return []

    def extra(self, rollouts: Sequence[Rollout], at: Progress) -> list[Rollout]:  # noqa: ARG002
        """What it adds to the iteration's `rollouts` before the learner scores them all: earlier answers to imitate
        (`Use.IMITATE`), and texts that only need scores (`Use.VALUE`, `Use.SOLUTION`)."""
        return []

    def observe(self, rollouts: Sequence[Rollout], at: Progress) -> None:
        """Learn from all judged and scored rollouts of the iteration: its own, those of other sources, the extra
        ones."""

    def evaluated(self, rollouts: Sequence[Rollout]) -> None:
        """Learn from the judged responses to the held-out problems: before training, and after every evaluation."""

    def save(self, folder: Path) -> None:
        """Write what it knows into an empty folder of a checkpoint. An iteration that ended between `propose` and
        `observe` is repeated: write what it knew before that."""

    def restore(self, folder: Path | None) -> None:
        """Read what `save` wrote. None: be as new."""

    def metrics(self) -> dict[str, float]:
        """Numbers of `trainer.metrics.IterationMetrics` that it knows, by name."""
        return {}

    def close(self) -> None:
        """End what it has started."""


def roots(problems: Sequence[Problem], samples: int, seed: int) -> list[Start]:
    """The roots of problems outside of any iteration, for an evaluation."""
    at = Progress(seed, 0, 0, samples)
    return [root_start(problem, at, index) for index, problem in enumerate(problems)]


def root_start(problem: Problem, at: Progress, index: int, kind: str = "fresh") -> Start:
    """The root of a problem as start `index` of its kind in the iteration. Kinds differ in their first letter."""
    return state_start(problem, EMPTY, None, at, index, kind)


def state_start(
    problem: Problem, prefix: IntArray, key: StateKey | None, at: Progress, index: int, kind: str = "replayed"
) -> Start:
    """A state as start `index` of its kind in the iteration. `prefix`: [K] tokens. `key`: names the state."""
    place = at.round * ROUND + index
    return Start(
        id=f"{at.iteration}.{kind[0]}{place}",
        problem_id=problem.id,
        prompt_ids=problem.prompt_ids,
        prefix_ids=prefix,
        samples=at.samples,
        seed=derive(at.seed, kind, at.iteration, place),
        state_key=key,
        world=problem.world,
    )
