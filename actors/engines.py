"""Builds the engine of a rollout actor. Invariants: weights change between two steps only; a token's log-probability is
that of the distribution it was drawn from, and its version names the weights; sample i of a start is drawn with
`derive(start.seed, i)`. Only with vLLM on CPU do a batch's other samples not change it (order of sums, near ties)."""

from actors.jobs import Engine
from actors.turns import TurnsEngine
from actors.vllm_engine import VllmEngine
from core.config import Device, RolloutConfig
from core.tools import TokenTool, load_tool


def build_engine(model_path: str, config: RolloutConfig, *, dtype: str, device: Device, seed: int, name: str) -> Engine:
    """Load a model. `seed`: for numbers that no sample's own seed gives. Raises ModelError, ConfigError."""
    engine = VllmEngine(model_path, config, dtype=dtype, device=device, seed=seed, name=name)
    if not config.tool:
        return engine
    from transformers import AutoTokenizer

    return TurnsEngine(engine, TokenTool(load_tool(config.tool), AutoTokenizer.from_pretrained(model_path)))
