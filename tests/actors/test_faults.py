"""What a run must survive besides single deaths: poison starts, damaged and lost weights, lost answers, a slow engine.

A node that is lost with its engine: tests/deploy/test_machines.py.
"""

import logging
import os
import signal
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray

from actors.actor import Process
from actors.handle import ActorHandle
from actors.pool import RolloutPool
from actors.stream import RolloutStream
from core.errors import LearnerError
from core.records import Rollout
from core.weights import Weights
from tests.actors import models
from tests.actors.conftest import QUARANTINED
from tests.actors.test_pool import SAMPLING, Get, collect, keys, many, pump_until, tokens
from tests.processes import LONG


def test_a_start_that_makes_engines_raise_is_quarantined_on_its_second_try_and_the_run_goes_on(
    pool: RolloutPool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = models.load(models.build(tmp_path, True, seed=1))
    pool.load_weights(ray.put(models.weights(model, 1)))
    starts = many(16, 2)
    expected = pool.generate(starts, SAMPLING)
    ids = models.start(99).prompt_ids.copy()
    ids[3] = 10 * models.VOCABULARY  # the embedding has no such row, not even as padding
    poison = replace(models.start(99, samples=2), prompt_ids=ids)
    restarts, quarantined, spent = pool.restarts, pool.quarantined, pool._budget.spent
    found = pool.generate([*starts[:8], poison, *starts[8:]], SAMPLING)
    assert tokens(found) == tokens(expected)
    assert keys(found) == keys(expected)
    assert pool._budget.spent == spent + 1  # for both of its tries
    ((name, reason),) = QUARANTINED
    assert name == poison.id
    assert "index out of range" in reason
    assert (pool.restarts - restarts, pool.quarantined - quarantined) == (2, 1)
    assert "its log ends: " in caplog.text
    again = replace(poison, id="again")
    assert pool.generate([again, starts[0]], SAMPLING)[0].start.id == starts[0].id  # not tried again
    assert QUARANTINED[1] == ("again", QUARANTINED[0][1])
    assert pool.quarantined - quarantined == 2
    assert pool.restarts - restarts == 2


def receive_badly(_: object) -> None:
    """In the actor's process: as if the weights had been damaged on their way."""
    import actors.vllm_engine

    vars(actors.vllm_engine)["digest"] = lambda *_: "0" * 32


def test_an_engine_that_comes_back_with_other_weights_gets_no_work_and_is_replaced(
    pool: RolloutPool, tiny_model: Get, caplog: pytest.LogCaptureFixture
) -> None:
    weights = models.weights(models.load(tiny_model(True)), 7)
    pool.load_weights(ray.put(weights))
    (engine,), restarts = pool._actors, pool.restarts
    os.kill(pool.pids()[0], signal.SIGKILL)  # before it has work, which it might finish first
    pool.submit(many(8), SAMPLING)
    pump_until(pool, lambda: pool.restarts > restarts and engine.process is not None)
    wrong = engine.process
    ray.get(engine._actor.__ray_call__.remote(receive_badly))  # before it is sent the weights
    assert len(collect(pool, 8)) == 8
    assert f"rollout-0: ActorError: it acknowledged weights (7, '{'0' * 32}'), the others (7, " in caplog.text
    assert engine.acknowledged == (7, weights.manifest.digest)
    assert engine.process != wrong
    assert pool.restarts == restarts + 2


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
    elsewhere = ActorHandle(0, pool._spec)
    elsewhere.process = Process(process, node="f" * 56, log="/a/log")
    assert elsewhere.log_end() == "; its log: /a/log on node ffffffffffff"
    found = collect(pool, len(starts))
    assert tokens([one for start in starts for one in found[start.id]]) == tokens(expected)
    assert (pool.pids(), pool.restarts) == ([process], restarts)


def test_weights_may_come_while_a_stream_generates(pool: RolloutPool, tmp_path: Path) -> None:
    model = models.load(models.build(tmp_path, True, seed=3))
    weights = [ray.put(models.weights(model, version)) for version in (8, 9, 10)]
    starts = [replace(start, id=f"stream-{start.id}") for start in many(192)]
    with closing(RolloutStream(pool)) as stream:
        stream.submit(starts, SAMPLING)
        for handle in weights:
            assert len(stream.load_weights(handle)) == 1
        evaluated = stream.generate(many(4), SAMPLING)
        assert {v for one in evaluated for v in one.versions.tolist()} == {10}
        finished: list[tuple[str, list[Rollout]]] = []
        while len(finished) < len(starts):
            finished += stream.finished()
    assert sorted(start_id for start_id, _ in finished) == sorted(start.id for start in starts)
    versions = [one.versions for _, trajectories in finished for one in trajectories]
    assert len(versions) == 192 * 4
    assert any(len(set(one.tolist())) > 1 for one in versions)  # some went on with newer weights
    assert all((one[:-1] <= one[1:]).all() for one in versions)


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
