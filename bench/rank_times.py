"""Where a rank of the learner spends an update: forward, backward, optimizer step, and the rest. Called by `bench.loop`."""

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import ray

FORWARD, BACKWARD, STEP, REST = "forward", "backward", "optimizer step and exchange of gradients", "rest of the ranks"
PARTS = (FORWARD, BACKWARD, STEP, REST)


def watch(rank: Any) -> None:
    """From now on measure what this Ray actor does in its updates."""
    ray.get(rank.__ray_call__.remote(_watch))


def seconds_since_last(rank: Any) -> dict[str, float]:
    """Seconds of the updates since the last call, by part."""
    found: dict[str, float] = ray.get(rank.__ray_call__.remote(_read))
    return found


def _watch(worker: Any) -> None:
    """Wrap the engines of the rank's process; what one part calls within another counts only for the inner one."""
    import torch

    from learner.distributed.engine import TrainEngine

    worker.bench_seconds = seconds = defaultdict[str, float](float)
    inner: list[float] = []

    def _timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def _call(*args: Any, **options: Any) -> Any:
            if not torch.is_grad_enabled():  # scoring
                return function(*args, **options)
            begun = time.perf_counter()
            inner.append(0.0)
            try:
                return function(*args, **options)
            finally:
                whole = time.perf_counter() - begun
                seconds[name] += whole - inner.pop()
                if inner:
                    inner[-1] += whole

        return _call

    for name, method in ((FORWARD, "__call__"), (BACKWARD, "backward"), (STEP, "step")):
        setattr(TrainEngine, method, _timed(name, getattr(TrainEngine, method)))
    models = worker._actor_critic
    models.step = _timed(REST, models.step)


def _read(worker: Any) -> dict[str, float]:
    found = {part: worker.bench_seconds[part] for part in PARTS}
    worker.bench_seconds.clear()
    return found
