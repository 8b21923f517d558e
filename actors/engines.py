"""Builds the engine of a rollout actor. Invariants: weights change between two steps only; a token's log-probability is
that of the distribution it was drawn from, and its version names the weights; sample i of a start is drawn with
`derive(start.seed, i)`. Only with vLLM on CPU do a batch's other samples not change it (order of sums, near ties)."""

from actors.episodes import EpisodeEngine
from actors.jobs import Engine
from actors.vllm_engine import VllmEngine
from actors.vllm_setup import stop_tokens
from core.config import Device, ResolvedRollout
from core.environments.turns import TurnTokens
from core.environments.workers import Workers


def build_engine(
    model_path: str, config: ResolvedRollout, *, dtype: str, device: Device, seed: int, name: str
) -> Engine:
    """Load a model. `seed`: for numbers that no sample's own seed gives. Raises ModelError, ConfigError."""
    engine = VllmEngine(model_path, config, dtype=dtype, device=device, seed=seed, name=name)
    if not config.environment:
        return engine
    from transformers import AutoTokenizer

    workers = Workers(config)
    turns = TurnTokens(AutoTokenizer.from_pretrained(model_path), workers.ends, stop_tokens(model_path))
    return EpisodeEngine(engine, workers, turns, config)
