"""What a session saves when something dies: stand-ins for the parts, real files for the checkpoints."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from actors.ledger import Queues
from core.errors import (
    ActorError,
    DataError,
    DivergenceError,
    LearnerError,
    LostShardError,
    RetrospectError,
    WeightError,
)
from core.interruption import Interruption
from core.parts.sources import Progress, StartSource
from core.records import Sampling, Verdict
from core.run_directory import RunDirectory, write_atomically
from tests.trainer.fakes import FakeEngines, FakeLearner, fake_run
from trainer import checkpoint, loop, session
from trainer.asynchronous import AsynchronousEngines
from trainer.checkpoint import RunProgress
from trainer.evaluation.scores import EvaluationPlan
from trainer.metrics import PhaseClock
from trainer.run import Run as Parts
from trainer.run import Sources
from trainer.session import Outputs, Schedule, Session, Training, run_session

GREEDY = Sampling(0.0, 1.0, 8)
SCHEDULE = Schedule(
    4,
    checkpoint_every=2,
    keep_checkpoints=2,
    evaluate_every=3,
    evaluation=EvaluationPlan(GREEDY, GREEDY, 0, seed=0),
    learner_restarts=0,
)


class Engines:
    """Engines, learner and start sources in one: nothing is generated; counts restarts of the learner, and evaluations
    that the sources have seen."""

    restarts = quarantined = dropped = learner_restarts = evaluations = 0

    def queues(self) -> Queues:
        return Queues(0, 0, 0.0, 1)

    def restart(self) -> None:
        self.learner_restarts += 1

    def measure_noise(self, _receiver: Any, _sequences: Any) -> None:
        assert not self.learner_restarts  # only while both sides have the weights that they have loaded

    def evaluated(self, _rollouts: Any) -> None:
        self.evaluations += 1

    def export(self, folder: Path) -> None:
        (folder / "config.json").write_text("{}")


def parts_of(engines: Engines) -> Parts:
    """What a session asks of the parts itself."""
    task = SimpleNamespace(decode=str, train=[])
    training = SimpleNamespace(save=lambda: None)
    at = lambda iteration: Progress(0, iteration, 4, 1)  # noqa: E731
    parts = SimpleNamespace(
        engines=training, pool=engines, sources=engines, learner=engines, task=task, problems={}, at=at
    )
    return cast(Parts, parts)


def report(number: int, failure: Exception | None = None, trained: tuple[Any, ...] = ()) -> Any:
    return SimpleNamespace(iteration=number, failure=failure, trained=trained)


@dataclass
class Run:
    """A run whose iteration `dies` fails in `phase`; keeps what is saved, reported and said."""

    run: RunDirectory
    dies: int = 0
    phase: Any = ""
    schedule: Schedule = SCHEDULE
    engines: Engines = field(default_factory=Engines)
    saves: list[tuple[int, float | None]] = field(default_factory=list)
    reports: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    opened: list[int] = field(default_factory=list)
    stop: Interruption = field(default_factory=Interruption)
    done: bool = False
    resumed: Path | None = None

    def iterate(self, _parts: Any, at: Progress, clock: PhaseClock, _stop: Interruption) -> Any:
        number = at.iteration
        failure = ActorError(f"died in {self.phase}") if number == self.dies else None
        if failure and self.phase not in ("broadcast", "evaluate"):
            with clock.phase(self.phase):
                raise LearnerError(str(failure)) if self.phase in ("score", "update") else failure
        lost = failure if self.phase == "broadcast" else None
        return report(number, lost)

    def evaluate(self, *_: Any) -> Any:
        raise ActorError("died in evaluate")

    def save(self, run: RunDirectory, _parts: Any, progress: RunProgress, _keep: int, success: float | None) -> Path:
        self.saves.append((progress.iteration, success))
        path = run.checkpoints / f"{progress.iteration:06d}"
        path.mkdir(exist_ok=True)
        (path / "progress.json").write_text(json.dumps({}))
        checkpoint.name_best(run, progress.iteration, success)
        write_atomically(run.checkpoints / "latest", path.name)
        return path

    def write(self, metrics: Any) -> None:
        self.reports.append(metrics.iteration)

    @contextmanager
    def open_outputs(self, last: int) -> Iterator[Outputs]:
        self.opened.append(last)
        yield Outputs(lambda _: None, self.notes.append, [cast(Any, self)])

    def start(self, patch: pytest.MonkeyPatch, iterate: Callable[..., Any] | None = None, **replaced: Any) -> None:
        """`replaced`: functions of the session module by name."""
        functions = {"iterate": iterate or self.iterate} | replaced
        after = functions.pop("_evaluate", self.evaluate)
        before = SimpleNamespace(success=0.0, sets={})
        patch.setattr(
            Training, "_evaluate", lambda training, number, clock: after(training, number, clock) if number else before
        )
        functions["describe_evaluation"] = lambda _: "success 0"
        functions["write_samples"] = lambda *_: None
        functions["collect_metrics"] = lambda _parts, found, *_, **__: SimpleNamespace(
            iteration=found.iteration, total_tokens=0
        )
        for name, function in functions.items():
            patch.setattr(session, name, function)
        patch.setattr(checkpoint, "save", self.save)
        parts = Session(parts_of(self.engines), self.schedule, self.run, self.open_outputs)
        with self.stop.handled():
            self.done = run_session(parts, self.resumed, self.stop)

    @property
    def saved(self) -> list[int]:
        return [iteration for iteration, _ in self.saves]


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
    broken = Run(RunDirectory.create(tmp_path, "r", "test"), dies, phase)
    with pytest.raises((ActorError, LearnerError), match=f"died in {phase}"):
        broken.start(monkeypatch)
    assert broken.saved == saves
    assert broken.reports == list(
        range(1, dies + (phase in ("broadcast", "evaluate")))
    )  # metrics before the checkpoint
    assert any("stopped" in note for note in broken.notes) == (saves != [])


@pytest.mark.parametrize("phase", ["generate", "broadcast", "evaluate"])
def test_an_engine_with_other_weights_costs_no_iteration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    """Found in a broadcast, or (an engine that came late) while generating, for training or for the evaluation after
    iteration 3."""
    run, wrong = RunDirectory.create(tmp_path, "r", "test"), WeightError("rollout-1 acknowledged version 3")

    def unfit(_parts: Any, at: Progress, *_: Any) -> Any:
        number = at.iteration
        if number == 4 and phase == "generate":
            raise wrong
        failure = wrong if number == 3 and phase == "broadcast" else None
        return report(number, failure)

    def evaluated(*_: Any) -> Any:
        if phase == "evaluate":
            raise wrong
        return SimpleNamespace(success=0.0, sets={})

    monkeypatch.setattr(checkpoint, "is_best", lambda *_: False)
    broken = Run(run)
    with pytest.raises(WeightError, match="rollout-1"):
        broken.start(monkeypatch, unfit, _evaluate=evaluated)
    assert broken.saved == [2, 3]


@pytest.mark.parametrize("breaks", ["submit", "finished"])
@pytest.mark.parametrize("error", [ActorError, WeightError])
def test_in_asynchronous_mode_engines_are_found_lost_before_the_update(
    breaks: str, error: type[RetrospectError]
) -> None:
    def lost(*_: Any) -> Any:
        raise error("rollout.max_restarts is used up")

    stream = SimpleNamespace(**{"submit": lambda *_: None, "finished": lambda: [], breaks: lost})
    engines = AsynchronousEngines(cast(Any, stream), GREEDY, starts=1, max_staleness=1)
    sources = Sources(StartSource(), {})
    parts = replace(fake_run(FakeEngines(lambda *_: ([1], True)), FakeLearner(), sources), engines=engines)
    with pytest.raises(error):
        loop.iterate(parts, parts.at(1), PhaseClock(), Interruption())


@pytest.mark.parametrize(
    ("phase", "begun", "saves"),
    [
        ("generate", 3, [2]),  # iteration 3 is dropped
        ("generate", 1, []),  # nothing to save yet
        ("replay", 1, [1]),  # not interruptible: iteration 1 is finished: its outcomes may be in the store
        ("update", 1, [1]),
    ],
)
def test_a_signal_ends_the_run_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: Any, begun: int, saves: list[int]
) -> None:
    def signalled(_parts: Any, at: Progress, clock: PhaseClock, stop: Interruption) -> Any:
        number = at.iteration
        with stop.interruptible() if phase == "generate" else clock.phase(phase):
            if number == begun:
                os.kill(os.getpid(), signal.SIGTERM)
        return report(number)

    run = Run(RunDirectory.create(tmp_path, "r", "test"))
    run.start(monkeypatch, signalled)
    assert not run.done
    assert run.saved == saves
    assert run.reports == [*range(1, begun + (phase != "generate"))]
    assert not run.run.policy.exists()  # that is the final policy, of a run that is complete


def test_why_a_response_has_no_verdict_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Iteration 1 has only verdicts; 2 and 3 have a response without one, for another reason each."""

    def judged(number: int, failed: bool) -> Any:
        verdict = Verdict(0.0, False, f"judge raised KeyError: {number} (mine.py, line 3)" if failed else "", failed)
        return SimpleNamespace(verdict=verdict)

    run = Run(RunDirectory.create(tmp_path, "r", "test"), schedule=replace(SCHEDULE, evaluate_every=0))
    run.start(
        monkeypatch,
        lambda _, at, *__: report(
            at.iteration, trained=(judged(at.iteration, False), judged(at.iteration, at.iteration > 1))
        ),
        _evaluate=lambda *_: SimpleNamespace(success=0.0, sets={}),
    )
    notes = [note for note in run.notes if "verdict" in note]
    assert notes == ["a response without a verdict: judge raised KeyError: 2 (mine.py, line 3); it has the reward 0"]


