"""Waiting for a pipe. Called by `tasks/judge.py` and `tasks/code/sandbox.py`."""

import select
import time


def readable(descriptor: int, deadline: float) -> bool:
    """Whether it has data, or has ended, by then (`time.monotonic`)."""
    return _ready(descriptor, select.POLLIN, deadline)


def writable(descriptor: int, deadline: float) -> bool:
    """Whether it takes data, or nobody reads it any more, by then (`time.monotonic`)."""
    return _ready(descriptor, select.POLLOUT, deadline)


def _ready(descriptor: int, event: int, deadline: float) -> bool:
    poller = select.poll()  # not select(): that refuses descriptors from 1024 on
    poller.register(descriptor, event)
    return bool(poller.poll(1000 * max(0.0, deadline - time.monotonic())))
