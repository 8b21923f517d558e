"""The probe of a broadcast, on a real engine and a real learner in bfloat16: what it finds, and what it lets pass."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from actors.handle import EngineSpec
from actors.pool import RolloutPool
from core.errors import WeightError
from core.records import FloatArray, IntArray
from core.weights import Acknowledgement, Weights, pack, unpack
from learner.probe import Gap
from tests.actors import models
from tests.actors.conftest import CONFIG
from tests.actors.test_pool import Get
from tests.learner.conftest import make_judged
from tests.learner.groups import Learner, group, on_policy

PROBE = [models.start(number, prompt=24).prompt_ids for number in range(8)]


@pytest.fixture(scope="module")
def parts(ray_cluster: None, tiny_model: Get) -> Iterator[tuple[RolloutPool, Learner]]:
    """An engine and a learner of one model in bfloat16, after the learner's first update and its right broadcast."""
    path, config = tiny_model(True), CONFIG.model_copy(update={"actors": 1})
    with ThreadPoolExecutor(1) as starter:  # both spend most of their time importing
        starting = starter.submit(RolloutPool, EngineSpec(str(path), config, "bfloat16", "cpu", seed=0, cpus=0.5))
        with group(path, dtype="bfloat16", policy_lr=1e-2) as learner, closing(starting.result()) as pool:
            learner.measure_noise(pool, PROBE)
            take_steps(learner)
            assert probed(learner, pool) is not None  # an honest engine passes, although the policy has changed
            yield pool, learner


@dataclass(frozen=True)
class Deceived:
    """The pool, but its engine acknowledges what it was sent and computes with something else: with tensors that
    `damage` has changed, or without it with the weights that it had."""

    pool: RolloutPool
    damage: Callable[[str, Tensor], Tensor] | None = None

    def load_weights(self, handle: Weights) -> list[Acknowledgement]:
        if self.damage is not None:
            self.pool.load_weights(pack([(name, self.damage(name, one)) for name, one in unpack(handle)], 1))
        return [Acknowledgement("rollout-0", handle.manifest.version, handle.manifest.digest)]

    def sequence_logprobs(self, sequences: Sequence[IntArray]) -> list[list[FloatArray]]:
        return self.pool.sequence_logprobs(sequences)


def take_steps(learner: Learner) -> None:
    """An update whose steps move every weight by about 1e-2; the model's have a deviation of 0.15."""
    learner.learn(learner.score(on_policy(learner, make_judged(1))))


def probed(learner: Learner, engines: RolloutPool | Deceived) -> Gap | None:
    """A broadcast that is probed whatever `PROBE_EVERY` is, as the first of a run is."""
    learner.version = 0
    return learner.broadcast(engines).gap


def test_bfloat16_differs_by_rounding_and_an_honest_engine_passes(parts: tuple[RolloutPool, Learner]) -> None:
    pool, learner = parts
    assert learner._noise is not None
    noise, gap = learner._noise[1], probed(learner, pool)
    assert gap is not None
    assert 1e-4 < noise.mean < 0.1  # in float32 1e-6
    assert 1e-4 < gap.mean < 4.0 * noise.mean


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("model.layers.0.self_attn.o_proj.weight", lambda tensor: tensor.T.contiguous()),  # [64, 64]
        ("model.layers.1.self_attn.q_proj.weight", lambda tensor: tensor.T.contiguous()),
        ("model.layers.1.mlp.down_proj.weight", lambda tensor: tensor.roll(1, dims=0)),  # as of a wrong offset
        ("model.layers.0.mlp.up_proj.weight", lambda tensor: tensor * (torch.arange(128) < 64)[:, None]),  # half lost
    ],
    ids=["transposed", "transposed, last layer", "shifted", "half lost"],
)
def test_a_damaged_tensor_is_found(
    parts: tuple[RolloutPool, Learner], name: str, damage: Callable[[Tensor], Tensor]
) -> None:
    pool, learner = parts
    engines = Deceived(pool, lambda own, tensor: damage(tensor) if own == name else tensor)
    with pytest.raises(WeightError, match=r"^weight version 1: "):
        probed(learner, engines)
    assert probed(learner, pool) is not None  # the right weights repair it


def test_an_engine_that_kept_its_old_weights_is_found(parts: tuple[RolloutPool, Learner]) -> None:
    pool, learner = parts
    assert probed(learner, Deceived(pool)) is not None  # nothing has changed yet
    take_steps(learner)
    with pytest.raises(WeightError, match="in the engine"):
        probed(learner, Deceived(pool))
    assert probed(learner, pool) is not None
