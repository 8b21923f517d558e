"""Gradients of bf16 weights are accumulated in fp32, on real DeepSpeed engines of every ZeRO stage."""

from typing import Any

import pytest
import ray
import torch

from core.config import LearnerConfig
from learner.distributed.ranks import rank_environment

pytestmark = pytest.mark.usefixtures("ray_cluster")

PASSES, SIZE = 288, 1 / 256


class Accumulator:
    """A rank that adds up PASSES gradients of SIZE, for one engine after another."""

    def address(self) -> tuple[str, int]:
        from learner.distributed.worker import RankWorker

        self.worker = RankWorker(publish=id)
        return self.worker.address()

    def norms(self, rank: int, ranks: int, address: tuple[str, int], cases: list[dict[str, Any]]) -> list[float]:
        """The gradient norm over 4 weights in each case."""
        from learner.distributed.engine import TrainEngine
        from learner.distributed.worker import RankWorker

        RankWorker(publish=id).join(rank, ranks, address, "cpu", 600.0)
        found = []
        for case in cases:
            module = torch.nn.Linear(4, 1, bias=False, dtype=torch.bfloat16)
            options = LearnerConfig(ranks=ranks, max_grad_norm=1e9, **case)
            engine = TrainEngine(module, [list(module.parameters())], options, torch.bfloat16)
            for _ in range(PASSES):
                output = engine(torch.ones(1, 4, dtype=torch.bfloat16))
                engine.backward(output.sum() * SIZE / ranks, output)  # this rank's part of the global mean
            norm, applied = engine.step([1e-3])
            assert applied
            found.append(norm)
        return found


@pytest.mark.parametrize("ranks", [1, 2])
def test_many_small_gradients_add_up_in_bf16(ranks: int) -> None:
    """288 / 256 = 1.125 for each of 4 weights: norm 2.25. A bf16 sum stays at 1, where 1/256 is half of its last place: norm 2."""
    cases: list[dict[str, Any]] = [{"zero_stage": stage} for stage in range(4)]
    cases += [{"zero_stage": stage, "offload": True} for stage in (1, 2, 3)]
    environment = {"env_vars": rank_environment("cpu", 1)}
    remote = ray.remote(Accumulator).options(num_cpus=0, runtime_env=environment)
    actors = [remote.remote() for _ in range(ranks)]
    try:
        address = ray.get(actors[0].address.remote())
        calls = [actor.norms.remote(rank, ranks, address, cases) for rank, actor in enumerate(actors)]
        for norms in ray.get(calls, timeout=600):
            assert norms == pytest.approx([2.25] * len(cases), rel=1e-6)
    finally:
        for actor in actors:
            ray.kill(actor)
