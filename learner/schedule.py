"""The learning rate of an optimizer step, as a pure function of its number: a checkpoint needs no scheduler state."""

import math
from typing import Literal

Schedule = Literal["constant", "linear", "cosine"]


def learning_rate(peak: float, step: int, warmup: int, total: int, schedule: Schedule) -> float:
    """Rate of optimizer step `step` (from 0) of `total`: linear warm-up over `warmup` steps to `peak`, then the
    schedule. `linear` and `cosine` fall towards 0 at the end of the run; a run that continues beyond `total` keeps the
    last rate.

    >>> [learning_rate(1.0, step, 4, 8, "constant") for step in range(6)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    >>> [learning_rate(1.0, step, 0, 4, "linear") for step in range(6)]
    [1.0, 0.75, 0.5, 0.25, 0.25, 0.25]
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    if schedule == "constant":
        return peak
    length = max(1, total - warmup)
    done = min(step - warmup, length - 1) / length
    return peak * (1.0 - done) if schedule == "linear" else peak * 0.5 * (1.0 + math.cos(math.pi * done))
