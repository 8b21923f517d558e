"""Places and weights that are lost: engines, guests and other actors compete for CPUs; plain transformers, quickly there."""

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

from actors.pool import RolloutPool
from actors.slot import Duty
from actors.stream import streaming
from core.errors import ActorError
from core.weights import Weights
from tests.actors import models
from tests.actors.conftest import CONFIG
from tests.actors.test_pool import SAMPLING, Get, collect, keys, many, pump_until, tokens
from tests.processes import LONG

CPUS, FILLED = 1.3, 0.3
"""Of the 4 of the tests' cluster, 0 to 1 are taken by engines of other modules: there is room for two actors of CPUS beside one
of FILLED, and not for three."""


class Elsewhere:
    """What a learner rank is to the engines: a process that has a place, and publishes weights."""

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
    with closing(RolloutPool(str(tiny_model(True)), config, dtype="float32", device="cpu", seed=0, cpus=CPUS)) as pool:
        yield pool


@pytest.fixture(scope="module")
def weights(tiny_model: Get) -> Weights:
    return models.weights(models.load(tiny_model(True)), 1)


def version(weights: Weights, number: int) -> Weights:
    return replace(weights, manifest=replace(weights.manifest, version=number))


def versions(pool: RolloutPool) -> set[int]:
    return {number for one in pool.generate(many(4), SAMPLING) for number in one.versions.tolist()}


def test_what_must_be_there_goes_before_guests(pool: RolloutPool, weights: Weights) -> None:
    rank, filler = actor(CPUS), actor(FILLED)
    ray.get([rank.pid.remote(), filler.pid.remote()], timeout=LONG)
    pool.load_weights(ray.put(version(weights, 1)))  # the first rounds ask for the guest, which finds no room
    expected = pool.generate(many(8), SAMPLING)
    first, guest = pool._slots
    assert (first.guest, guest.guest, guest.process) == (False, True, None)

    os.kill(pool.pids()[0], signal.SIGKILL)  # the guest, which waits longer, may get the place of the engine
    found = pool.generate(many(8), SAMPLING)
    assert (keys(found), tokens(found)) == (keys(expected), tokens(expected))
    (serving,) = [slot for slot in pool._slots if slot.serving]
    (waiting,) = [slot for slot in pool._slots if not slot.serving]
    assert (serving.guest, waiting.guest, waiting.process) == (False, True, None)
    assert waiting.left() == float("inf")  # nothing hangs and nothing is restarted for want of room
    assert pool.restarts == 1

    ray.kill(rank)
    pump_until(pool, lambda: waiting.process is not None)  # the guest has taken its place
    pool.make_room()
    successor = actor(CPUS)
    ray.get(successor.pid.remote(), timeout=LONG)
    assert pool._slots == [serving]
    assert versions(pool) == {1}
    assert pool._slots == [serving]  # no guest before the learner is there again
    pool.load_weights(ray.put(version(weights, 2)))
    assert len(pool._slots) == 2
    assert versions(pool) == {2}
    assert pool.restarts == 1


def test_weights_lost_with_the_process_that_sent_them_are_no_fault_of_the_engines(
    pool: RolloutPool, weights: Weights, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    pool.make_room()
    (engine,) = pool._slots
    rank = actor(0.0)
    published = [ray.get(rank.publish.remote(version(weights, number)), timeout=LONG) for number in (3, 4)]
    pool.load_weights(published[0])
    end(rank, published[1])
    restarts, process = pool.restarts, engine.process
    with pytest.raises(ActorError, match="the weights were lost with the process that had published them"):
        pool.load_weights(published[1])
    assert "OwnerDiedError" in caplog.text
    assert (pool.restarts, engine.process, engine.serving) == (
        restarts,
        process,
        True,
    )  # a guest may have come meanwhile
    with pytest.raises(ActorError, match="no rollout actor has weights"):
        pool.generate(many(4), SAMPLING)
    pool.abandon()
    pool.load_weights(ray.put(version(weights, 5)))
    assert versions(pool) == {5}


def test_a_turn_whose_answer_is_lost_is_the_engines_even_while_weights_wait_behind_it(
    pool: RolloutPool, weights: Weights
) -> None:
    """Its node is gone, and what it said with it: Ray's error is the same as for lost weights."""
    pool.make_room()
    (engine,) = pool._slots
    pool.load_weights(ray.put(version(weights, 6)))
    starts, restarts = many(8), pool.restarts
    expected = pool.generate(starts, SAMPLING)
    pool.submit(starts, SAMPLING)
    pool._offer(engine)  # a turn
    engine.duties.append(Duty(lambda actor: actor.process.remote(), lambda _: None, loads=True))
    pool._lose(engine, ray.exceptions.ObjectLostError("0" * 56, None, ""))
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
    pool.make_room()  # a guest that came before the weights are lost would have them, and go on
    (engine,) = pool._slots
    restarts, killed = pool.restarts, engine.process
    assert killed is not None
    with streaming(pool) as stream:
        end(rank, published)
        os.kill(killed.pid, signal.SIGKILL)
        stream.submit(many(8), SAMPLING)
        with pytest.raises(ActorError, match="no rollout actor has weights"):
            stream.finished()
        assert (pool.restarts, engine.serving) == (restarts + 1, True)
        assert engine.process != killed
        stream.make_room()
        stream.abandon()
        stream.load_weights(ray.put(version(weights, 8)))
        found = stream.generate(many(8), SAMPLING)
    assert {number for one in found for number in one.versions.tolist()} == {8}
