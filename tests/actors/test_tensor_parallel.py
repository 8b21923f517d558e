"""An engine of two processes (vLLM's own executor), each with half of every layer, on CPU."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from actors.handle import EngineSpec
from tests.actors import models
from tests.actors.conftest import CONFIG
from tests.actors.test_engine import TOLERANCE, Get, generate, largest_gap, update
from tests.processes import LONG, ends


@pytest.fixture
def actor(ray_cluster: None, tiny_model: Get) -> Iterator[Any]:
    config = CONFIG.model_copy(update={"tensor_parallel": 2})
    spec = EngineSpec(str(tiny_model(True)), config, "float32", "cpu", seed=0, cpus=0.5)
    actor = spec.create("tensor-parallel", 0)
    ray.get(spec.start(actor), timeout=LONG)
    yield actor
    ray.kill(actor)


def test_two_processes_generate_with_the_weights_they_were_sent_and_end_with_their_actor(
    actor: Any, tiny_model: Get, tmp_path: Path
) -> None:
    first, second = models.load(tiny_model(True)), models.load(models.build(tmp_path, True, seed=3))
    starts = [models.start(index, prefix=index % 3 * 4, samples=2) for index in range(6)]
    assert largest_gap(first, generate(actor, starts)) < TOLERANCE
    update(actor, second, 1)  # each takes its share of the same buffers
    found = generate(actor, starts)
    assert largest_gap(second, found) < TOLERANCE
    assert largest_gap(first, found) > 0.5
    process = ray.get(actor.process.remote()).pid
    workers = [one.pid for one in psutil.Process(process).children(recursive=True) if "Worker" in one.name()]
    assert len(workers) == 2
    os.kill(process, signal.SIGKILL)
    assert all(ends(worker) for worker in workers)
