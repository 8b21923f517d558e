"""The stream's waits, over a simulated pool."""

from contextlib import closing
from types import SimpleNamespace
from typing import Any, cast

import pytest

from actors.ledger import Queues
from actors.pool import RolloutPool
from actors.stream import RolloutStream
from core.errors import ActorError
from core.records import Sampling
from tests.actors import models

SAMPLING = Sampling(1.0, 1.0, 8)


def simulated() -> RolloutPool:
    """A pool that has nothing to do and forgets what is submitted."""

    def check() -> None:
        if pool.stopping:
            raise ActorError("closing")

    pool = SimpleNamespace(
        stopping=False,
        idle=True,
        pump=check,
        check=lambda: None,
        collect=lambda: [],
        submit=lambda *_: None,
        abandon=lambda: None,
        queues=lambda: Queues(0, 0, 0.0, 1),
    )
    return cast(RolloutPool, pool)


def test_a_timeout_that_a_call_raises_itself_is_raised() -> None:
    def slow(*_: Any) -> None:
        raise TimeoutError("its own")

    pool = simulated()
    pool.submit = slow  # type: ignore[method-assign, assignment]
    with closing(RolloutStream(pool)) as opened, pytest.raises(TimeoutError, match="its own"):
        opened.submit([models.start(1)], SAMPLING)


def test_starts_that_no_engine_has_are_not_waited_for() -> None:
    with closing(RolloutStream(simulated())) as opened:
        opened.submit([models.start(1), models.start(2)], SAMPLING)
        with pytest.raises(ActorError, match="starts"):
            opened.finished()
