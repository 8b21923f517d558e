"""The engine that `rollout.engine` names. Called wherever an engine is made: `actors/actor.py`, `trainer/build.py`."""

from actors.base import Engine
from actors.engine import VllmEngine
from actors.hf_engine import HfEngine
from core.config import Device, RolloutConfig


def build_engine(model_path: str, config: RolloutConfig, *, dtype: str, device: Device, seed: int, name: str) -> Engine:
    """Load a model. `seed`: of what an engine draws beyond the samples' own seeds. Raises ModelError."""
    if config.engine == "hf":
        return HfEngine(model_path, config, dtype=dtype, device=device, name=name)
    return VllmEngine(model_path, config, dtype=dtype, device=device, seed=seed, name=name)
