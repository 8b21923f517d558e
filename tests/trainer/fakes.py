"""One fake engine and one fake learner: a whole iteration of `trainer/loop.py` without a model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, cast

import numpy as np

from actors.ledger import Queues
from core.config import AlgorithmConfig
from core.errors import ActorError, LearnerError, WeightError
from core.parts.sources import Progress
from core.records import Finish, Problem, Rollout, Sampling, Start, Use, Verdict, used
from learner.batch import Batch
from learner.credit import Algorithm
from learner.probe import Gap
from learner.state import LearnerState
from learner.stats import BroadcastReport, UpdateStats
from tests.learner.conftest import every_token
from trainer.run import Run, Sources

STATS = UpdateStats(**{entry.name: 0.0 for entry in fields(UpdateStats)})  # type: ignore[arg-type]
PROBLEMS = {f"p{number}": Problem(f"p{number}", np.array([number], np.int32), "gold") for number in range(100)}
Answer = Callable[[Start, int], tuple[Sequence[int], bool]]
"""Start and sample -> the tokens of the continuation, and whether the response is right."""


@dataclass
class FakeEngines:
    """Engines for training and for evaluation, and the judge: what they say is `answer`'s."""

    answer: Answer
    starts: int = 4
    asked: list[list[str]] = field(default_factory=list)  # ids of the starts of every call
    lost: list[Start] = field(default_factory=list)
    restarts = quarantined = dropped = finished = 0

    def room(self, at: Progress) -> int:
        return self.starts

    def generate(self, starts: Sequence[Start], sampling: Sampling | None = None) -> list[Rollout]:
        self.asked.append([start.id for start in starts])
        return [self._rollout(start, sample) for start in starts for sample in range(start.samples)]

    def _rollout(self, start: Start, sample: int) -> Rollout:
        tokens = np.array(self.answer(start, sample)[0], np.int32)
        log_p, versions = np.full(tokens.size, -1.0, np.float32), np.zeros(tokens.size, np.int32)
        return Rollout(start, sample, tokens, log_p, versions, Finish.STOP)

    def judge(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        right = [self.answer(rollout.start, rollout.sample)[1] for rollout in rollouts]
        return [replace(one, verdict=Verdict(float(ok), ok)) for one, ok in zip(rollouts, right, strict=True)]

    def save(self) -> None:
        return None

    def restore(self, saved: Any, at: Progress) -> None:
        """Nothing is in flight."""

    def take_lost(self) -> list[Start]:
        lost, self.lost = self.lost, []
        return lost

    def queues(self) -> Queues:
        return Queues(waiting=0, running=0, busy=0.0, actors=1)


@dataclass
class FakeLearner:
    """Every value is 0.5. Keeps what it is given."""

    version: int = 0
    updates: list[list[Rollout]] = field(default_factory=list)  # of every update the rollouts that it learns from
    error: ActorError | WeightError | LearnerError | None = None  # of a broadcast

    def score(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        order = [rollout for use in Use for rollout in used(rollouts, use)]
        return [rollout if rollout.use is Use.COUNT else self._scored(rollout) for rollout in order]

    def _scored(self, rollout: Rollout) -> Rollout:
        half, log_p = np.full(rollout.tokens.size, 0.5, np.float32), np.full(rollout.tokens.size, -1.0, np.float32)
        return replace(rollout, values=half, proximal=log_p, reference=log_p)

    @property
    def state(self) -> LearnerState:
        return LearnerState(0.0, 0.0, self.version)

    def update(self, batch: Batch) -> UpdateStats:
        self.updates.append(batch.rollouts)
        return STATS

    def broadcast(self, _engines: Any) -> BroadcastReport:
        self.version += 1
        if self.error is not None:
            raise self.error
        return BroadcastReport(self.version, Gap(0.0, 0.0))


def fake_run(engines: FakeEngines, learner: FakeLearner, sources: Sources, samples: int = 2, rounds: int = 0) -> Run:
    """A run of these parts, of 10 iterations."""
    return Run(
        begin=Progress(0, 0, 10, samples),
        task=cast(Any, engines),
        problems=PROBLEMS,
        sources=sources,
        engines=engines,
        pool=cast(Any, engines),
        algorithm=Algorithm(AlgorithmConfig(), 8, every_token),
        learner=cast(Any, learner),
        resample=rounds,
    )
