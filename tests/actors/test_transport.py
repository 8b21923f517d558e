"""Weights from a real learner into real engines by every way: the same digest, the same log-probabilities."""

import logging
import os
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from actors.handle import EngineSpec
from actors.pool import RolloutPool
from core.records import FloatArray, IntArray
from core.transport import GroupSender, HandleSender, MemoryHandles, OfPairs
from core.weights import Acknowledgement, Weights
from learner.distributed.worker import RankWorker
from learner.group import LearnerGroup
from tests.actors import models
from tests.actors.conftest import CONFIG
from tests.actors.test_pool import Get
from tests.learner.conftest import make_judged
from tests.learner.groups import group, on_policy

LONG = 480.0  # seconds that anything may take on a busy machine
PROBE = [models.start(7, prompt=12).prompt_ids]


@pytest.fixture(scope="module")
def parts(ray_cluster: None, tiny_model: Get) -> Iterator[tuple[RolloutPool, LearnerGroup]]:
    """Two vLLM engines, and a learner that has learnt something: its weights are not those of the model directory."""
    path = tiny_model(True)
    with ThreadPoolExecutor(1) as starter:  # both spend most of their time importing
        starting = starter.submit(RolloutPool, EngineSpec(str(path), CONFIG, "float32", "cpu", seed=0, cpus=0.5))
        with group(path, sender=GroupSender, policy_lr=1e-2) as learner:
            learner.learn(learner.score(on_policy(learner, make_judged(1))))
            pool = starting.result()
            yield pool, learner
            pool.close()


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
    parts: tuple[RolloutPool, LearnerGroup],
) -> None:
    pool, learner = parts
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
    parts: tuple[RolloutPool, LearnerGroup], caplog: pytest.LogCaptureFixture
) -> None:
    pool, learner = parts
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


def test_every_engine_of_a_pair_reads_the_memory_of_its_own_rank(
    parts: tuple[RolloutPool, LearnerGroup], tiny_model: Get
) -> None:
    """Of ranks that share the weights; whole ones in the memory of one rank: above."""
    pool, _ = parts
    with group(tiny_model(True), sender=HandleSender, pairs=True, ranks=2, zero_stage=3, policy_lr=5e-2) as learner:
        before = pool.sequence_logprobs(PROBE)[0][0]
        learner.learn(learner.score(on_policy(learner, make_judged(1))))
        broadcast(learner, pool, blind=True)  # without the object store's copy
        assert float(np.abs(pool.sequence_logprobs(PROBE)[0][0] - before).max()) > 1e-3
        learner.broadcast(engines := OneBroken(pool, blind=False))
        assert [bool(answer.fallback) for answer in engines.answers] == [False, True]
