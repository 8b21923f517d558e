"""Weights and answers that are lost with a process."""

import logging
import os
import signal
import time
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
import ray

from actors.pool import RolloutPool
from actors.stream import RolloutStream
from core.errors import LearnerError
from core.weights import Weights
from tests.actors import models
from tests.actors.test_pool import SAMPLING, Get, collect, many, tokens
from tests.processes import LONG


class Elsewhere:
    """What a learner rank is to the engines: a process that publishes weights."""

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


def elsewhere() -> Any:
    return ray.remote(Elsewhere).options(num_cpus=0).remote()


@pytest.fixture(scope="module")
def weights(tiny_model: Get) -> Weights:
    return models.weights(models.load(tiny_model(True)), 1)


def version(weights: Weights, number: int) -> Weights:
    return replace(weights, manifest=replace(weights.manifest, version=number))


def versions(pool: RolloutPool) -> set[int]:
    return {number for one in pool.generate(many(4), SAMPLING) for number in one.versions.tolist()}


def test_weights_lost_with_the_process_that_sent_them_are_no_fault_of_the_engines(
    pool: RolloutPool, weights: Weights, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    (engine,) = pool._actors
    rank = elsewhere()
    published = [ray.get(rank.publish.remote(version(weights, number)), timeout=LONG) for number in (3, 4)]
    pool.load_weights(published[0])
    end(rank, published[1])
    restarts, process = pool.restarts, engine.process
    with pytest.raises(LearnerError, match="weights of the rollout actors"):
        pool.load_weights(published[1])
    assert "OwnerDiedError" in caplog.text
    assert (pool.restarts, engine.process, engine.serving) == (restarts, process, True)
    with pytest.raises(LearnerError, match="weights of the rollout actors"):
        pool.generate(many(4), SAMPLING)
    pool.load_weights(ray.put(version(weights, 5)))
    assert versions(pool) == {5}


def test_a_lost_answer_is_the_engines_loss_even_while_new_weights_wait_behind_it(
    pool: RolloutPool, weights: Weights
) -> None:
    """Its node is gone, and its answer with it: Ray's error is the same as for lost weights."""
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
    rank = elsewhere()
    published = ray.get(rank.publish.remote(version(weights, 7)), timeout=LONG)
    pool.load_weights(published)
    (engine,) = pool._actors
    restarts, killed = pool.restarts, engine.process
    assert killed is not None
    with closing(RolloutStream(pool)) as stream:
        end(rank, published)
        os.kill(killed.pid, signal.SIGKILL)
        stream.submit(many(8), SAMPLING)
        with pytest.raises(LearnerError, match="weights of the rollout actors"):
            stream.finished()
        assert (pool.restarts, engine.serving) == (restarts + 1, True)
        assert engine.process != killed
        stream.abandon()
        stream.load_weights(ray.put(version(weights, 8)))
        found = stream.generate(many(8), SAMPLING)
    assert {number for one in found for number in one.versions.tolist()} == {8}
