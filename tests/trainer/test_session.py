"""What a session saves when something dies: stand-ins for the parts, real files for the checkpoints."""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from actors.ledger import Queues
from commands import train as commands
from core.config import Config
from core.errors import ActorError, LearnerError, RetrospectError, WeightError
from core.load import override
from core.plan import batch_plan
from core.run_directory import RunDirectory, write_atomically
from core.sampling import Sampling
from trainer import asynchronous, checkpoint, session
from trainer.checkpoint import Progress
from trainer.evaluation import EvaluationPlan
from trainer.loop import Parts, Settings
from trainer.metrics import PhaseClock
from trainer.session import Outputs, Schedule

GREEDY = Sampling(0.0, 1.0, 8)
SCHEDULE = Schedule(
    4, checkpoint_every=2, keep_checkpoints=2, evaluate_every=3, evaluation=EvaluationPlan(GREEDY, GREEDY, 0)
)


@dataclass
class Console:
    """Keeps what it is told."""

    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def phase(self, name: str) -> None:
        pass


def parts_without_engines() -> Parts:
    """What a session asks of the parts itself."""
    actors = SimpleNamespace(queues=lambda: Queues(0, 0, 0.0, 1), restarts=0, quarantined=0)
    return cast(Parts, SimpleNamespace(pipeline=None, actors=actors))


@dataclass
class Session:
    """A run whose iteration `dies` fails in `phase`; `saves` lists the checkpoints written."""

    run: RunDirectory
    dies: int
    phase: Any
    saves: list[int] = field(default_factory=list)
    reports: list[int] = field(default_factory=list)
    console: Console = field(default_factory=Console)

    def iterate(self, _parts: Any, _settings: Any, number: int, clock: PhaseClock) -> Any:
        failure = ActorError(f"died in {self.phase}") if number == self.dies else None
        if failure and self.phase not in ("broadcast", "evaluate"):
            with clock.phase(self.phase):
                raise LearnerError(str(failure)) if self.phase in ("score", "update") else failure
        lost = failure if self.phase == "broadcast" else None
        return SimpleNamespace(iteration=number, failure=lost)

    def held_out(self, *_: Any) -> Any:
        raise ActorError("died in evaluate")

    def save(self, run: RunDirectory, _parts: Any, progress: Progress, _keep: int, _success: float | None) -> Path:
        self.saves.append(progress.iteration)
        path = run.checkpoints / f"{progress.iteration:06d}"
        path.mkdir()
        (path / "progress.json").write_text(json.dumps({}))
        write_atomically(run.checkpoints / "latest", path.name)
        return path

    def report(self, _parts: Any, _outputs: Any, _progress: Progress, done: Any, *_: Any) -> Progress:
        self.reports.append(done.iteration)
        return Progress(done.iteration, {}, 0)

    def train(self, patch: pytest.MonkeyPatch) -> None:
        for name in ("iterate", "held_out", "report"):
            patch.setattr(session, name, getattr(self, name))
        patch.setattr(checkpoint, "save", self.save)
        outputs = Outputs(self.run, cast(Any, self.console), [])
        session.train(parts_without_engines(), cast(Settings, None), SCHEDULE, outputs, Progress(0, {}, 0))


@pytest.mark.parametrize(
    ("dies", "phase", "saves"),
    [
        (1, "generate", []),  # nothing to save yet
        (2, "generate", [1]),
        (3, "generate", [2]),  # the checkpoint that was due after iteration 2, not a second one
        (2, "score", []),  # the learner died itself
        (2, "update", []),
        (1, "replay", []),
        (2, "replay", [1]),  # in asynchronous mode: noticed when the next starts were submitted
        (2, "reward", [1]),
        (1, "broadcast", [1]),  # the update was done
        (2, "broadcast", [2]),
        (3, "broadcast", [2, 3]),  # and no evaluation by engines that are lost
        (3, "evaluate", [2, 3]),  # iteration 3 was complete
    ],
)
def test_what_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies: int, phase: str, saves: list[int]
) -> None:
    broken = Session(RunDirectory.create(tmp_path, "r", "test"), dies, phase)
    with pytest.raises(ActorError, match=f"died in {phase}"):
        broken.train(monkeypatch)
    assert broken.saves == saves
    assert broken.reports == list(
        range(1, dies + (phase in ("broadcast", "evaluate")))
    )  # metrics before the checkpoint
    assert any("stopped" in note for note in broken.console.notes) == (saves != [])


@pytest.mark.parametrize("phase", ["generate", "broadcast", "evaluate"])
def test_an_engine_with_other_weights_costs_no_iteration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    """Found in a broadcast, or (an engine that came late) while generating, for training or for the evaluation after iteration 3."""
    run, wrong = RunDirectory.create(tmp_path, "r", "test"), WeightError("rollout-1 acknowledged version 3")

    def unfit(self: Session, _parts: Any, _settings: Any, number: int, clock: PhaseClock) -> Any:
        if number == 4 and phase == "generate":
            with clock.phase("generate"):
                raise wrong
        return SimpleNamespace(iteration=number, failure=wrong if number == 3 and phase == "broadcast" else None)

    def evaluated(*_: Any) -> Any:
        if phase == "evaluate":
            raise wrong
        return SimpleNamespace(success=0.0)

    monkeypatch.setattr(Session, "iterate", unfit)
    monkeypatch.setattr(session, "evaluated", evaluated)
    monkeypatch.setattr(checkpoint, "is_best", lambda *_: False)
    broken = Session(run, dies=0, phase=phase)
    with pytest.raises(WeightError, match="rollout-1 acknowledged"):
        broken.train(monkeypatch)
    assert broken.saves == [2, 3]


