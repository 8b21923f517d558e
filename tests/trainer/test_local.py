"""What a run in one process changes of its configuration. The run itself: tests/test_end_to_end.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from core.config import Config
from core.load import override
from trainer.local import SINGLE, single_process


def test_one_process_has_one_engine_one_rank_and_its_own_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    many = ["--rollout.actors=3", "--learner.ranks=2", "--task.judge_workers=4", "--rollout.threads=3"]
    config = override(Config(), [*many, "--cluster.device=cpu"])
    settled = single_process(config)
    assert (settled.rollout.actors, settled.learner.ranks, settled.task.judge_workers) == (1, 1, 0)
    assert os.environ["OMP_NUM_THREADS"] == "3"  # the larger of rollout.threads and learner.threads
    assert os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    for name in set(Config.model_fields) - set(SINGLE):
        assert getattr(settled, name) == getattr(config, name)


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_openmp_is_told_how_its_threads_wait_before_torch_brings_it(command: str, tmp_path: Path) -> None:
    """What OpenMP itself says when it comes up; a setting of the user's own is kept."""
    free = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    options = [
        "--task.name",
        "arithmetic",
        "--run.root",
        str(tmp_path),
        "--algorithm.estimator",
        "rloo",
        "--rollout.samples",
        "1",
    ]
    said = subprocess.run(
        [sys.executable, "launch.py", command, "--local", *options],
        cwd=Path(__file__).parents[2],
        env=free | {"OMP_DISPLAY_ENV": "verbose", "GOMP_SPINCOUNT": "77"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 2, said.stderr
    assert "OMP_WAIT_POLICY = 'PASSIVE'" in said.stderr
    assert "GOMP_SPINCOUNT = '77'" in said.stderr
