"""Lost places and lost weights: needed, elastic and other actors compete for CPUs. Plain transformers, which start quickly."""

import logging
import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
import ray

from actors.handle import START_SECONDS, EngineRecipe
from actors.pool import RolloutPool
from actors.stream import RolloutStream
from core.errors import ActorError
from core.weights import Weights
from tests.actors import models
from tests.actors.conftest import CONFIG
from tests.actors.test_pool import SAMPLING, Get, collect, keys, many, pump_until, tokens
from tests.processes import LONG

CPUS, FILLED = 1.3, 0.3
"""Of the 4 of the tests' cluster, 0 to 1 are taken by engines of other modules: there is room for one actor of FILLED and two
of CPUS, and not for three."""


class Elsewhere:
    """What a learner rank is to the engines: a process that uses CPUs and publishes weights."""

    def pid(self) -> int:
        return os.getpid()

    def publish(self, weights: Weights) -> Weights:
        return replace(weights, buckets=tuple(ray.put(bucket) for bucket in weights.buckets))


def end(rank: Any, published: Weights) -> None:
    """Kill it, and wait until nobody can read what it has published."""
    ray.kill(rank)
    deadline = time.monotonic() + LONG
    while readable(published):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def readable(published: Weights) -> bool:
    try:
        ray.get(list(published.buckets), timeout=LONG)
    except ray.exceptions.ObjectLostError:
        return False
    return True


def actor(cpus: float) -> Any:
    return ray.remote(Elsewhere).options(num_cpus=cpus).remote()


@pytest.fixture(scope="module")
def pool(ray_cluster: None, tiny_model: Get) -> Iterator[RolloutPool]:
    """One engine, and one more that may join."""
    config = CONFIG.model_copy(update={"engine": "hf", "actors": 1, "max_actors": 2, "deadline": 600.0})
    with closing(RolloutPool(EngineRecipe(str(tiny_model(True)), config, "float32", "cpu", seed=0, cpus=CPUS))) as pool:
        yield pool


@pytest.fixture(scope="module")
def weights(tiny_model: Get) -> Weights:
    return models.weights(models.load(tiny_model(True)), 1)


def version(weights: Weights, number: int) -> Weights:
    return replace(weights, manifest=replace(weights.manifest, version=number))


def versions(pool: RolloutPool) -> set[int]:
    return {number for one in pool.generate(many(4), SAMPLING) for number in one.versions.tolist()}


def test_needed_actors_go_before_elastic_ones(pool: RolloutPool, weights: Weights) -> None:
    rank, filler = actor(CPUS), actor(FILLED)
    ray.get([rank.pid.remote(), filler.pid.remote()], timeout=LONG)
    pool.load_weights(ray.put(version(weights, 1)))  # the first rounds ask for the elastic one, which finds no room
    expected = pool.generate(many(8), SAMPLING)
    first, other = pool._actors
    assert (first.elastic, other.elastic, other.process) == (False, True, None)

    os.kill(pool.pids()[0], signal.SIGKILL)  # the other, which waits longer, may get its place
    found = pool.generate(many(8), SAMPLING)
    assert (keys(found), tokens(found)) == (keys(expected), tokens(expected))
    (serving,) = [one for one in pool._actors if one.serving]
    (waiting,) = [one for one in pool._actors if not one.serving]
    assert (serving.elastic, waiting.elastic, waiting.process) == (False, True, None)
    waiting.requests[0].begun -= 10 * START_SECONDS
    pool.pump()
    assert pool.restarts == 1  # it may wait for room as long as it takes

    ray.kill(rank)
    pump_until(pool, lambda: waiting.process is not None)  # the elastic one has taken its place
    pool.make_room()
    successor = actor(CPUS)
    ray.get(successor.pid.remote(), timeout=LONG)
    assert pool._actors == [serving]
    assert versions(pool) == {1}
    assert pool._actors == [serving]  # none joins before the learner is there again
    pool.load_weights(ray.put(version(weights, 2)))
    assert len(pool._actors) == 2
    assert versions(pool) == {2}
    assert pool.restarts == 1


def test_weights_lost_with_the_process_that_sent_them_are_no_fault_of_the_engines(
    pool: RolloutPool, weights: Weights, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    pool.make_room()
    (engine,) = pool._actors
    rank = actor(0.0)
    published = [ray.get(rank.publish.remote(version(weights, number)), timeout=LONG) for number in (3, 4)]
    pool.load_weights(published[0])
    end(rank, published[1])
    restarts, process = pool.restarts, engine.process
    with pytest.raises(
        ActorError, match="the weights of the rollout actors were lost: the process that published them has died"
    ):
        pool.load_weights(published[1])
    assert "OwnerDiedError" in caplog.text
    assert (pool.restarts, engine.process, engine.serving) == (restarts, process, True)
    with pytest.raises(ActorError, match="the weights of the rollout actors were lost"):
        pool.generate(many(4), SAMPLING)
    pool.load_weights(ray.put(version(weights, 5)))
    assert versions(pool) == {5}


def test_a_lost_answer_is_the_engines_loss_even_while_new_weights_wait_behind_it(
    pool: RolloutPool, weights: Weights
) -> None:
    """Its node is gone, and its answer with it: Ray's error is the same as for lost weights."""
    pool.make_room()
    (engine,) = pool._actors
    pool.load_weights(ray.put(version(weights, 6)))
    starts, restarts = many(8), pool.restarts
    expected = pool.generate(starts, SAMPLING)
    pool.submit(starts, SAMPLING)
    pool._assign(engine, serving=1)
    engine.ask(lambda actor: actor.process.remote(), LONG, lambda _: None, "load")
    pool._replace(engine, ray.exceptions.ObjectLostError("0" * 56, None, ""), engine.requests[0])
    assert (pool.restarts, engine.serving) == (restarts + 1, False)
    found = collect(pool, len(starts))
    assert tokens([one for start in starts for one in found[start.id]]) == tokens(expected)
    assert {number for one in found.values() for each in one for number in each.versions.tolist()} == {6}


def test_an_engine_that_comes_back_to_lost_weights_waits_for_others(pool: RolloutPool, weights: Weights) -> None:
    """In asynchronous mode, where the thread must outlive it."""
    pool.make_room()
    rank = actor(0.0)
    published = ray.get(rank.publish.remote(version(weights, 7)), timeout=LONG)
    pool.load_weights(published)
    pool.make_room()
    (engine,) = pool._actors
    restarts, killed = pool.restarts, engine.process
    assert killed is not None
    with closing(RolloutStream(pool)) as stream:
        end(rank, published)
        os.kill(killed.pid, signal.SIGKILL)
        stream.submit(many(8), SAMPLING)
        with pytest.raises(ActorError, match="the weights of the rollout actors were lost"):
            stream.finished()
        assert (pool.restarts, engine.serving) == (restarts + 1, True)
        assert engine.process != killed
        stream.make_room()
        stream.abandon()
        stream.load_weights(ray.put(version(weights, 8)))
        found = stream.generate(many(8), SAMPLING)
    assert {number for one in found for number in one.versions.tolist()} == {8}
