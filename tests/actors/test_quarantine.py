"""Engines that raise, and engines that have the wrong weights: plain transformers, which start quickly."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import ray

from actors.handle import EngineRecipe
from actors.pool import RolloutPool
from core.errors import ActorError
from core.records import Start
from tests.actors import models
from tests.actors.conftest import CONFIG
from tests.actors.test_pool import SAMPLING, Get, pump_until


@contextmanager
def one_engine(model: Path, quarantined: list[tuple[str, str]]) -> Iterator[RolloutPool]:
    """A pool of one engine that may be restarted once."""
    config = CONFIG.model_copy(update={"engine": "hf", "actors": 1, "max_restarts": 1})
    recipe = EngineRecipe(str(model), config, "float32", "cpu", seed=0, cpus=0.5)
    pool = RolloutPool(recipe, lambda start, reason: quarantined.append((start.id, reason)))
    with closing(pool):
        yield pool


def poison(number: int) -> Start:
    """A start with a token that the embedding has no row for."""
    ids = models.start(number).prompt_ids.copy()
    ids[3] = 10 * models.VOCABULARY
    return replace(models.start(number), prompt_ids=ids)


def test_a_quarantined_start_costs_one_restart_of_the_budget(ray_cluster: None, tiny_model: Get) -> None:
    quarantined: list[tuple[str, str]] = []
    with one_engine(tiny_model(True), quarantined) as pool:
        (found,) = pool.generate([poison(1), models.start(2)], SAMPLING)
        assert (found.start.id, pool.restarts, pool.quarantined) == (models.start(2).id, 2, 1)
        again = replace(poison(1), id="again")
        assert pool.generate([again], SAMPLING) == []
        assert (pool.restarts, pool.quarantined) == (2, 2)  # counted and told, but not tried
        with pytest.raises(
            ActorError, match=r"^rollout-0: IndexError: .*max_restarts = 1 within .* is used up"
        ) as raised:
            pool.generate([poison(number) for number in range(3, 9)], SAMPLING)
        assert "\n" not in str(raised.value)
        assert pool.restarts == 2
    (name, reason), said_again = quarantined
    assert (name, reason.split(":")[0]) == (poison(1).id, "IndexError")
    assert said_again == ("again", "engines have raised on its context before")


def receive_badly(_: object) -> None:
    """In the actor's process: as if the weights had been damaged on their way."""
    import actors.hf_engine

    vars(actors.hf_engine)["digest"] = lambda *_: "0" * 32


def test_an_engine_that_comes_late_with_other_weights_gets_no_work_and_is_replaced(
    ray_cluster: None, tiny_model: Get, caplog: pytest.LogCaptureFixture
) -> None:
    weights = models.weights(models.load(tiny_model(True)), 7)
    with one_engine(tiny_model(True), []) as pool:
        pool.load_weights(ray.put(weights))
        late = pool._join()
        pump_until(pool, lambda: late.process is not None)
        wrong = late.process
        ray.get(late._actor.__ray_call__.remote(receive_badly))  # before it is sent the weights
        pump_until(pool, lambda: pool.restarts == 1)
        assert f"rollout-1: ActorError: it acknowledged weights (7, '{'0' * 32}'), the others (7, " in caplog.text
        pump_until(pool, lambda: late.acknowledged == (7, weights.manifest.digest))
        assert late.process != wrong
        assert pool.restarts == 1
