"""Tiny models and one engine of each kind for the whole session, in processes of their own (vLLM alters its process)."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from core.config import RolloutConfig
from tests.actors import models

CONFIG = RolloutConfig(
    actors=2, max_prompt_tokens=48, max_response_tokens=48, max_running=64, kv_cache_gib=0.05, threads=1, deadline=120.0
)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], Path]:
    """Directory of a tiny random Qwen2 with tied or untied embeddings, built once."""
    built: dict[bool, Path] = {}

    def get(tied: bool) -> Path:
        if tied not in built:
            built[tied] = models.build(tmp_path_factory.mktemp("model"), tied)
        return built[tied]

    return get


@pytest.fixture(scope="session")
def vllm_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """vLLM's cache, empty as on a first start."""
    return tmp_path_factory.mktemp("vllm")


@pytest.fixture(scope="session")
def vllm_engines(ray_cluster: None, tiny_model: Callable[[bool], Path], vllm_cache: Path) -> Iterator[dict[bool, Any]]:
    """vLLM in a rollout actor for tied and in one for untied embeddings."""
    yield from start(tiny_model, "vllm", vllm_cache)


@pytest.fixture(scope="session")
def hf_engines(ray_cluster: None, tiny_model: Callable[[bool], Path], vllm_cache: Path) -> Iterator[dict[bool, Any]]:
    """The same with plain transformers."""
    yield from start(tiny_model, "hf", vllm_cache)


@pytest.fixture(params=["vllm", "hf"])
def engines(request: pytest.FixtureRequest) -> dict[bool, Any]:
    """The rollout actors of either engine: what holds for one holds for the other."""
    found: dict[bool, Any] = request.getfixturevalue(f"{request.param}_engines")
    return found


def start(tiny_model: Callable[[bool], Path], engine: str, cache: Path) -> Iterator[dict[bool, Any]]:
    """Rollout actors for tied and for untied embeddings, started at the same time."""
    import ray

    from actors.handle import EngineRecipe

    config = CONFIG.model_copy(update={"engine": engine})
    actors, ready = {}, []
    for tied in (True, False):
        recipe = EngineRecipe(str(tiny_model(tied)), config, "float32", "cpu", seed=0, cpus=0.25)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("VLLM_CACHE_ROOT", str(cache))
            actors[tied] = recipe.create(f"{engine}-{tied}", 0)
        ready.append(recipe.start(actors[tied]))
    ray.get(ready, timeout=500)
    yield actors
    for actor in actors.values():
        ray.kill(actor)
