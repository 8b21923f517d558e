"""What a run in one process changes of its configuration. The run itself: tests/test_end_to_end.py."""

import os

import pytest

from core.config import Config
from core.load import override
from trainer.local import SINGLE, settle


def test_one_process_has_one_engine_one_rank_and_its_own_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    many = ["--rollout.actors=3", "--learner.ranks=2", "--task.judge_workers=4", "--rollout.threads=3"]
    config = override(Config(), [*many, "--cluster.device=cpu"])
    settled = settle(config)
    assert (settled.rollout.actors, settled.learner.ranks, settled.task.judge_workers) == (1, 1, 0)
    assert os.environ["OMP_NUM_THREADS"] == "3"  # the larger of rollout.threads and learner.threads
    assert os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    for name in set(Config.model_fields) - set(SINGLE):
        assert getattr(settled, name) == getattr(config, name)
