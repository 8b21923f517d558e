"""What a run must survive besides single deaths: poison starts, a node that is lost, damaged weights, a slow engine."""

import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import ray

from actors.pool import RolloutPool
from actors.stream import RolloutStream
from core.records import Rollout, Start
from tests.actors import models
from tests.actors.conftest import QUARANTINED
from tests.actors.test_pool import SAMPLING, Get, collect, keys, many, pump_until, tokens
from tests.processes import LONG, ends
from trainer.cluster import STARTS


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


def nodes_alive() -> int:
    return sum(node["Alive"] for node in ray.nodes())


@pytest.fixture
def second_node(ray_cluster: None) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Starts another node of the tests' cluster on this machine, with more CPUs than the first."""
    started: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="node") as folder:

        def start() -> subprocess.Popen[bytes]:
            address = ray.get_runtime_context().gcs_address
            command = [str(Path(sys.executable).with_name("ray")), "start", f"--address={address}", "--num-cpus=8"]
            for _ in range(STARTS):  # Ray gives a node 30 s to come up
                process = subprocess.Popen(
                    [*command, "--block", f"--temp-dir={folder}"],
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
                started.append(process)
                while nodes_alive() == 1 and process.poll() is None:
                    time.sleep(0.1)
                if process.poll() is None:
                    return process
            raise AssertionError("no second node")

        yield start
        for process in started:
            lose_node(process)


def lose_node(process: subprocess.Popen[bytes]) -> None:
    """What a power cut does: all processes of the node end at once."""
    if process.poll() is not None:
        return
    for one in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    process.wait(LONG)


def test_an_engine_continues_on_a_new_node_and_nothing_is_lost_with_the_node(
    pool: RolloutPool, tmp_path: Path, second_node: Callable[[], subprocess.Popen[bytes]]
) -> None:
    pool.load_weights(ray.put(models.weights(models.load(models.build(tmp_path, True, seed=2)), 2)))
    starts: list[Start] = many(192)
    expected = pool.generate(starts, SAMPLING)
    (engine,), restarts = pool._actors, pool.restarts
    spec = engine._spec
    engine._spec = replace(spec, cpus=5.0)  # more than the first node has
    pool.submit(starts, SAMPLING)
    pool.pump()
    os.kill(pool.pids()[0], signal.SIGKILL)
    pump_until(pool, lambda: pool.restarts > restarts)
    assert engine.process is None  # it waits for a node
    node = second_node()
    found = collect(pool, len(starts))
    assert tokens([one for start in starts for one in found[start.id]]) == tokens(expected)
    assert engine.process is not None
    assert engine.log_end() == f"; its log: {engine.process.log} on node {engine.process.node[:12]}"

    engine._spec, victim = spec, engine.process.pid
    pool.submit(starts, SAMPLING)
    pool.pump()
    lose_node(node)
    found = collect(pool, len(starts))
    assert ends(victim)
    assert tokens([one for start in starts for one in found[start.id]]) == tokens(expected)
    assert pool.restarts == restarts + 2


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
