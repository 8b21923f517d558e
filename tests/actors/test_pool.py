"""The pool on two real engines: order, deaths, weights."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import ray

from actors.pool import RolloutPool
from core.errors import ActorError, ModelError
from core.records import Start, Trajectory
from core.sampling import Sampling
from tests.actors import models
from tests.actors.conftest import CONFIG

SAMPLING = Sampling(1.0, 1.0, 40)
MAX_RESTARTS = 4
LONG = 180.0  # seconds that anything may take on a busy machine
Get = Callable[[bool], Path]


def launch(model: Path, **changes: object) -> RolloutPool:
    config = CONFIG.model_copy(update=changes)
    return RolloutPool(str(model), config, dtype="float32", device="cpu", seed=0, cpus=0.5)


@pytest.fixture(scope="module")
def pool(ray_cluster: None, tiny_model: Get) -> Iterator[RolloutPool]:
    pool = launch(tiny_model(True), deadline=30.0, max_restarts=MAX_RESTARTS)
    yield pool
    pool.close()


def keys(trajectories: Sequence[Trajectory]) -> list[tuple[str, int]]:
    return [(one.start.id, one.sample) for one in trajectories]


def many(count: int = 96, samples: int = 4) -> list[Start]:
    return [models.start(index, prefix=index % 5, samples=samples) for index in range(count)]


def tokens(trajectories: Sequence[Trajectory]) -> list[list[int]]:
    return [one.tokens.tolist() for one in trajectories]


def test_results_are_ordered_and_do_not_depend_on_the_number_of_engines(pool: RolloutPool, tiny_model: Get) -> None:
    starts = many(40)
    found = pool.generate(starts, SAMPLING)
    assert keys(found) == [(start.id, sample) for start in starts for sample in range(start.samples)]
    assert tokens(pool.generate(starts, SAMPLING)) == tokens(found)
    few = [one for start in starts[:3] for one in pool.generate([start], SAMPLING)]  # 4 samples over two engines
    assert tokens(few) == tokens(found[:12])


def test_every_engine_acknowledges_and_scores(pool: RolloutPool, tiny_model: Get) -> None:
    model = models.load(tiny_model(True))
    weights = models.weights(model, 3)
    acknowledged = pool.load_weights(ray.put(weights))
    assert [(a.engine, a.version, a.digest) for a in acknowledged] == [
        (name, 3, weights.manifest.digest) for name in ("rollout-0", "rollout-1")
    ]
    sequences = [one.sequence_ids for one in pool.generate(many(3), SAMPLING)]
    per_engine = pool.sequence_logprobs(sequences)
    assert len(per_engine) == 2
    for scores in per_engine:
        for sequence, score in zip(sequences, scores, strict=True):
            np.testing.assert_allclose(score, models.logprobs(model, sequence), atol=1e-4)


def disturbed(pool: RolloutPool, starts: Sequence[Start], number: int, victims: Sequence[int]) -> list[Trajectory]:
    """Generate while signal `number` goes to the processes `victims` after 0.3 s."""

    def strike() -> None:
        for victim in victims:
            os.kill(victim, number)

    timer = threading.Timer(0.3, strike)
    timer.start()
    found = pool.generate(starts, SAMPLING)
    timer.join()
    return found


@pytest.mark.parametrize(
    ("number", "victims", "said"),
    [
        (signal.SIGKILL, slice(1, 2), "rollout-1: its process died"),
        (signal.SIGKILL, slice(0, 2), "rollout-0: its process died"),
        (signal.SIGSTOP, slice(0, 1), "rollout-0: TimeoutError: it hangs: no answer within 30 s"),
    ],
    ids=["one killed", "all killed at once", "one hangs"],
)
def test_failing_engines_lose_and_double_nothing_and_return_with_current_weights(
    pool: RolloutPool,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    number: int,
    victims: slice,
    said: str,
) -> None:
    version = pool.restarts + 4
    model = models.load(models.build(tmp_path, True, seed=version))
    pool.load_weights(ray.put(models.weights(model, version)))
    starts, before, restarts = many(), pool.pids(), pool.restarts
    expected = pool.generate(starts, SAMPLING)
    found = disturbed(pool, starts, number, before[victims])
    assert pool.restarts - restarts == len(before[victims])
    assert said in caplog.text
    assert keys(found) == keys(expected)
    assert tokens(found) == tokens(expected)
    assert {int(one) for trajectory in found for one in trajectory.versions} == {version}
    pump_until(pool, lambda: pool.queues().actors == 2)
    for scores in pool.sequence_logprobs([found[0].sequence_ids]):  # the successors have the new weights
        np.testing.assert_allclose(scores[0], models.logprobs(model, found[0].sequence_ids), atol=1e-4)
    for victim in before[victims]:
        assert victim not in pool.pids()
        assert ends(victim)


def pump_until(pool: RolloutPool, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline
        pool.pump()


def ends(process: int) -> bool:
    """Whether a process that was killed ends: the kernel may take a moment."""
    deadline = time.monotonic() + LONG
    while running(process) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not running(process)


def running(process: int) -> bool:
    """Whether the process still is there (one that has ended and waits for its parent is not)."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def kill_engines(pool: RolloutPool) -> None:
    """One after the other, as many as may be restarted and one more."""
    for _ in range(MAX_RESTARTS + 1):
        pump_until(pool, lambda: pool.queues().actors == 2)
        os.kill(pool.pids()[0], signal.SIGKILL)
        pool.generate(many(8), SAMPLING)


def test_too_many_deaths_stop_the_run_with_one_line(pool: RolloutPool) -> None:
    with pytest.raises(
        ActorError, match=r"^rollout-0: its process died.*max_restarts = 4 within 3600 s is used up"
    ) as raised:
        kill_engines(pool)
    assert "\n" not in str(raised.value)


def test_an_unreadable_model_is_named(ray_cluster: None, tmp_path: Path, pool: RolloutPool) -> None:
    pool.close()
    (tmp_path / "config.json").write_text('{"model_type": "qwen2", "eos_token_id": 1}')
    with pytest.raises(ModelError, match=r"model\.path = .*vLLM cannot load it"):
        launch(tmp_path, actors=1)
