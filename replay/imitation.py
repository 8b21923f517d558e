"""Self-imitation (1806.05635): right answers to problems that the root does not solve yet are repeated in every update.

`Imitation` keeps own successes from the root (`replay.imitated`). Example, 8 rollouts of a problem in each visit: 2
succeed, and the last of them is kept. None succeeds, and it stays. 5 succeed, and it is dropped: the root itself
teaches more. A truncated success, or one that contains an error, counts and is never kept.

`Discoveries` keeps successes that continue a replayed state of a problem whose root does not succeed
(`replay.discoveries`). The policy gradient of the continuation gives its prefix no credit, so the whole text is
repeated from the root, prefix and continuation, until the root succeeds: first return, then robustify (Go-Explore,
2004.12919).
"""

from collections.abc import Mapping, Sequence

from core.parts.sources import Progress
from core.records import Problem, Rollout
from replay.answers import Answers
from replay.coverage import Coverage, continued, root_visits
from replay.cutting import IsWrong

SOLVED = 0.5  # a problem of which a larger share of a visit's rollouts succeeds is not imitated


class Imitation(Answers):
    """The newest own success of each problem."""

    kind = "imitated"

    def observe(self, rollouts: Sequence[Rollout], at: Progress) -> None:
        """Keep the newest success of each problem; drop solved problems. A visit's rollouts come together."""
        for name, visit in root_visits(rollouts).items():
            successes = [rollout for rollout in visit if rollout.verdict.correct]
            whole = [rollout for rollout in successes if self.is_whole(rollout)]
            if len(successes) > SOLVED * len(visit):
                self.drop(name)
            elif whole:
                self.keep(whole[-1], at.version)


class Discoveries(Answers):
    """The newest discovery of each problem, until its root succeeds."""

    kind = "discovered"

    def __init__(
        self, most: int, problems: Mapping[str, Problem], coverage: Coverage, is_wrong: IsWrong | None = None
    ) -> None:
        """`coverage`: what the run did with the problems."""
        super().__init__(most, problems, is_wrong)
        self._coverage = coverage

    def observe(self, rollouts: Sequence[Rollout], at: Progress) -> None:
        """Episodes of an environment are left out: which tokens of their prefix the environment wrote is not known."""
        lives = self._coverage.lives
        for name in root_visits(rollouts):
            if lives[name].root_succeeds:
                self.drop(name)
        for rollout in continued(rollouts):
            right = rollout.verdict.correct and rollout.mask is None
            if right and not lives[rollout.start.problem_id].root_succeeds and self.is_whole(rollout):
                self.keep(rollout, at.version)

    def metrics(self) -> dict[str, float]:
        """See `StartSource`."""
        return {"discoveries": len(self._kept)}
