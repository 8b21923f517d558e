"""The pool on two real engines: order, deaths, and weights from a real learner by every way: the same digest, the same
log-probabilities."""

import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import ray

from actors.handle import EngineSpec
from actors.pool import RestartBudget, RolloutPool
from core.errors import ActorError
from core.records import FloatArray, IntArray, Rollout, Sampling, Start
from core.transport import GroupSender, HandleSender, MemoryHandles, OfPairs
from core.weights import Acknowledgement, Weights
from learner.distributed.worker import RankWorker
from learner.group import LearnerGroup
from tests.actors import models
from tests.actors.conftest import CONFIG
from tests.learner.conftest import make_judged
from tests.learner.groups import group, on_policy
from tests.processes import LONG, ends

SAMPLING = Sampling(1.0, 1.0, 40)
PROBE = [models.start(7, prompt=12).prompt_ids]
Get = Callable[[bool], Path]


def launch(model: Path, **changes: object) -> RolloutPool:
    config = CONFIG.model_copy(update=changes)
    return RolloutPool(EngineSpec(str(model), config, "float32", "cpu", seed=0, cpus=0.5))


@pytest.fixture(scope="module")
def pool(ray_cluster: None, tiny_model: Get) -> Iterator[RolloutPool]:
    with closing(launch(tiny_model(True), max_restarts=100)) as pool:
        yield pool


def keys(trajectories: Sequence[Rollout]) -> list[tuple[str, int]]:
    return [(one.start.id, one.sample) for one in trajectories]


def many(count: int = 96, samples: int = 4) -> list[Start]:
    """Starts whose draws are no near ties: with the weights of seeds 0 and 10 no two tokens of the first 96 are
    closer than 8e-5 nats, with those of seeds 1 and 2 none of the first 192 than 5e-5. The other samples of a batch
    change the rounding (seed 5 has two tokens 4e-6 apart, and they do change places).
    """
    return [models.start(index, prefix=index % 5, samples=samples) for index in range(count)]


def tokens(trajectories: Sequence[Rollout]) -> list[list[int]]:
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


def disturbed(pool: RolloutPool, starts: Sequence[Start], number: int, victims: Sequence[int]) -> list[Rollout]:
    """Generate, while signal `number` goes to the processes `victims` in the middle of their first request.

    More waits than they can get at once, so that the work of a lost engine is missed.
    """
    pool.submit(starts, SAMPLING)
    pool.pump()
    assert pool.queues().waiting > 2 * CONFIG.max_running
    for victim in victims:
        os.kill(victim, number)
    found = collect(pool, len(starts))
    return [one for start in starts for one in found[start.id]]


def collect(pool: RolloutPool, count: int) -> dict[str, list[Rollout]]:
    """The next `count` starts that are complete; no start may come twice."""
    found: dict[str, list[Rollout]] = {}
    deadline = time.monotonic() + LONG
    while len(found) < count:
        assert time.monotonic() < deadline
        pool.pump()
        for start_id, trajectories in pool.collect():
            assert start_id not in found
            found[start_id] = trajectories
    return found


