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
def engines(ray_cluster: None, tiny_model: Callable[[bool], Path]) -> Iterator[dict[bool, Any]]:
    """A rollout actor for tied and one for untied embeddings, started side by side."""
    import ray

    from actors.slot import EngineRecipe

    actors, ready = {}, []
    for tied in (True, False):
        recipe = EngineRecipe(str(tiny_model(tied)), CONFIG, "float32", "cpu", seed=0, cpus=0.5)
        actors[tied] = recipe.create(f"engine-{tied}")
        ready.append(recipe.start(actors[tied], None))
    ray.get(ready, timeout=120)
    yield actors
    for actor in actors.values():
        ray.kill(actor)
