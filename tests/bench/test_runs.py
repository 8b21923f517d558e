"""Runs of an experiment: which are left, who performs them, and what a run measures in an iteration."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.runs import Orders, Run, append_line, commit, pending, perform_all
from bench.training import State, learnability, outcomes
from core.run_directory import RunDirectory
from tests.replay.test_cutting import ROOT as FRESH
from tests.replay.test_cutting import STATE, ids, scored
from tests.trainer.examples import iteration

NONE = np.zeros(0, np.float32)


def test_a_run_with_a_result_is_not_repeated(tmp_path: Path) -> None:
    runs = [Run("rule medium", arm, seed) for seed in (1, 2) for arm in ("ppo", "both")]
    append_line(tmp_path / "x.jsonl", {"run": asdict(runs[1]), "loss": math.nan})
    assert pending(runs, tmp_path / "x.jsonl") == [runs[0], *runs[2:]]
    assert len({run.name for run in (*runs, Run("rule medium", "ppo", 1, 1e-5))}) == 5


def test_a_run_that_another_command_performs_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    performed = list[dict[str, Any]]()
    monkeypatch.setattr("bench.runs.run_child", lambda _, order, *__: performed.append(order["run"]))
    runs = [Run("sums", "both", 1), Run("sums", "replay", 1)]
    taken, table = RunDirectory(tmp_path / f"{runs[0].name}.order"), tmp_path / "sums.jsonl"
    taken.path.mkdir()
    with taken.lock():
        perform_all(runs, table, Orders("bench.real.run", tmp_path))
    assert performed == [asdict(runs[1])]
    assert f"{runs[1].name}: FAILED" in capsys.readouterr().out  # no result appeared
    perform_all(runs, table, Orders("bench.real.run", tmp_path))
    assert performed[1] == asdict(runs[0])


def test_a_copy_without_a_repository_says_its_commit_by_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.runs.ROOT", tmp_path)
    monkeypatch.setenv("GIT_COMMIT", "abc+")
    assert commit() == "abc+"
    (tmp_path / ".git").mkdir()  # a repository, though without a commit
    assert commit() == ""


def test_outcomes_are_counted_by_start() -> None:
    each = ((FRESH, (True, False)), (STATE, (False, False)))
    rollouts = [scored(start, ids(8), right) for start, both in each for right in both]
    assert (outcomes(rollouts, replayed=True), outcomes(rollouts, replayed=False)) == ([(2, 0)], [(2, 1)])


def test_learnability_is_unbiased() -> None:
    """Over all outcomes of 3 continuations with p = 0.4 its mean is 4 x 0.4 x 0.6 = 0.96."""
    chances = {0: 0.6**3, 1: 3 * 0.4 * 0.36, 2: 3 * 0.16 * 0.6, 3: 0.4**3}
    assert sum(p * learnability([(3, c)]) for c, p in chances.items()) == pytest.approx(0.96)
    assert learnability([(2, 1), (1, 1)]) == 2.0  # 4 x 2/1 x 1/4; one continuation says nothing
    assert math.isnan(learnability([(1, 0)]))


def test_what_a_run_notes_of_its_iterations() -> None:
    state, metrics = State(), iteration(1)
    empty: Any = type("Result", (), {"trained": (), "imitated": ()})()
    state.add(empty, metrics, 1)
    state.add(empty, metrics, 1)
    assert state.generated == metrics.total_tokens
    found = state.result(100)
    assert found["iterations"]["generated_tokens"] == [metrics.generated_tokens] * 2
    assert f"iteration 2: {metrics.total_tokens} tokens" in state.line()