@pytest.mark.parametrize("breaks", ["submit", "finished"])
@pytest.mark.parametrize("error", [ActorError, WeightError])
def test_in_asynchronous_mode_engines_are_found_lost_while_the_learner_can_be_saved(
    monkeypatch: pytest.MonkeyPatch, breaks: str, error: type[RetrospectError]
) -> None:
    def lost(*_: Any) -> Any:
        raise error("rollout.max_restarts is used up")

    stream = SimpleNamespace(**{"submit": lambda *_: None, "finished": lambda: [], breaks: lost})
    pipeline = asynchronous.Pipeline(cast(Any, stream), GREEDY, starts=1, max_staleness=1, iterations=4)
    monkeypatch.setattr(asynchronous, "choose_starts", lambda *_: [])
    parts, clock = cast(Parts, SimpleNamespace(learner=SimpleNamespace(version=0))), PhaseClock()
    with pytest.raises(error, match="is used up"):
        asynchronous.iterate(pipeline, parts, cast(Settings, SimpleNamespace(refresh=0)), 1, clock)
    assert clock.current in session.RESCUABLE


def test_an_evaluation_that_is_the_best_so_far_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Iterations 1 to 4, each evaluated, checkpoints due after 2 and 4; success 0.5, 0.2, 0.7, 0.7."""
    run = RunDirectory.create(tmp_path, "r", "test")
    successes, saved = iter((0.5, 0.2, 0.7, 0.7)), []

    def save(_run: Any, _parts: Any, progress: Progress, _keep: int, success: float | None) -> Path:
        saved.append((progress.iteration, success))
        if success is not None and checkpoint.is_best(run, success):
            (run.checkpoints / f"{progress.iteration:06d}").mkdir()
            (run.checkpoints / "best").write_text(f"{progress.iteration:06d} {success}")
        return run.checkpoints

    fake = Session(run, dies=0, phase="")
    for name in ("iterate", "report"):
        monkeypatch.setattr(session, name, getattr(fake, name))
    monkeypatch.setattr(session, "evaluated", lambda *_: SimpleNamespace(success=next(successes)))
    monkeypatch.setattr(checkpoint, "save", save)
    schedule = replace(SCHEDULE, evaluate_every=1)
    outputs = Outputs(run, cast(Any, fake.console), [])
    session.train(parts_without_engines(), cast(Settings, None), schedule, outputs, Progress(0, {}, 0))
    assert saved == [(1, 0.5), (2, 0.2), (3, 0.7), (4, 0.7)]  # 1 and 3 are best, 2 and 4 due
    assert checkpoint.best(run) == checkpoint.Best(3, 0.7)


@dataclass
class Learner:
    """Counts its restarts, for each of which the engines have made room before."""

    restarts: int = 0
    rooms: int = 0

    def make_room(self) -> None:
        self.rooms += 1

    def restart(self) -> None:
        assert self.rooms == self.restarts + 1
        self.restarts += 1


@pytest.mark.parametrize(("saved", "where"), [(None, "begins again"), ("000002", "goes on after iteration 2")])
def test_a_lost_learner_is_started_anew_from_the_last_checkpoint_or_the_beginning_but_not_for_ever(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    saved: str | None,
    where: str,
) -> None:
    run = RunDirectory.create(tmp_path, "r", "test")
    if saved:
        (run.checkpoints / saved).mkdir()
        (run.checkpoints / saved / "progress.json").write_text("{}")
        write_atomically(run.checkpoints / "latest", saved)
    begun: list[Any] = []

    def attempt(_config: Any, _plan: Any, _run: Any, _parts: Any, begin: Any, _local: bool) -> None:
        begun.append(begin())
        raise LearnerError("learner-rank-0 died during update")

    monkeypatch.setattr(commands, "attempt", attempt)
    monkeypatch.setattr(checkpoint, "go_on", lambda path, _parts: ("goes on", path))
    monkeypatch.setattr(checkpoint, "start_over", lambda cursor, _parts: ("begins again", cursor))
    config = override(Config(), ["--learner.max_restarts", "2"])
    learner = Learner()
    problems = SimpleNamespace(state=lambda: {"position": 7})
    parts = cast(Parts, SimpleNamespace(learner=learner, actors=learner, problems=problems))
    with pytest.raises(LearnerError):
        commands.run_session(config, batch_plan(config), run, parts, None, local=False)
    assert learner.restarts == 2
    again = ("goes on", run.checkpoints / saved) if saved else ("begins again", {"position": 7})
    assert begun == [Progress(0, {"position": 7}, 0), again, again]
    assert capsys.readouterr().out.splitlines() == [
        f"learner-rank-0 died during update: restart {number} of the learner, the run {where}" for number in (1, 2)
    ]
