"""What a run must survive besides single deaths: poison starts, engines that join, a node that is lost."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
import ray

from actors.handle import EngineRecipe
from actors.pool import RolloutPool
from actors.stream import RolloutStream
from core.records import Start, Trajectory
from tests.actors import models
from tests.actors.conftest import CONFIG
from tests.actors.test_pool import SAMPLING, Get, collect, keys, many, pump_until, tokens
from tests.processes import LONG, ends
from trainer.cluster import STARTS

QUARANTINED: list[tuple[str, str]] = []


@pytest.fixture(scope="module")
def pool(ray_cluster: None, tiny_model: Get) -> Iterator[RolloutPool]:
    """One engine, with weights of version 1 that are not those of the model directory."""
    config = CONFIG.model_copy(update={"actors": 1, "max_restarts": 2})
    recipe = EngineRecipe(str(tiny_model(True)), config, "float32", "cpu", seed=0, cpus=0.5)
    pool = RolloutPool(recipe, lambda start, reason: QUARANTINED.append((start.id, reason)))
    yield pool
    pool.close()


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
    restarts, quarantined = pool.restarts, pool.quarantined
    found = pool.generate([*starts[:8], poison, *starts[8:]], SAMPLING)
    assert tokens(found) == tokens(expected)
    assert keys(found) == keys(expected)
    ((name, reason),) = QUARANTINED
    assert name == poison.id
    assert "index out of range" in reason
    assert (pool.restarts - restarts, pool.quarantined - quarantined) == (2, 1)
    assert "its log ends: " in caplog.text
    assert pool.generate([poison, starts[0]], SAMPLING)[0].start.id == starts[0].id  # not tried again
    assert pool.restarts - restarts == 2


def test_an_engine_joins_with_the_current_weights(pool: RolloutPool, tmp_path: Path) -> None:
    pump_until(pool, lambda: pool.queues().actors == 1)
    pool._join()
    model = models.load(models.build(tmp_path, True, seed=2))
    pool.load_weights(ray.put(models.weights(model, 2)))  # it is starting and not asked
    pump_until(pool, lambda: pool.queues().actors == 2)
    assert {v for one in pool.generate(many(), SAMPLING) for v in one.versions.tolist()} == {2}
    sequence = models.start(5, prompt=20).prompt_ids
    for scores in pool.sequence_logprobs([sequence]):
        np.testing.assert_allclose(scores[0], models.logprobs(model, sequence), atol=1e-4)
    pool.make_room()


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


def test_an_engine_joins_on_a_new_node_and_nothing_is_lost_with_the_node(
    pool: RolloutPool, second_node: Callable[[], subprocess.Popen[bytes]]
) -> None:
    starts: list[Start] = many(192)
    restarts, counted = pool.restarts, pool._budget.spent
    expected = pool.generate(starts, SAMPLING)
    pool._recipe = replace(pool._recipe, cpus=5.0)  # more than the first node has
    joining = pool._join()
    pool.generate(many(4), SAMPLING)
    assert pool.queues().actors == 1  # it waits for room, the run does not
    node = second_node()
    pump_until(pool, lambda: pool.queues().actors == 2)
    assert joining.process is not None
    assert joining.log_end() == f"; its log: {joining.process.log} on node {joining.process.node[:12]}"
    pool.submit(starts, SAMPLING)
    pool.pump()
    victim = pool.pids()[1]
    lose_node(node)
    found = collect(pool, len(starts))
    assert ends(victim)
    assert tokens([one for start in starts for one in found[start.id]]) == tokens(expected)
    pump_until(pool, lambda: pool.restarts > restarts)
    assert pool.queues().actors == 1
    assert pool._budget.spent == counted  # nodes come and go
    assert joining.process is None  # its successor waits for a node again
    pool.make_room()
    assert pool.queues().actors == 1


def test_weights_may_come_while_a_stream_generates(pool: RolloutPool, tmp_path: Path) -> None:
    model = models.load(models.build(tmp_path, True, seed=3))
    weights = [ray.put(models.weights(model, version)) for version in (3, 4, 5)]
    starts = [replace(start, id=f"stream-{start.id}") for start in many(192)]
    with closing(RolloutStream(pool)) as stream:
        stream.submit(starts, SAMPLING)
        for handle in weights:
            assert len(stream.load_weights(handle)) == 1
        evaluated = stream.generate(many(4), SAMPLING)
        assert {v for one in evaluated for v in one.versions.tolist()} == {5}
        finished: list[tuple[str, list[Trajectory]]] = []
        while len(finished) < len(starts):
            finished += stream.finished()
    assert sorted(start_id for start_id, _ in finished) == sorted(start.id for start in starts)
    versions = [one.versions for _, trajectories in finished for one in trajectories]
    assert len(versions) == 192 * 4
    assert any(len(set(one.tolist())) > 1 for one in versions)  # some went on with newer weights
    assert all((one[:-1] <= one[1:]).all() for one in versions)
