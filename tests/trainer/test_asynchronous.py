"""Asynchronous mode: which starts make a batch (pure), and the loop on the real engines."""

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest
import ray
from hypothesis import given
from hypothesis import strategies as st

from actors.stream import RolloutStream
from core.config import Config
from core.errors import ConfigError, WeightError
from core.interruption import Interruption
from core.load import load_config, override
from core.run_directory import RunDirectory
from trainer import build, checkpoint
from trainer.asynchronous import next_batch
from trainer.checkpoint import RunProgress
from trainer.loop import iterate
from trainer.metrics import PhaseClock
from trainer.run import Report, Run

RECIPE = Path(__file__).parents[1] / "recipes" / "tiny.yaml"


def test_the_oldest_complete_starts_are_taken() -> None:
    submitted_at = {"a": 0, "b": 0, "c": 1, "d": 1}
    assert next_batch(submitted_at, ["c", "b", "a"], count=2, version=1, max_staleness=2) == ["b", "a"]
    assert next_batch(submitted_at, ["c", "b"], count=2, version=1, max_staleness=2) == [
        "b",
        "c",
    ]  # a is due at version 2
    assert next_batch(submitted_at, ["c", "b"], count=2, version=1, max_staleness=1) is None  # a is due now
    assert next_batch(submitted_at, ["c"], count=2, version=1, max_staleness=2) is None  # too few


def test_a_batch_waits_when_the_rest_could_not_be_trained_on_in_time() -> None:
    submitted_at = {"a": 0, "b": 0, "c": 0}  # one start per version, due at 2 at the latest
    assert next_batch(submitted_at, ["c"], count=1, version=0, max_staleness=2) == ["c"]
    submitted_at = {"a": 0, "b": 0, "d": 1}
    assert (
        next_batch(submitted_at, ["d"], count=1, version=1, max_staleness=2) is None
    )  # a and b would both be due at 2
    assert next_batch(submitted_at, ["d", "b"], count=1, version=1, max_staleness=2) == ["b"]


@given(
    count=st.integers(1, 4),
    staleness=st.integers(1, 4),
    random=st.randoms(use_true_random=False),
)
def test_whatever_order_they_complete_in_none_is_late_and_none_is_left(
    count: int, staleness: int, random: object
) -> None:
    submitted_at: dict[str, int] = {}
    complete: list[str] = []
    fed, iterations = 0, 12
    for version in range(iterations):
        while fed < min(version + 1 + staleness, iterations):
            fed += 1
            submitted_at |= {f"{fed}.{index}": version for index in range(count)}
        while (chosen := next_batch(submitted_at, complete, count, version, staleness)) is None:
            waiting = [start for start in submitted_at if start not in complete]
            assert waiting, "all are complete and there is no batch"
            complete.append(random.choice(waiting))  # type: ignore[attr-defined]
        assert len(chosen) == count
        assert all(version - submitted_at.pop(start) <= staleness for start in chosen)
        complete = [start for start in complete if start not in chosen]
    assert submitted_at == {}


STALENESS = 2
STARTS, SAMPLES, ITERATIONS = 8, 2, 6


@pytest.fixture(scope="module")
def parts(ray_cluster: None, tmp_path_factory: pytest.TempPathFactory, starter: Callable[..., str]) -> Iterator[Run]:
    """All parts of an asynchronous run on two engines."""
    config = recipe(starter("tiny", steps=20))  # it is not trained for learning
    run = RunDirectory.create(tmp_path_factory.mktemp("runs"), "asynchronous", "test")
    with (
        build.open_model_and_task(config) as ready,
        build.opened(run, ready, "cpu") as parts,
    ):
        yield parts


def recipe(model: str) -> Config:
    options = {
        "model.path": model,
        "run.iterations": ITERATIONS,
        "rollout.actors": 2,
        "rollout.starts": STARTS,
        "rollout.samples": SAMPLES,
        "rollout.max_running": 8,  # so that there is a queue
        "rollout.max_staleness": STALENESS,
        "cluster.rollout_cpus": 0.5,
    }
    return override(
        load_config(RECIPE), [text for name, value in options.items() for text in (f"--{name}", str(value))]
    )


