"""Judging without a process of its own gives the verdicts of the judge."""

from pathlib import Path

import pytest

from core.config import TaskConfig
from core.errors import ConfigError
from tasks.judge import JudgePool
from tasks.judge_local import LocalJudge
from tasks.task import start_judges

ITEMS = [("3", "so it is 3\n#### 3"), ("3", "#### 4"), ("3", "nothing")]


def test_the_verdicts_are_those_of_a_judging_process() -> None:
    verifier = "tasks.mathematics.answers:verify_gsm8k"
    pool = JudgePool(verifier, workers=1, limit=60.0, memory_gib=0.0)
    local = start_judges(TaskConfig(name="gsm8k", judge_workers=0))
    assert isinstance(local, LocalJudge)
    found = local.judge(ITEMS)
    assert found == pool.judge(ITEMS)
    assert [one.correct for one in found] == [True, False, False]
    pool.close()


def test_a_reward_beside_the_run_is_found_and_may_raise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside.py").write_text("def reward(reference, response):\n    return 1 / len(response)\n")
    monkeypatch.chdir(tmp_path)
    verdicts = LocalJudge("beside:reward").judge([("", "ab"), ("", "")])
    assert verdicts[0].reward == 0.5
    assert verdicts[1].reward == 0.0
    assert "ZeroDivisionError" in verdicts[1].detail
    with pytest.raises(ConfigError, match="nowhere:reward"):
        LocalJudge("nowhere:reward")
