"""A signal while a session evaluates: the evaluation is dropped before anything of it is recorded, or it is whole."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.records import EMPTY, Finish, Problem, Rollout, Start, Verdict
from core.run_directory import RunDirectory
from tests.trainer.test_session import Run
from trainer import checkpoint
from trainer.checkpoint import RunProgress
from trainer.evaluation.files import lacks_evaluation
from trainer.evaluation.scores import Evaluation, score_responses
from trainer.session import Training

EVALUATE = Training._evaluate


def evaluation() -> Evaluation:
    """One problem, solved."""
    problem = Problem("e", np.array([1], np.int32), "g")
    start = Start("0.f0", "e", problem.prompt_ids, EMPTY, 1, 0)
    one, zero = np.zeros(1, np.float32), np.zeros(1, np.int32)
    solved = Rollout(start, 0, np.array([2], np.int32), one, zero, Finish.STOP, verdict=Verdict(1.0, True))
    return score_responses([problem], [solved], [], {}, 0)


def interrupted(*_: Any) -> Any:
    os.kill(os.getpid(), signal.SIGINT)
    raise AssertionError("the signal did not interrupt")


def test_a_signal_drops_an_evaluation_and_keeps_the_iteration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The iteration before it is complete: it is reported and saved."""
    run = Run(RunDirectory.create(tmp_path, "r", "test"))
    run.start(monkeypatch, _evaluate=EVALUATE, evaluate_policy=interrupted)
    assert (run.done, run.saves, run.reports) == (False, [(2, None), (3, None)], [1, 2, 3])
    assert lacks_evaluation(run.run.evaluations, 3)


def test_an_evaluation_that_is_being_written_is_finished_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(*_: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return iter(())

    run = Run(RunDirectory.create(tmp_path, "r", "test"))
    run.start(monkeypatch, _evaluate=EVALUATE, evaluate_policy=lambda *_: evaluation(), response_rows=rows)
    assert (run.done, run.saves, run.reports) == (False, [(2, None), (3, 1.0)], [1, 2, 3])
    assert not lacks_evaluation(run.run.evaluations, 3)
    assert checkpoint.best(run.run) == checkpoint.Best(3, 1.0)
    assert run.engines.evaluations == 1


def test_a_run_without_its_last_evaluation_is_not_finished_and_a_resume_makes_it_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([evaluation, interrupted])  # after iterations 3 and 4
    run, rows = Run(RunDirectory.create(tmp_path, "r", "test")), lambda *_: iter(())
    run.start(monkeypatch, _evaluate=EVALUATE, evaluate_policy=lambda *_: next(answers)(), response_rows=rows)
    assert (run.done, run.saved, run.reports) == (False, [2, 3, 4], [1, 2, 3, 4])
    assert not run.run.policy.exists()
    checkpoint.name_best(run.run, 3, None)
    monkeypatch.setattr(checkpoint, "continue_from", lambda *_: RunProgress(4, 0))
    again = Run(run.run, resumed=run.run.checkpoints / "000004")
    again.start(monkeypatch, _evaluate=EVALUATE, evaluate_policy=lambda *_: evaluation(), response_rows=rows)
    assert (again.done, again.saved, again.reports) == (True, [4], [])
    assert again.engines.evaluations == 1  # the sources know it now
    assert checkpoint.best(run.run) == checkpoint.Best(4, 1.0)
    assert run.run.policy.exists()
