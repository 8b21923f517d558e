"""A run in this process, without Ray (`launch.py train --local`): a breakpoint works anywhere. Invariants: the numbers
are those of one engine and one rank on Ray (bit for bit on CPU); an error ends the run unchanged."""

import os
from typing import Any

from core.config import Config
from core.plan import choose_device
from core.startup import ENVIRONMENT, LOOPBACK, set_environment

SINGLE: dict[str, dict[str, Any]] = {
    "rollout": {"actors": 1, "tensor_parallel": 1, "max_staleness": 0},
    "learner": {"ranks": 1, "transport": "object_store"},
    "task": {"judge_workers": 0},
    "cluster": {"address": "local"},
}
"""Settings that one process requires, by section."""


def single_process(config: Config) -> Config:
    """The configuration changed so that one process can run it. Also sets environment variables of this process. Must
    be called before torch's compiler and vLLM are imported, because they read these variables on import."""
    from actors.vllm_setup import environment

    device = choose_device(config.cluster, _torch_sees_gpu)
    os.environ.update(environment(device, config.rollout.threads))
    from learner.distributed.ranks import rank_environment

    threads = max(config.rollout.threads, config.learner.threads)  # the rank sets the number for the whole process
    os.environ.update(rank_environment(device, threads))
    set_environment(ENVIRONMENT | LOOPBACK)
    fields = SINGLE | {"cluster": {**SINGLE["cluster"], "device": device}}
    return config.model_copy(
        update={name: getattr(config, name).model_copy(update=values) for name, values in fields.items()}
    )


def _torch_sees_gpu() -> bool:
    import torch

    return torch.cuda.is_available()
