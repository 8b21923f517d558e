"""The random Qwen2 models of the benchmarks."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from transformers import Qwen2ForCausalLM


@dataclass(frozen=True, slots=True)
class Shape:
    """A Qwen2 with tied embeddings."""

    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    key_value_heads: int


def build_model(path: Path, shape: Shape, dtype: "torch.dtype | None" = None) -> "Qwen2ForCausalLM":
    """Save a random model of this shape (`dtype`: float32 if none is given) and return it. Token 0 ends a text."""
    import torch
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
    model = Qwen2ForCausalLM(config).to(dtype or torch.float32)
    model.save_pretrained(path)
    return model