def test_a_signal_after_an_evaluation_waits_until_the_iteration_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes while the metrics are written: the learner is already that of iteration 3."""
    run = Run(RunDirectory.create(tmp_path, "r", "test"))

    def evaluated(_training: Training, number: int, clock: PhaseClock) -> Any:
        with clock.phase("evaluate"):
            return SimpleNamespace(success=0.0, sets={})

    def write(metrics: Any) -> None:
        run.reports.append(metrics.iteration)
        if metrics.iteration == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(run, "write", write)
    run.start(
        monkeypatch,
        lambda _, at, *__: report(at.iteration),
        _evaluate=evaluated,
    )
    assert (run.done, run.saved, run.reports) == (False, [2, 3], [1, 2, 3])


def test_a_second_signal_ends_the_process() -> None:
    code = (
        "import os, signal\nfrom core.interruption import Interruption\nstop = Interruption()\n"
        "with stop.handled():\n    stop.hold()\n"
        "    for _ in range(2):\n        os.kill(os.getpid(), signal.SIGINT)\n        print('goes on', flush=True)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (130, "goes on\n")
    assert "finishing the update" in done.stderr
    assert "stopped at once" in done.stderr


def test_an_evaluation_that_is_the_best_so_far_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Iterations 1 to 4, each evaluated, checkpoints due after 2 and 4; success 0.5, 0.2, 0.7, 0.7."""
    run = RunDirectory.create(tmp_path, "r", "test")
    successes = iter((0.5, 0.2, 0.7, 0.7))
    good = Run(run, schedule=replace(SCHEDULE, evaluate_every=1))
    good.start(monkeypatch, _evaluate=lambda *_: SimpleNamespace(success=next(successes), sets={}))
    assert good.saves == [(1, 0.5), (2, 0.2), (3, 0.7), (4, 0.7)]  # 1 and 3 are best, 2 and 4 due
    assert checkpoint.best(run) == checkpoint.Best(3, 0.7)
    assert (run.policy / "config.json").exists()


