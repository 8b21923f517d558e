"""Settings for a process that imports large libraries: their environment, and less garbage collection.

Called at the start of the process, before torch is imported. Invariant: a variable that the user has set keeps its value.
"""

import atexit
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "3000"}
"""How OpenMP's threads wait for each other; read when torch is imported. Engines, ranks and the system share the cores. Long spinning
is 40x slower on a busy machine (128 against 5,055 tokens/s). Sleeping at once makes two threads slower than one (an update of 3.97 s
against 2.68 s). With a short spin the update takes 2.26 s, and 5.5 s next to two busy processes."""


ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",  # Ray 2.60 demands a token from every client of a cluster that has one
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # not among our lines on stdout
    "WANDB_ERROR_REPORTING": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    **WAITING,
    "TOKENIZERS_PARALLELISM": "false",
    "RAY_prestart_worker_first_driver": "0",  # no idle workers: every worker of ours needs its own environment
    "RAY_ENABLE_AUTO_CONNECT": "0",  # a Ray call before `connect` must fail, not start another cluster
}
"""What Ray, vLLM, torch, tokenizers, W&B and MLflow read when they are imported."""


def set_environment() -> None:
    """Set `ENVIRONMENT` where the user has not. Call it before Ray or torch is imported."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)


atexit.register(gc.unfreeze)  # else Triton reports a leak when the process ends


def openmp_waiting() -> dict[str, str]:
    """`WAITING`, or the user's own values."""
    return {name: os.environ.get(name, value) for name, value in WAITING.items()}


@contextmanager
def without_gc() -> Iterator[None]:
    """Collect no garbage inside the block. Later collections skip all objects that exist at its end (modules, classes, data).

    torch, DeepSpeed and vLLM make a million lasting objects. To visit them takes a tenth to a fourth of the time, and half a
    second in every `gc.collect()` of a library.
    """
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if running:
            gc.enable()
