"""Tiny random Qwen2 checkpoints and what Hugging Face says of them: the reference of the engine tests."""

from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, Qwen2ForCausalLM

from core.records import FloatArray, IntArray, Start
from core.weights import Weights, pack
from tests.tiny import save_qwen2

VOCABULARY = 300
EOS = 1


def build(directory: Path, tied: bool, seed: int = 0) -> Path:
    """A Qwen2 of 2 layers, width 64, whose next-token distribution is far from uniform."""
    return save_qwen2(
        directory,
        VOCABULARY,
        seed=seed,
        hidden_size=64,  # two heads of 32: the least that vLLM has a CPU kernel for
        intermediate_size=128,
        num_hidden_layers=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
        initializer_range=0.15,
        tie_word_embeddings=tied,
        eos_token_id=EOS,
        bos_token_id=None,
    )


def save_tokenizer(directory: Path) -> list[int]:
    """A tokenizer of single bytes beside the model; returns the ids of "a", "b" and "c"."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast

    names = ["<pad>", "<eos>", *sorted(pre_tokenizers.ByteLevel.alphabet())]  # "<eos>" has number EOS
    tokenizer = Tokenizer(BPE({name: number for number, name in enumerate(names)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>").save_pretrained(directory)
    return [names.index(letter) for letter in "abc"]


def load(directory: Path) -> Qwen2ForCausalLM:
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()


def weights(model: Qwen2ForCausalLM, version: int) -> Weights:
    return pack(model.named_parameters(), version)


def logprobs(model: Qwen2ForCausalLM, sequence: IntArray, temperature: float = 1.0) -> FloatArray:
    """[T - 1] log-probabilities of tokens 1..T-1."""
    ids = torch.from_numpy(sequence.astype(np.int64))[None]
    with torch.no_grad():
        table = torch.log_softmax(model(ids).logits[0, :-1] / temperature, dim=-1)
    return table.gather(1, ids[0, 1:, None])[:, 0].numpy()


def start(index: int, prompt: int = 10, prefix: int = 0, samples: int = 1) -> Start:
    """Start number `index` with random context tokens (never the end of sequence)."""
    random = np.random.default_rng(index)
    draw = random.integers(2, VOCABULARY, prompt + prefix, dtype=np.int32)
    return Start(f"start-{index}", f"problem-{index}", draw[:prompt], draw[prompt:], samples, seed=1000 + index)
