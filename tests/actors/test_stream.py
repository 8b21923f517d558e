"""The stream's waits, over a pool that is played: which answer comes when is what is tested."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest

from actors import stream
from actors.ledger import Queues
from actors.pool import RolloutPool
from actors.stream import streaming
from core.errors import ActorError
from core.sampling import Sampling
from tests.actors import models

SAMPLING = Sampling(1.0, 1.0, 8)


def played() -> RolloutPool:
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
    pool.stop = lambda: setattr(pool, "stopping", True)
    pool.resume = lambda: setattr(pool, "stopping", False)
    return cast(RolloutPool, pool)


def test_an_answer_that_comes_as_the_wait_ends_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(Future[Any]):
        """Done just after the first wait has timed out."""

        waited = False

        def result(self, timeout: float | None = None) -> Any:
            if self.waited:
                return super().result(timeout)
            self.waited = True
            super().result(400.0)
            raise TimeoutError

    monkeypatch.setattr(stream, "Future", Late)
    with streaming(played()) as opened:
        opened.submit([models.start(1)], SAMPLING)


def test_a_timeout_that_a_call_raises_itself_is_raised() -> None:
    def slow(*_: Any) -> None:
        raise TimeoutError("its own")

    pool = played()
    pool.submit = slow  # type: ignore[method-assign, assignment]
    with streaming(pool) as opened, pytest.raises(TimeoutError, match="its own"):
        opened.submit([models.start(1)], SAMPLING)


def test_starts_that_no_engine_has_are_not_waited_for() -> None:
    with streaming(played()) as opened:
        opened.submit([models.start(1), models.start(2)], SAMPLING)
        with pytest.raises(ActorError, match=r"^2 starts are owed, but no engine has them"):
            opened.finished()
