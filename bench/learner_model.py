"""The random Qwen2 that the learner's benchmarks work on. Called by `bench.learner` and its parts."""

from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True, slots=True)
class Shape:
    """A Qwen2 with tied embeddings."""

    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    key_value_heads: int


STARTER = Shape(2048, hidden=128, intermediate=512, layers=4, heads=4, key_value_heads=4)
"""The default starter's."""
WORDS = Shape(151_936, hidden=64, intermediate=256, layers=2, heads=4, key_value_heads=4)
"""Qwen2's vocabulary on next to nothing: its logits are all the memory."""


def build_model(path: Path, shape: Shape, dtype: torch.dtype = torch.float32) -> int:
    """Save a random Qwen2; returns its number of parameters."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_value_heads,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        eos_token_id=0,
        bos_token_id=None,
    )
    model = Qwen2ForCausalLM(config).to(dtype)
    model.save_pretrained(path)
    return int(model.num_parameters())
