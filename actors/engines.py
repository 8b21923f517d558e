"""Builds the engine of a rollout actor: `actors/vllm_engine.py`, and around it `actors/turns.py` where there is a tool.
Invariants:

- Weights change between two steps only.
- A token's log-probability is that of the distribution it was drawn from, and its version names the weights that drew
  it.
- Sample i of a start is drawn with `derive(start.seed, i)` from its context and the weights. With vLLM on CPU the other
  samples of a batch do not change it. Elsewhere they change the order of sums, so that a near tie may be decided
  differently.
"""

from actors.jobs import Engine
from actors.turns import TurnsEngine
from actors.vllm_engine import VllmEngine
from core.config import Device, RolloutConfig
from core.tools import TokenTool, load_tool


def build_engine(model_path: str, config: RolloutConfig, *, dtype: str, device: Device, seed: int, name: str) -> Engine:
    """Load a model. `seed`: for random numbers that do not come from a sample's own seed. Raises ModelError,
    ConfigError."""
    engine = VllmEngine(model_path, config, dtype=dtype, device=device, seed=seed, name=name)
    if not config.tool:
        return engine
    from transformers import AutoTokenizer

    return TurnsEngine(engine, TokenTool(load_tool(config.tool), AutoTokenizer.from_pretrained(model_path)))
