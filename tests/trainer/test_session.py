"""What a session saves when something dies: stand-ins for the parts, real files for the checkpoints."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from core.errors import ActorError
from core.sampling import Sampling
from tests.trainer.examples import iteration as example
from trainer import checkpoint, session
from trainer.checkpoint import Progress
from trainer.evaluate import EvaluationPlan
from trainer.loop import Parts, Settings
from trainer.metrics import PhaseClock
from trainer.rundir import RunDirectory, write_atomically
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
        if number == self.dies and self.phase != "evaluate":
            with clock.phase(self.phase):
                raise ActorError(f"died in {self.phase}")
        return example(number)

    def held_out(self, *_: Any) -> Any:
        raise ActorError("died in evaluate")

    def save(self, run: RunDirectory, _parts: Any, progress: Progress, _keep: int) -> Path:
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
        session.train(cast(Parts, None), cast(Settings, None), SCHEDULE, outputs, Progress(0, {}, 0))


@pytest.mark.parametrize(
    ("dies", "phase", "saves"),
    [
        (1, "generate", []),  # nothing to save yet
        (2, "generate", [1]),
        (3, "generate", [2]),  # the checkpoint that was due after iteration 2, not a second one
        (2, "score", []),  # the learner died itself
        (2, "update", []),
        (2, "broadcast", []),
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
    assert broken.reports == list(range(1, dies + (phase == "evaluate")))  # metrics before the checkpoint
    assert any("stopped" in note for note in broken.console.notes) == (saves != [])
