"""Actors beyond `rollout.actors`, and one that is slow: plain transformers, which start quickly."""

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
import ray

from actors.handle import EngineRecipe
from actors.pool import JOIN_TRIES, RolloutPool
from tests.actors import models
from tests.actors.conftest import CONFIG
from tests.actors.test_pool import SAMPLING, Get, collect, keys, many, pump_until, tokens
from tests.processes import ends


@pytest.fixture(scope="module")
def pool(ray_cluster: None, tiny_model: Get) -> Iterator[RolloutPool]:
    """One engine, and one more that may join."""
    config = CONFIG.model_copy(update={"engine": "hf", "actors": 1, "max_actors": 2, "deadline": 600.0})
    with closing(RolloutPool(EngineRecipe(str(tiny_model(True)), config, "float32", "cpu", seed=0, cpus=0.5))) as pool:
        yield pool


def test_as_many_join_as_may_and_leave_to_make_room(pool: RolloutPool, tiny_model: Get) -> None:
    assert [actor.name for actor in pool._actors] == ["rollout-0"]  # the run begins with the needed ones
    pool.load_weights(ray.put(models.weights(models.load(tiny_model(True)), 4)))  # the first rounds ask for the other
    starts = many(8)
    expected = pool.generate(starts, SAMPLING)
    joined = pool._actors[1]
    assert (joined.name, joined.elastic) == ("rollout-1", True)
    pump_until(pool, lambda: joined.acknowledged is not None)  # as soon as it serves, before any work
    assert joined.acknowledged == pool._actors[0].acknowledged
    found = pool.generate(starts, SAMPLING)
    assert {version for one in found for version in one.versions.tolist()} == {4}
    assert (keys(found), tokens(found)) == (keys(expected), tokens(expected))
    for _ in range(3):
        pool.pump()
    assert len(pool.pids()) == 2  # and no third

    process = pool.pids()[1]
    pool.submit(starts, SAMPLING)
    pool.pump()  # both have work
    pool.make_room()
    assert ends(process)
    found = [one for _, trajectories in sorted(collect(pool, len(starts)).items()) for one in trajectories]
    assert sorted(keys(found)) == sorted(keys(expected))
    for _ in range(3):
        pool.pump()
    assert [actor.name for actor in pool._actors] == ["rollout-0"]  # none comes back before the next weights
    assert (pool.restarts, pool.quarantined) == (0, 0)


def test_one_that_cannot_load_the_model_is_given_up(pool: RolloutPool, caplog: pytest.LogCaptureFixture) -> None:
    """As on a node that does not have the files."""
    caplog.set_level(logging.WARNING)
    good = pool._recipe
    pool._recipe = replace(good, model_path="/nowhere")
    name = pool._join().name
    pool._recipe = good
    pump_until(pool, lambda: len(pool._actors) == 1)
    assert f"{name} cannot join and is given up: ModelError: model.path = /nowhere" in caplog.text
    expected = tokens(pool.generate(many(8), SAMPLING))
    assert len(expected) == 32
    assert len(pool._actors) == 1  # it is not asked for again
    assert (pool.restarts, pool._budget.spent) == (0, 0)


@dataclass(frozen=True, slots=True)
class Deadly(EngineRecipe):
    """Loading ends the process, as where there is too little memory for the model."""

    def start(self, actor: Any) -> Any:
        return actor.__ray_call__.remote(lambda _: os._exit(1))


def test_one_whose_process_dies_while_loading_is_given_up_and_costs_no_restart(
    pool: RolloutPool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    restarts, good = pool.restarts, pool._recipe
    pool._recipe = Deadly(**{field.name: getattr(good, field.name) for field in fields(good)})
    name = pool._join().name
    pool._recipe = good
    pump_until(pool, lambda: len(pool._actors) == 1)
    assert f"{name} cannot join and is given up: its process died" in caplog.text
    assert (pool.restarts - restarts, pool._budget.spent) == (JOIN_TRIES - 1, 0)
    assert len(pool.generate(many(8), SAMPLING)) == 32
    assert len(pool._actors) == 1


def test_a_slow_engine_is_named_and_left_alone(
    pool: RolloutPool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    starts, restarts = many(8), pool.restarts
    expected = pool.generate(starts, SAMPLING)
    pump_until(pool, lambda: pool.idle)
    monkeypatch.setattr("actors.handle.SLOW_SHARE", 0.005)  # 3 s of 600
    caplog.set_level(logging.WARNING)
    pool.submit(starts, SAMPLING)
    (process,) = pool.pids()
    os.kill(process, signal.SIGSTOP)
    try:
        pump_until(pool, lambda: "rollout-0 is slow: no answer within 3 s" in caplog.text)
        for _ in range(3):
            pool.pump()
        unreachable = ray.exceptions.ActorUnavailableError("connection lost", None)
        assert pool._actors[0].explain(unreachable).startswith("it cannot be reached (")  # its process is there
    finally:
        os.kill(process, signal.SIGCONT)
    assert caplog.text.count("is slow") == 1  # once per request
    found = collect(pool, len(starts))
    assert tokens([one for start in starts for one in found[start.id]]) == tokens(expected)
    assert (pool.pids(), pool.restarts) == ([process], restarts)
