"""Builds the engine that `rollout.engine` names.

Called by `actors/actor.py` and `trainer/build.py`. Engines (`actors.jobs.Engine`) are `actors/vllm_engine.py`, `actors/hf_engine.py` and,
around one of them, `actors/turns.py`. Invariants of all:

- Weights change between two steps only.
- A token's log-probability is that of the distribution it was drawn from, and its version names the weights that drew it.
- Sample i of a start is drawn with `derive(start.seed, i)` from its context and the weights. With vLLM on CPU the other samples of a batch
  do not change it. Elsewhere they change the order of sums, so that a near tie may be decided differently.
"""

from actors.hf_engine import HfEngine
from actors.jobs import Engine
from actors.turns import TurnsEngine
from actors.vllm_engine import VllmEngine
from core.config import Device, RolloutConfig
from core.tools import TokenTool, load_tool


def build_engine(model_path: str, config: RolloutConfig, *, dtype: str, device: Device, seed: int, name: str) -> Engine:
    """Load a model. `seed`: for random numbers that do not come from a sample's own seed. Raises ModelError, ConfigError."""
    engine: Engine
    if config.engine == "hf":
        engine = HfEngine(model_path, config, dtype=dtype, device=device, name=name)
    else:
        engine = VllmEngine(model_path, config, dtype=dtype, device=device, seed=seed, name=name)
    if not config.tool:
        return engine
    from transformers import AutoTokenizer

    return TurnsEngine(engine, TokenTool(load_tool(config.tool), AutoTokenizer.from_pretrained(model_path)))
