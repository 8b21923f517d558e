"""Renewing stale values: what is charged to which phase, and when it is done at all."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from core.config import Config
from core.errors import ActorError, LearnerError, WeightError
from core.interruption import Interruption
from core.load import override
from core.records import FloatArray, Problem, Provenance, ReplayedState, Verdict
from tests.resolved import without_auto
from trainer import build
from trainer.batches import check_verdicts
from trainer.loop import broadcast, iterate
from trainer.memory import begun_refresh, finish_refresh
from trainer.metrics import PhaseClock
from trainer.records import Components, IterationSettings

PROBLEM = Problem("p", np.array([1], np.int32), "gold")
STALE = [ReplayedState(key, "p", np.array([key], np.int32), 0.5, Provenance.OWN_FAILED, 0) for key in (7, 8)]


@dataclass
class Run:
    """Store, learner and engines with two stale states; keeps what happens, in order, with its phase."""

    version: int = 3
    phases: list[str] = field(default_factory=list)
    seen: list[Any] = field(default_factory=list)
    told: list[tuple[list[int], list[float], int]] = field(default_factory=list)

    @cached_property
    def clock(self) -> PhaseClock:
        return PhaseClock(self.phases.append)

    def note(self, what: str) -> None:
        self.seen.append((what, self.phases[-1] if self.phases else None))

    def top(self, count: int, older_than: int) -> list[ReplayedState]:
        self.note("top")
        return STALE[: count if older_than else 0]

    def revalue(self, states: list[ReplayedState], values: FloatArray, version: int) -> None:
        self.note("revalue")
        self.told.append(([state.key for state in states], values.tolist(), version))

    def begin_values(self, queries: list[Any]) -> Callable[[], list[FloatArray]]:
        self.note("begin")
        assert [query.trajectory.response_ids.tolist() for query in queries] == [[7, 0], [8, 0]]

        def values() -> list[FloatArray]:
            self.note("valued")
            return [np.array([value], np.float32) for value in (np.nan, 0.25)]

        return values

    def values(self, queries: list[Any]) -> list[FloatArray]:
        return self.begin_values(queries)()

    def generate(self, _starts: Any, _sampling: Any) -> list[Any]:
        self.note("generate")
        return []

    def parts(self) -> Components:
        return cast(
            Components, SimpleNamespace(replay=self, learner=self, actors=self, by_id={"p": PROBLEM}, pipeline=None)
        )


def renewing(count: int, *fields: str) -> IterationSettings:
    replayed = ["--replay.ratio", "0.5", "--replay.refresh", str(count)]
    return build.iteration_settings(without_auto(override(Config(), [*replayed, *fields])))


def test_store_and_critic_are_charged_apart_and_a_value_that_is_not_finite_is_not_stored() -> None:
    run = Run()
    stale = begun_refresh(run.parts(), renewing(2))
    assert stale is not None
    run.version = 4  # what was asked of a critic is stored as that critic's
    finish_refresh(run.parts(), stale, run.clock)
    assert run.seen[2:] == [("valued", "score"), ("revalue", "replay")]
    assert run.told == [([8], [0.25], 3)]
    assert begun_refresh(run.parts(), renewing(0)) is None
    assert len(run.seen) == 4


def test_stale_states_are_valued_while_the_engines_generate(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run()
    monkeypatch.setattr("trainer.batches.choose_starts", lambda *_: [])
    with pytest.raises(ActorError, match="gave a rollout"):
        iterate(run.parts(), renewing(2), 1, run.clock, Interruption())
    assert run.seen == [("top", "replay"), ("begin", "replay"), ("generate", "generate")]


def test_a_learner_on_the_engines_gpu_values_stale_states_before_the_engines_wake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Run()
    monkeypatch.setattr("trainer.batches.choose_starts", lambda *_: [])
    with pytest.raises(ActorError, match="gave a rollout"):
        iterate(run.parts(), renewing(2, "--rollout.sleep", "true"), 1, run.clock, Interruption())
    assert [what for what, _ in run.seen] == ["top", "begin", "valued", "generate"]


@dataclass
class Learner:
    """Has finished an update; its broadcast meets `error`."""

    error: Exception
    version: int = 4

    def broadcast(self, _engines: Any) -> None:
        self.version += 1
        raise self.error


def test_engines_lost_in_a_broadcast_do_not_undo_the_update_but_a_lost_learner_does() -> None:
    def parts(error: Exception) -> Components:
        return cast(Components, SimpleNamespace(learner=Learner(error), actors=None))

    for error in (ActorError("rollout-0 died"), WeightError("rollout-0 acknowledged version 3")):
        report, failure = broadcast(parts(error))
        assert (report.version, report.gap, failure) == (5, None, error)
    with pytest.raises(LearnerError):
        broadcast(parts(LearnerError("rank 0 died")))


def test_an_iteration_without_any_response_is_refused_before_the_update(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Run()
    monkeypatch.setattr("trainer.batches.choose_starts", lambda *_: [])
    with pytest.raises(ActorError, match=r"^no start of iteration 7 gave a rollout: see log.txt and quarantine/"):
        iterate(run.parts(), renewing(0), 7, run.clock, Interruption())


def test_an_iteration_without_any_verdict_is_refused_before_the_update(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost = SimpleNamespace(verdict=Verdict(0.0, False, "judge raised KeyError: 'k' (mine.py, line 3)", True))
    right = SimpleNamespace(verdict=Verdict(1.0, True))
    check_verdicts(cast(Any, [lost, right]), 7)
    told = (
        r"^none of the 2 responses of iteration 7 has a verdict; "
        r"the first: judge raised KeyError: 'k' \(mine\.py, line 3\)$"
    )
    run = Run()
    engines, task = SimpleNamespace(generate=lambda *_: [1, 2]), SimpleNamespace(judge=lambda _: [lost, lost])
    parts = cast(Components, SimpleNamespace(**vars(run.parts()) | {"actors": engines, "task": task}))
    monkeypatch.setattr("trainer.batches.choose_starts", lambda *_: [])
    with pytest.raises(ActorError, match=told):
        iterate(parts, renewing(0), 7, run.clock, Interruption())


@pytest.mark.parametrize(
    ("ranking", "renewed"),
    [
        ("value", 64),
        ("learnability", 64),
        ("uniform", 0),
    ],
)
def test_only_rankings_by_value_renew_values(ranking: str, renewed: int) -> None:
    config = override(Config(), ["--replay.ratio", "0.5", "--replay.ranking", ranking, "--replay.refresh", "64"])
    assert build.iteration_settings(without_auto(config)).refresh_states == renewed
    without_replay = override(config, ["--replay.ratio", "0"])
    assert build.iteration_settings(without_auto(without_replay)).refresh_states == 0
