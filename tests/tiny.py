"""Tiny models of random weights, as folders of Hugging Face."""

from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

SMALLEST = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
}


def save_qwen2(folder: Path, vocabulary: int, kind: Any = Qwen2ForCausalLM, seed: int = 0, **fields: Any) -> Path:
    """A Qwen2 of the class `kind`. `fields`: of its configuration, where they are not the smallest."""
    torch.manual_seed(seed)
    kind(Qwen2Config(vocab_size=vocabulary, **SMALLEST | fields)).save_pretrained(folder)
    return folder
