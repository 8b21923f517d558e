"""Models in `.gguf` files, on tiny files that the package `gguf` writes."""

import os
import re
import struct
import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from commands.check import check_model_and_data
from core.config import Config
from core.errors import ModelError
from core.load import override
from tests.trainer.model.test_files import text_recipe
from trainer.model import gguf as reader
from trainer.model.files import model_of
from trainer.model.gguf import model_folder

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TOKENS = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), "th", "the", "Ġthe"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
LAYER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
"""Our names of a layer's tensors, and GGUF's."""
OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def tiny_llama() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        rope_theta=5000.0,
        rms_norm_eps=1e-5,
        eos_token_id=2,
    )
    return LlamaForCausalLM(config).eval()


def interleaved(weight: Any, heads: int) -> Any:
    """Rows of q or k in the order of GGUF's Llama: the two halves of each head's rotation alternate."""
    return weight.reshape(heads, 2, len(weight) // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def tensors(model: Any) -> dict[str, Any]:
    """The weights by GGUF's names, in its order of rows."""
    found = {}
    for name, tensor in model.state_dict().items():
        weight, name = tensor.numpy(), name.removesuffix(".weight")
        if name in OUTSIDE:
            found[f"{OUTSIDE[name]}.weight"] = weight
            continue
        number, part = name.removeprefix("model.layers.").split(".", 1)
        heads = {"self_attn.q_proj": 4, "self_attn.k_proj": 2}.get(part)
        found[f"blk.{number}.{LAYER[part]}.weight"] = interleaved(weight, heads) if heads else weight
    return found


def write(
    file: Path, weights: dict[str, Any], kind: Kind = Kind.F32, architecture: str = "llama", tokenizer: bool = True
) -> Path:
    """A GGUF file. Matrices are written as `kind`, vectors in float32, as converters do."""
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_context_length(128)
    writer.add_embedding_length(64)
    writer.add_block_count(2)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(5000.0)
    writer.add_vocab_size(len(TOKENS))
    if tokenizer:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("smollm")
        writer.add_token_list(TOKENS)
        writer.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (len(TOKENS) - 3))
        writer.add_token_merges(["t h", "th e", "Ġ the"])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_chat_template(TEMPLATE)
    for name, weight in weights.items():
        own = kind if weight.ndim == 2 else Kind.F32
        writer.add_tensor(name, gguf.quantize(weight, own), raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def logits(model: Any) -> Any:
    with torch.no_grad():
        return model(torch.tensor([[5, 80, 3, 17, 200, 41]])).logits


@pytest.mark.parametrize(
    ("kind", "saved"),
    [
        (Kind.F32, torch.float32),
        (Kind.F16, torch.float16),
        (Kind.BF16, torch.bfloat16),
        (Kind.Q8_0, torch.bfloat16),
        (Kind.Q4_1, torch.bfloat16),
    ],
)
def test_the_folder_is_the_model_of_the_file(kind: Kind, saved: torch.dtype, tmp_path: Path) -> None:
    source = tiny_llama()
    weights = tensors(source)
    folder = model_folder(str(write(tmp_path / "tiny.gguf", weights, kind)), cache=tmp_path / "cache")
    found = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()
    assert found.dtype == saved
    assert (found.config.num_hidden_layers, found.config.max_position_embeddings) == (2, 128)
    if kind is Kind.F32:
        torch.testing.assert_close(logits(found), logits(source), atol=1e-6, rtol=1e-6)
    for name, weight in tensors(found.float()).items():  # what the file says, rounded once to the saved type
        own = kind if weight.ndim == 2 else Kind.F32
        said = torch.from_numpy(gguf.dequantize(gguf.quantize(weights[name], own), own).copy())
        assert torch.equal(torch.from_numpy(weight.copy()), said.to(saved).float()), name


def test_the_tokenizer_is_that_of_the_file(tmp_path: Path) -> None:
    file = write(tmp_path / "tiny.gguf", tensors(tiny_llama()))
    read = AutoTokenizer.from_pretrained(tmp_path, gguf_file=file.name)
    saved = AutoTokenizer.from_pretrained(model_folder(str(file), cache=tmp_path / "cache"))
    assert saved("the the<|im_end|>").input_ids == [TOKENS.index("the"), TOKENS.index("Ġthe"), 2]
    text = "Tell  me\n\tthe sum of 12 and 30, ü 日<|im_end|>"
    assert saved(text).input_ids == read(text).input_ids
    assert saved.decode(saved(text).input_ids) == text
    said = [{"role": "user", "content": "the end"}]
    assert saved.apply_chat_template(said, tokenize=False) == "<|im_start|>user\nthe end<|im_end|>\n"
    assert saved.apply_chat_template(said) == read.apply_chat_template(said)
    assert (saved.eos_token_id, saved.get_vocab()) == (2, read.get_vocab())


def test_a_file_is_converted_once_and_again_when_it_changes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights, cache = tensors(tiny_llama()), tmp_path / "cache"
    file = write(tmp_path / "tiny.gguf", weights)
    folder = Path(model_folder(str(file), cache=cache))
    assert re.fullmatch(rf"model: {file} converted to {folder} in \d+ s\n", capsys.readouterr().out)
    changed = folder.stat().st_mtime_ns
    assert model_folder(str(file), cache=cache) == str(folder)
    assert capsys.readouterr().out == ""
    assert folder.stat().st_mtime_ns == changed
    weights["output_norm.weight"] = np.full(64, 2.0, np.float32)
    assert model_folder(str(write(file, weights)), cache=cache) != str(folder)


def test_an_interrupted_conversion_leaves_nothing(tmp_path: Path) -> None:
    class Interrupted:
        def save_pretrained(self, folder: Path) -> None:
            assert (folder / "model.safetensors").is_file()
            raise KeyboardInterrupt

    cache = tmp_path / "cache"
    with pytest.raises(KeyboardInterrupt):
        reader._save(tiny_llama(), Interrupted(), cache / "tiny-0123")
    assert list(cache.iterdir()) == []


def test_what_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    weights = tensors(tiny_llama())

    def _told(file: Path) -> str:
        with pytest.raises(ModelError) as error:
            model_folder(str(file), "model.path", tmp_path / "cache")
        line = str(error.value)
        assert line.startswith(f"model.path = {file}: ")
        assert "\n" not in line
        return line.removeprefix(f"model.path = {file}: ")

    whole = write(tmp_path / "whole.gguf", weights).read_bytes()
    cut = tmp_path / "cut.gguf"
    for size in (len(whole) - 100, len(whole) // 2, 5000, 100, 10):  # within the weights, the tokens, the first fields
        cut.write_bytes(whole[:size])
        assert _told(cut).startswith("damaged or incomplete (")
    cut.write_bytes(b"PK\x03\x04" + bytes(1000))
    assert _told(cut) == "not a GGUF file"
    other = write(tmp_path / "other.gguf", weights, architecture="seldom")
    assert "transformers cannot read it: " in _told(other)
    assert "seldom" in _told(other)
    dumb = write(tmp_path / "dumb.gguf", weights, tokenizer=False)
    assert _told(dumb) == "no tokenizer in it; use a file that has one, or a Hugging Face folder"
    del weights["blk.1.ffn_up.weight"]
    assert _told(write(tmp_path / "hole.gguf", weights)) == (
        "no weights for 1 tensors, such as model.layers.1.mlp.up_proj.weight; use a complete file"
    )
    assert _told(tmp_path / "absent.gguf") == "no such file; correct the path"
    assert _told(tmp_path / "SmolLM2-135M-Instruct.Q4_1.gguf") == "no such file; run `make model`, which installs it"
    assert not (tmp_path / "cache").exists()


def test_a_header_that_counts_more_than_the_file_holds(tmp_path: Path) -> None:
    """At once, whatever the count is of, and however many bytes follow: each of them could be an element."""
    u32, u64 = (lambda *n: struct.pack(f"<{len(n)}I", *n)), (lambda *n: struct.pack(f"<{len(n)}Q", *n))
    begin, key = b"GGUF" + u32(3), u64(1) + b"k"
    array, text = u32(gguf.GGUFValueType.ARRAY), u32(gguf.GGUFValueType.STRING)
    headers = {
        "fields": begin + u64(0, 2**40),
        "tensors": begin + u64(2**40, 0),
        "name of a tensor": begin + u64(1, 0, 2**40),
        "dimensions": begin + u64(1, 0) + key + u32(2**32 - 1),
        "key": begin + u64(0, 1, 2**40),
        "text": begin + u64(0, 1) + key + text + u64(2**40),
        "most text": begin + u64(0, 1) + key + text + u64(2**64 - 1),
        "bytes": begin + u64(0, 1) + key + array + u32(gguf.GGUFValueType.UINT8) + u64(2**40),
        "numbers": begin + u64(0, 1) + key + array + u32(gguf.GGUFValueType.FLOAT64) + u64(2**40),
        "texts": begin + u64(0, 1) + key + array + u32(gguf.GGUFValueType.STRING) + u64(2**40),
        "arrays": begin + u64(0, 1) + key + (array + array + u64(2)) + array + u64(2**40),
        "weights": begin + u64(1, 0) + key + u32(1) + u64(2**40) + u32(0) + u64(0),
    }
    for name, header in headers.items():
        for rest in (0, 2**28):  # without blocks on the disk
            file = tmp_path / "counts.gguf"
            file.write_bytes(header)
            os.truncate(file, len(header) + rest)
            begun = time.process_time()
            with pytest.raises(ModelError, match=r"counts\.gguf: damaged or incomplete"):
                reader._check(file, str(file))
            assert time.process_time() - begun < 2.0, name


def test_a_command_takes_the_file_as_any_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = write(tmp_path / "tiny.gguf", tensors(tiny_llama()))
    rows = [{"question": f"{i}+0?", "answer": f"#### {i}"} for i in range(4)]
    fields = ["--model.path", str(file), "--learner.value_path", str(file), "--rollout.max_prompt_tokens", "60"]
    config: Config = override(text_recipe(tmp_path, rows), fields)
    told = check_model_and_data(config)
    assert "model: LlamaForCausalLM, context 128 tokens, vocabulary 262, " in told
    assert "first prompt, as the model reads it: '<|im_start|>user\\n1+0?<|im_end|>\\n'" in told
    folder = model_of(file)
    assert Path(folder).parent == tmp_path / ".cache" / "models"
    assert model_of(Path(folder)) == folder
