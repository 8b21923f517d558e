"""Places pairs of engines and learner ranks on a Ray of `NODES` nodes with `GPUS` pretended GPUs each, and prints what
each process sees as JSON: [[node, GPU of the engine, node, GPU of the rank], ...]. A script: it needs a Ray of its own.
"""

import json
import os
import sys
from typing import Any

from trainer import cluster  # isort: skip (sets the environment that Ray reads)

import ray
from ray.cluster_utils import Cluster

from actors.handle import EngineSpec
from core.config import ResolvedRollout
from core.load import parse_config
from core.plan import gpus_each, placement
from core.startup import RANK, in_group


class Rank:
    """In the place of a learner rank, which would import DeepSpeed."""

    def gpu(self) -> tuple[str, str]:
        """Its node and what it may see."""
        return ray.get_runtime_context().get_node_id(), os.environ["CUDA_VISIBLE_DEVICES"]


def seen(actor: Any) -> tuple[str, str]:
    """The same of a rollout actor."""
    del actor
    return ray.get_runtime_context().get_node_id(), os.environ["CUDA_VISIBLE_DEVICES"]


def main(nodes: int, gpus: int) -> None:
    """Start, place, print."""
    simulated = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 2 * gpus, "num_gpus": gpus, "include_dashboard": False}
    )
    for _ in range(nodes - 1):
        simulated.add_node(num_cpus=2 * gpus, num_gpus=gpus)
    ray.init(address=simulated.address, namespace="pairs", log_to_driver=False)
    pairs = nodes * gpus
    config = parse_config({"rollout": {"actors": pairs}, "learner": {"ranks": pairs}}, "test")
    cluster.reserve(placement(config, "cuda"), 60.0)
    of_engine, of_rank = gpus_each(config, "cuda")
    sizes = ResolvedRollout(max_prompt_tokens=8, max_response_tokens=8, max_running=8)
    spec = EngineSpec("nothing", sizes, "float32", "cuda", seed=0, cpus=1.0, gpus=of_engine)
    kind = ray.remote(Rank)
    engines = [spec.create(f"rollout-{index}", index) for index in range(pairs)]
    ranks = [kind.options(num_cpus=1.0, num_gpus=of_rank, **in_group(RANK, index)).remote() for index in range(pairs)]
    at_engines = ray.get([engine.__ray_call__.remote(seen) for engine in engines], timeout=300)
    at_ranks = ray.get([rank.gpu.remote() for rank in ranks], timeout=300)
    print(json.dumps([[*engine, *rank] for engine, rank in zip(at_engines, at_ranks, strict=True)]))
    ray.shutdown()
    simulated.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
