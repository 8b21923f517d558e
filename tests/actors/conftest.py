"""Tiny models, and engines for many tests, in processes of their own (vLLM alters its process)."""

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from core.config import ResolvedRollout
from tests.actors import models

if TYPE_CHECKING:
    from actors.pool import RolloutPool

QUARANTINED: list[tuple[str, str]] = []
"""Starts that `pool` left out, and why."""
CONFIG = ResolvedRollout(
    actors=2, max_prompt_tokens=48, max_response_tokens=48, max_running=64, kv_cache_gib=0.05, threads=1
)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], Path]:
    """Directory of a tiny random Qwen2 with tied or untied embeddings, built once."""
    return cache(lambda tied: models.build(tmp_path_factory.mktemp("model"), tied))


@pytest.fixture(scope="session")
def vllm_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """vLLM's cache, empty as on a first start."""
    return tmp_path_factory.mktemp("vllm")


@pytest.fixture(scope="session")
def engines(ray_cluster: None, tiny_model: Callable[[bool], Path], vllm_cache: Path) -> Iterator[dict[bool, Any]]:
    """A rollout actor for tied and one for untied embeddings, started at the same time."""
    import ray

    from actors.handle import EngineSpec

    actors, ready = {}, []
    for tied in (True, False):
        spec = EngineSpec(str(tiny_model(tied)), CONFIG, "float32", "cpu", seed=0, cpus=0.25)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("VLLM_CACHE_ROOT", str(vllm_cache))
            actors[tied] = spec.create(f"engine-{tied}", 0)
        ready.append(spec.start(actors[tied]))
    ray.get(ready, timeout=500)
    yield actors
    for actor in actors.values():
        ray.kill(actor)


@pytest.fixture(scope="module")  # other modules have pools with actors of these names
def pool(ray_cluster: None, tiny_model: Callable[[bool], Path]) -> Iterator["RolloutPool"]:
    """One engine, which many tests end."""
    from actors.handle import EngineSpec
    from actors.pool import RolloutPool

    config = CONFIG.model_copy(update={"actors": 1, "max_restarts": 100})
    spec = EngineSpec(str(tiny_model(True)), config, "float32", "cpu", seed=0, cpus=0.5)
    with closing(RolloutPool(spec, lambda start, reason: QUARANTINED.append((start.id, reason)))) as pool:
        yield pool