def run_iterations(parts: Run, numbers: range) -> list[Report]:
    return [iterate(parts, parts.at(number), PhaseClock(), Interruption()) for number in numbers]


def starts_of(report: Report) -> list[str]:
    return list(dict.fromkeys(rollout.start.id for rollout in report.trained))


def check_batches(iterations: list[Report]) -> None:
    """Whole starts, none older than allowed."""
    for iteration in iterations:
        trained_at = iteration.iteration - 1
        assert iteration.broadcast.version == iteration.iteration
        assert len(starts_of(iteration)) == STARTS
        samples = Counter(item.start.id for item in iteration.trained)
        assert set(samples.values()) == {SAMPLES}
        for item in iteration.trained:
            versions = item.versions
            assert (versions[:-1] <= versions[1:]).all()  # weights only get newer within a trajectory
            assert trained_at - STALENESS <= versions.min() <= versions.max() <= trained_at


def test_tokens_are_stale_within_the_bound_each_start_counts_once_and_a_resumed_run_with_a_dead_engine_loses_none(
    parts: Run, tmp_path: Path
) -> None:
    run = RunDirectory.create(tmp_path, "run", "test")
    first = run_iterations(parts, range(1, 4))
    check_batches(first)
    assert any((item.versions < report.iteration - 1).any() for report in first for item in report.trained)
    queues = parts.pool.queues()
    assert (queues.actors, queues.busy > 0) == (2, True)
    state = parts.engines.save()
    assert state is not None
    assert len(state["in_flight"]) == STALENESS * STARTS  # submitted for the iterations to come
    saved = checkpoint.save(run, parts, RunProgress(3, 0, state), keep=1)

    lost = run_iterations(parts, range(4, 6))  # what a crash undoes
    check_batches(lost)
    assert checkpoint.continue_from(saved, parts).iteration == 3
    os.kill(cast(RolloutStream, parts.pool)._pool.pids()[0], signal.SIGKILL)  # while it generates
    rest = run_iterations(parts, range(4, ITERATIONS + 1))
    check_batches(rest)
    assert parts.pool.restarts == 1
    assert rest[0].stats.first_kl < 1e-6

    trained = [start for report in first + rest for start in starts_of(report)]
    assert len(trained) == len(set(trained)) == ITERATIONS * STARTS
    asked = Counter(int(start.split(".")[0]) for start in trained)
    assert asked == {1: (1 + STALENESS) * STARTS} | dict.fromkeys(range(2, ITERATIONS - STALENESS + 1), STARTS)
    assert parts.engines.save() == {"in_flight": []}


def test_more_starts_in_flight_than_the_settings_allow_are_refused(parts: Run) -> None:
    record = {"prompt_ids": [1], "prefix_ids": [], "samples": 1, "seed": 0, "state_key": None, "problem_id": "p"} | {
        "world": None
    }
    many = [record | {"id": f"9.f{index}"} for index in range(STALENESS * STARTS + 1)]
    with pytest.raises(ConfigError, match=r"rollout\.max_staleness = 2: .* 17 .* rollout\.starts"):
        parts.engines.restore({"in_flight": many}, parts.at(8))


def test_an_engine_that_acknowledges_other_weights_is_named_and_stops_the_run(parts: Run) -> None:
    actor = cast(RolloutStream, parts.pool)._pool._actors[1]
    ray.get(actor._actor.__ray_call__.remote(receive_badly))
    with pytest.raises(WeightError, match=r"^rollout-1 .* \(0+\)"):
        parts.learner.broadcast(parts.pool)


def receive_badly(_: object) -> None:
    """In the actor's process: as if the weights had been damaged on their way."""
    import actors.vllm_engine

    vars(actors.vllm_engine)["digest"] = lambda *_: "0" * 32