@pytest.mark.parametrize("error", [LearnerError, LostShardError])
@pytest.mark.parametrize(("saved", "where"), [(0, "begins again"), (2, "continues after iteration 2")])
def test_a_lost_learner_or_shard_is_started_again_from_the_last_checkpoint_or_the_beginning_a_few_times(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    saved: int,
    where: str,
    error: type[RetrospectError],
) -> None:
    """Every attempt reaches the iteration after `saved`."""

    def die(_parts: Any, at: Progress, *_: Any) -> Any:
        number = at.iteration
        if number > saved:
            raise error("learner-rank-0 died during update")
        return report(number)

    begun: list[Any] = []

    def begin(*given: Any) -> RunProgress:
        begun.append(given[:-1])
        return RunProgress(saved, 0)

    monkeypatch.setattr(checkpoint, "continue_from", begin)
    monkeypatch.setattr(checkpoint, "start_over", begin)
    lossy = Run(RunDirectory.create(tmp_path, "r", "test"), schedule=replace(SCHEDULE, learner_restarts=2))
    with pytest.raises(error):
        lossy.start(monkeypatch, die)
    assert lossy.engines.learner_restarts == 2
    assert begun == [(lossy.run.checkpoints / "000002",) if saved else ()] * 2
    assert lossy.opened == [0, saved, saved]
    assert capsys.readouterr().out.splitlines() == [
        f"learner-rank-0 died during update: restart {number} of the learner, the run {where}" for number in (1, 2)
    ]


def test_starts_of_a_source_that_do_not_fit_cost_no_iteration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_parts: Any, at: Progress, *_: Any) -> Any:
        if at.iteration == 3:  # before any evaluation, of which the first would be saved as the best
            raise DataError("rollout.sources mine:Hints: propose(most=3, ...) returned 4 starts")
        return report(at.iteration)

    rare = Run(RunDirectory.create(tmp_path, "r", "test"), schedule=replace(SCHEDULE, checkpoint_every=9))
    with pytest.raises(DataError, match="returned 4 starts"):
        rare.start(monkeypatch, refuse)
    assert rare.saved == [2]


def test_a_finished_run_that_goes_on_has_no_final_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be that of the earlier end; schedulers ask for it to know whether the run has finished."""
    longer = Run(RunDirectory.create(tmp_path, "r", "test"), dies=4, phase="generate")
    longer.run.policy.mkdir()
    with pytest.raises(ActorError):
        longer.start(monkeypatch, _evaluate=lambda *_: SimpleNamespace(success=0.0, sets={}))
    assert not longer.run.policy.exists()


def test_the_problems_of_a_diverged_run_are_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def diverge(*_: Any) -> Any:
        raise DivergenceError("8 optimizer steps in a row were skipped", ("gsm8k-1", "gsm8k-7"))

    run = RunDirectory.create(tmp_path, "r", "test")
    with pytest.raises(DivergenceError):
        Run(run).start(monkeypatch, diverge)
    assert run.diverged.read_text() == "gsm8k-1\ngsm8k-7\n"