def test_a_hanging_engine_loses_and_doubles_nothing_and_returns_with_current_weights(
    pool: RolloutPool, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = pool.restarts + 4
    model = models.load(models.build(tmp_path, True, seed=10))
    pool.load_weights(ray.put(models.weights(model, version)))
    starts, victim, restarts = many(), pool.pids()[0], pool.restarts
    expected = pool.generate(starts, SAMPLING)
    with monkeypatch.context() as hasty:
        hasty.setattr("actors.pool.ANSWER_SECONDS", 5.0)
        found = disturbed(pool, starts, signal.SIGSTOP, [victim])
    assert pool.restarts > restarts
    assert "rollout-0: TimeoutError: it hangs: no answer within 5 s" in caplog.text
    assert keys(found) == keys(expected)
    assert tokens(found) == tokens(expected)
    assert {int(one) for trajectory in found for one in trajectory.versions} == {version}
    pump_until(pool, lambda: pool.queues().actors == 2)
    for scores in pool.sequence_logprobs([found[0].sequence_ids]):  # the successor has the new weights
        np.testing.assert_allclose(scores[0], models.logprobs(model, found[0].sequence_ids), atol=1e-4)
    assert victim not in pool.pids()
    assert ends(victim)


def pump_until(pool: RolloutPool, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline
        pool.pump()


@pytest.fixture(scope="module")
def learner(tiny_model: Get, pool: RolloutPool) -> Iterator[LearnerGroup]:
    """One that has learnt something: its weights are not those of the model directory."""
    with group(tiny_model(True), sender=GroupSender, policy_lr=1e-2) as learner:
        learner.learn(learner.score(on_policy(learner, make_judged(1))))
        yield learner


class Engines:
    """The pool, given the weights without the object store's copy when `blind`; keeps what it was given and
    answered."""

    def __init__(self, pool: RolloutPool, blind: bool) -> None:
        self.pool, self.blind = pool, blind

    def load_weights(self, handle: Weights) -> list[Acknowledgement]:
        self.given = handle
        self.answers = self.pool.load_weights(replace(handle, buckets=()) if self.blind else handle)
        return self.answers

    def sequence_logprobs(self, sequences: Sequence[IntArray]) -> list[list[FloatArray]]:
        return self.pool.sequence_logprobs(sequences)


def broadcast(learner: LearnerGroup, pool: RolloutPool, blind: bool) -> Engines:
    """One broadcast that both engines acknowledge without a fallback; its probe compares log-probabilities."""
    engines = Engines(pool, blind)
    learner.broadcast(engines)
    learner.measure_noise(engines, PROBE)
    assert (gap := learner.check_engines(engines)) is not None
    assert gap.high < 1e-4
    assert [answer.engine for answer in engines.answers] == ["rollout-0", "rollout-1"]
    assert {answer.fallback for answer in engines.answers} == {""}
    assert {(answer.version, answer.digest) for answer in engines.answers} == {
        (learner.version, engines.given.manifest.digest)
    }
    return engines


def test_every_way_brings_the_same_and_a_restarted_engine_takes_part_again(
    pool: RolloutPool, learner: LearnerGroup
) -> None:
    before = pool.sequence_logprobs(PROBE)[0][0]
    first = broadcast(learner, pool, blind=False)  # by the group that the learner was made with
    assert first.given.direct is not None
    after = pool.sequence_logprobs(PROBE)[0][0]
    assert float(np.abs(after - before).max()) > 1e-3
    victim = pool.pids()[0]
    os.kill(victim, signal.SIGKILL)
    end = time.monotonic() + LONG
    while victim in pool.pids() or pool.queues().actors < 2 or not pool.idle:
        assert time.monotonic() < end
        pool.sequence_logprobs(PROBE)
    for logprobs in pool.sequence_logprobs(PROBE):  # the successor's come from the object store
        np.testing.assert_array_equal(logprobs[0], after)
    for way in (GroupSender, HandleSender, None):
        learner._ranks.call_same(RankWorker.open_channel, way, False, 120.0)
        engines = broadcast(learner, pool, blind=way is not None)
        assert (engines.given.direct is None) == (way is None)
        assert engines.given.manifest.digest == first.given.manifest.digest
        for logprobs in pool.sequence_logprobs(PROBE):
            np.testing.assert_array_equal(logprobs[0], after)


def test_an_engine_that_a_direct_way_fails_is_named_and_takes_the_object_stores_copy(
    pool: RolloutPool, learner: LearnerGroup, caplog: pytest.LogCaptureFixture
) -> None:
    engines = Engines(pool, blind=False)
    learner._ranks.call_same(RankWorker.open_channel, None, False, 120.0)
    learner.broadcast(engines)
    caplog.set_level(logging.WARNING)
    answers = pool.load_weights(replace(engines.given, direct=MemoryHandles((b"nothing",))))
    assert {answer.digest for answer in answers} == {engines.given.manifest.digest}
    for name in ("rollout-0", "rollout-1"):
        assert f"{name} took the weights from the object store: RuntimeError: not a handle" in caplog.text


class OneBroken(Engines):
    """The second rank's offer cannot be read."""

    def load_weights(self, handle: Weights) -> list[Acknowledgement]:
        assert isinstance(handle.direct, OfPairs)
        broken = OfPairs((handle.direct.offers[0], MemoryHandles((b"nothing",))))
        return super().load_weights(replace(handle, direct=broken))


def test_every_engine_of_a_pair_reads_the_memory_of_its_own_rank(pool: RolloutPool, tiny_model: Get) -> None:
    """Of ranks that share the weights; whole ones in the memory of one rank: above."""
    with group(tiny_model(True), sender=HandleSender, pairs=True, ranks=2, zero_stage=3, policy_lr=5e-2) as learner:
        before = pool.sequence_logprobs(PROBE)[0][0]
        learner.learn(learner.score(on_policy(learner, make_judged(1))))
        broadcast(learner, pool, blind=True)  # without the object store's copy
        assert float(np.abs(pool.sequence_logprobs(PROBE)[0][0] - before).max()) > 1e-3
        learner.broadcast(engines := OneBroken(pool, blind=False))
        assert [bool(answer.fallback) for answer in engines.answers] == [False, True]


def test_engines_lost_together_count_once_and_too_many_losses_end_the_pool(
    pool: RolloutPool, tiny_model: Get, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = models.weights(models.load(tiny_model(True)), 9)
    pool.load_weights(ray.put(weights))
    pool._budget, restarts = RestartBudget(1, 3600.0), pool.restarts
    monkeypatch.setattr(
        "actors.pool.INCIDENT_SECONDS", 3600.0
    )  # however long a busy machine takes to notice the second
    starts = many()
    expected = pool.generate(starts, SAMPLING)
    found = disturbed(pool, starts, signal.SIGKILL, pool.pids())
    assert (keys(found), tokens(found)) == (keys(expected), tokens(expected))
    assert (pool.restarts - restarts, pool._budget.spent) == (2, 1)
    assert all(f"rollout-{index}: its process died" in caplog.text for index in (0, 1))
    pump_until(pool, lambda: pool.queues().actors == 2)
    with pytest.raises(ActorError, match=r"^rollout-\d: .*max_restarts = 1") as raised:
        disturbed(pool, [replace(start, id=f"again-{start.id}") for start in starts], signal.SIGKILL, pool.pids())
    assert "\n" not in str(raised.value)
    assert all(ends(process) for process in pool.pids())
    unreachable = ray.exceptions.ActorUnavailableError(
        "connection lost", None
    )  # what Ray says as long as it does not know
    assert pool._actors[0].explain(unreachable).startswith("its process died")
    with pytest.raises(ActorError, match=r"rollout\.max_restarts"):  # and no waiting for engines that will not come
        pool.load_weights(ray.put(weights))
    with pytest.raises(ActorError, match=r"rollout\.max_restarts"):
        pool.generate(many(4), SAMPLING)
