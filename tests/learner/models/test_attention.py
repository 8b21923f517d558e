"""Lines of prefix trees give the numbers and gradients of their rows read one by one, in every kind of model."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from bench.gpu.attention import CASES, MOST, errors
from core.errors import ModelError
from learner.models import attention
from learner.models.adapters import Lora
from learner.models.attention import SCORES, BlockAttention, line_on
from learner.models.pretrained import (
    PolicyModel,
    SharedModel,
    ValueModel,
    check_trainable,
    load_policy,
    load_shared,
    load_value,
    recompute_activations,
)
from learner.packing.micro_batches import Row, micro_batch

CPU = torch.device("cpu")
Tiny = Callable[[bool], Path]


@st.composite
def forests(draw: st.DrawFn) -> list[Row]:
    """Rows that begin alike: each begins as an earlier one does up to some token. Contexts and a tool's tokens differ,
    so a token may be scored in some of its rows only."""
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    rows = [rng.integers(0, 64, draw(st.integers(2, 20))).astype(np.int32)]
    for _ in range(draw(st.integers(0, 7))):
        base = rows[draw(st.integers(0, len(rows) - 1))]
        kept = draw(st.integers(0, len(base)))
        rows.append(
            np.concatenate([base[:kept], rng.integers(0, 64, max(2 - kept, draw(st.integers(0, 12))))]).astype(np.int32)
        )
    contexts = [draw(st.integers(1, len(row) - 1)) for row in rows]
    masks = [rng.random(len(row) - context) < 0.7 for row, context in zip(rows, contexts, strict=True)]
    for mask in masks:
        mask[-1] = True  # the policy's, as in every trajectory
    gaps = draw(st.booleans())
    return [Row(*one) if gaps else Row(*one[:2]) for one in zip(rows, contexts, masks, strict=True)]


def results(models: list[PolicyModel | ValueModel], groups: list[list[Row]]) -> tuple[Tensor, Tensor]:
    """Log-probabilities, entropies and values [3, N], and the gradient of a function of all of them."""
    outputs = []
    for model in models:
        model.zero_grad()
    for group in groups:
        line, found = line_on(micro_batch(group), CPU), []
        for model in models:
            found += [model(line)] if isinstance(model, ValueModel) else list(model(line, 0.7))
        sum((numbers.square() * (number + 1)).sum() for number, numbers in enumerate(found)).backward()
        outputs.append(torch.stack(found).detach())
    gradients = [p.grad.flatten() for model in models for p in model.parameters() if p.grad is not None]
    return torch.cat(outputs, dim=1), torch.cat(gradients)


@pytest.fixture(scope="module", params=["separate", "shared", "lora", "recomputed"])
def models(request: pytest.FixtureRequest, tiny_model: Tiny) -> list[PolicyModel | ValueModel]:
    """Policy and critic, or one model of both."""
    path, lora = tiny_model(True), Lora(rank=4, alpha=8) if request.param == "lora" else None
    if request.param in ("shared", "recomputed"):
        made: list[PolicyModel | ValueModel] = [load_shared(path, torch.float32)]
    else:
        made = [load_policy(path, torch.float32, lora), load_value(path, torch.float32, lora)]
    torch.manual_seed(0)
    for model in made:
        if isinstance(model, ValueModel | SharedModel):
            torch.nn.init.normal_(model.head.weight, std=0.3)
        for parameter in model.parameters() if lora else ():
            if parameter.requires_grad:
                torch.nn.init.normal_(parameter, std=0.1)
        if request.param == "recomputed":
            recompute_activations(model)
    return made


@settings(max_examples=15, deadline=None)
@given(forests())
def test_trees_give_the_numbers_and_gradients_of_single_rows(
    models: list[PolicyModel | ValueModel], rows: list[Row]
) -> None:
    (whole, gradient), (single, expected) = results(models, [rows]), results(models, [[row] for row in rows])
    assert float((whole - single).norm() / single.norm()) < 4e-6  # rounding of float32
    assert float((gradient - expected).norm() / expected.norm()) < 4e-6


def test_single_rows_are_those_of_hugging_face(tiny_model: Tiny) -> None:
    """With its own attention, without trees."""
    rows = [np.array([5, 6, 7, 8], np.int32), np.array([5, 6, 9], np.int32)]
    plain = AutoModelForCausalLM.from_pretrained(tiny_model(False), dtype=torch.float32).eval()
    with torch.no_grad():
        logprobs, _ = load_policy(tiny_model(False), torch.float32)(
            line_on(micro_batch([Row(row, 1) for row in rows]), CPU), 1.0
        )
        expected = [
            torch.log_softmax(plain(torch.from_numpy(row.astype(np.int64))[None]).logits[0], -1) for row in rows
        ]
    chosen = [
        float(logs[t, int(row[t + 1])]) for row, logs in zip(rows, expected, strict=True) for t in range(len(row) - 1)
    ]
    assert logprobs.tolist() == pytest.approx(chosen, abs=1e-5)


def test_a_sliding_window_counts_tokens_of_the_row(tmp_path: Path, tiny_model: Tiny) -> None:
    config = AutoConfig.from_pretrained(tiny_model(True))
    sliding = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0, "layer_types": None}
    Qwen2ForCausalLM(Qwen2Config(**config.to_dict() | sliding)).save_pretrained(tmp_path)
    rng = np.random.default_rng(0)
    base = rng.integers(0, 64, 12).astype(np.int32)
    rows = [base, np.concatenate([base[:8], base[:5]])]
    plain = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    whole = Qwen2ForCausalLM.from_pretrained(
        tmp_path, use_sliding_window=False, layer_types=["full_attention"] * 2
    ).eval()
    with torch.no_grad():
        logprobs, _ = load_policy(tmp_path, torch.float32)(
            line_on(micro_batch([Row(row, 11) for row in rows]), CPU), 1.0
        )
        logits, other = (model(torch.from_numpy(base.astype(np.int64))[None]).logits[0, 10] for model in (plain, whole))
    assert float(logprobs[0]) == pytest.approx(float(torch.log_softmax(logits, -1)[int(base[11])]), abs=1e-5)
    assert float((logits - other).abs().max()) > 1e-3  # the window changes something


@settings(max_examples=10, deadline=None)
@given(rows=forests(), window=st.sampled_from([None, 3]))
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_the_block_mask_of_gpus_shows_what_the_branches_of_cpus_show(rows: list[Row], window: int | None) -> None:
    """FlexAttention computed as it is defined, not compiled; its gradient exists on GPUs only."""
    batch = micro_batch(rows)
    line = line_on(batch, CPU)
    query, key, value = torch.randn(3, 1, 4, len(batch.tokens), 8)
    with torch.compiler.set_stance("force_eager"), torch.no_grad():
        found = BlockAttention(batch.depths, CPU)(query, key[:, :2], value[:, :2], 0.3, window)
    torch.testing.assert_close(
        found, line.attention(query, key[:, :2], value[:, :2], 0.3, window), atol=1e-5, rtol=1e-5
    )


@settings(max_examples=15, deadline=None)
@given(rows=forests(), window=st.sampled_from([None, 3]), scores=st.sampled_from([1, 500, SCORES]))
def test_bfloat16_gives_the_numbers_and_gradients_of_float32(rows: list[Row], window: int | None, scores: int) -> None:
    """Up to rounding: bfloat16 has 8 bits. However many rows are read at once."""
    line = line_on(micro_batch(rows), CPU)
    torch.manual_seed(0)
    half = [torch.randn(1, heads, len(line.tokens), 8).bfloat16().requires_grad_() for heads in (4, 2, 2)]
    whole = [tensor.detach().float().requires_grad_() for tensor in half]
    with patch.object(attention, "SCORES", scores):
        found, expected = (line.attention(query, key, value, 0.3, window) for query, key, value in (half, whole))
        upstream = torch.randn_like(expected)
        ours = [found.detach(), *torch.autograd.grad(found, half, upstream.bfloat16())]
    theirs = [expected.detach(), *torch.autograd.grad(expected, whole, upstream)]
    for rounded, exact in zip(ours, theirs, strict=True):
        assert rounded.dtype is torch.bfloat16
        assert float((rounded.float() - exact).norm()) < 0.01 * float(exact.norm()) + 1e-3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="FlexAttention is compiled for GPUs only")
@pytest.mark.parametrize(("dtype", "window"), CASES)
def test_flex_attention_gives_the_numbers_and_gradients_of_the_branches(dtype: torch.dtype, window: int | None) -> None:
    assert max(errors(dtype, window)) < MOST


def test_tokens_of_other_rows_are_unseen(tiny_model: Tiny) -> None:
    """A change in one branch leaves the others' numbers as they were, bit for bit; without depths it would not."""
    policy = load_policy(tiny_model(True), torch.float32)
    rows = [np.array([1, 2, 3, 4, 5], np.int32), np.array([1, 2, 6, 7], np.int32)]
    changed = [np.array([1, 2, 3, 4, 60], np.int32), rows[1]]
    blind = replace(micro_batch([Row(row, 3) for row in changed]), depths=np.arange(7))
    with torch.no_grad():
        first, second = (
            policy(line_on(micro_batch([Row(row, 3) for row in two]), CPU), 1.0)[0] for two in (rows, changed)
        )
        wrong = policy(line_on(blind, CPU), 1.0)[0]
    assert first[2:].tolist() == second[2:].tolist()
    assert float((wrong - second)[2:].abs().max()) > 1e-3


REFUSED = [
    ("mamba", {}, "MambaForCausalLM"),
    ("falcon", {}, "FalconForCausalLM"),
    ("bloom", {}, "BloomForCausalLM"),
    ("stablelm", {}, "StableLmForCausalLM"),
    ("gemma2", {}, "final_logit_softcapping"),
    ("gemma2", {"final_logit_softcapping": None}, "attn_logit_softcapping"),
    ("cohere", {}, "logit_scale"),
    ("granite", {"logits_scaling": 8.0}, "logits_scaling"),
    ("gpt_oss", {}, "sinks"),
    ("llama4_text", {}, "chunked_attention"),
    ("deepseek_v2", {}, "compressed"),
    ("llama", {"quantization_config": {"quant_method": "gptq", "bits": 4}}, r"quantised \(gptq\)"),
    ("mixtral", {}, "the weights of its experts"),
    ("ernie4_5_moe", {}, "the weights of its experts"),
    ("lfm2", {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]}, "conv"),
]


@pytest.mark.parametrize(("family", "fields", "named"), REFUSED)
def test_a_model_that_cannot_be_trained_is_refused_by_its_configuration(
    tmp_path: Path, family: str, fields: dict[str, object], named: str
) -> None:
    CONFIG_MAPPING[family](**fields).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=named):
        check_trainable(tmp_path, lora=False)
    with pytest.raises(ModelError, match=named):
        load_policy(tmp_path, torch.float32)  # before it looks for the weights


TRAINED = "gemma3_text gpt2 gpt_neox llama mistral olmo2 olmoe opt phi phi3 qwen3 qwen3_moe smollm3 starcoder2"


@pytest.mark.parametrize("family", TRAINED.split())
def test_families_of_models_read_prefix_trees_as_they_read_rows(tmp_path: Path, family: str) -> None:
    usual = CONFIG_MAPPING[family]()
    small: dict[str, object] = {name: size for name, size in SMALL.items() if hasattr(usual, name)}
    if getattr(usual, "layer_types", None):
        small["layer_types"] = [usual.layer_types[0], usual.layer_types[-1]]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        CONFIG_MAPPING[family](**small), dtype=torch.float32, attn_implementation="eager"
    ).eval()
    model.save_pretrained(tmp_path)
    check_trainable(tmp_path, lora=False)
    first = np.arange(3, 20, dtype=np.int32)
    rows = [Row(first, 2), Row(np.concatenate([first[:7], np.array([50, 60, 40], np.int32)]), 3)]
    with torch.no_grad():
        found = load_policy(tmp_path, torch.float32)(line_on(micro_batch(rows), CPU), 1.0)[0]
        read = [
            torch.log_softmax(model(torch.from_numpy(row.tokens[None].astype(np.int64))).logits[0], -1) for row in rows
        ]
    expected = [
        float(logprobs[at - 1, int(row.tokens[at])])
        for row, logprobs in zip(rows, read, strict=True)
        for at in range(row.context, len(row.tokens))
    ]
    torch.testing.assert_close(found, torch.tensor(expected), atol=1e-5, rtol=1e-5)


SMALL = dict.fromkeys(("hidden_size", "n_embd", "word_embed_proj_dim"), 64)
SMALL |= dict.fromkeys(("intermediate_size", "ffn_dim", "moe_intermediate_size"), 32)
SMALL |= dict.fromkeys(("num_attention_heads", "n_head", "num_experts", "num_local_experts"), 4)
SMALL |= dict.fromkeys(("num_hidden_layers", "n_layer", "num_key_value_heads", "num_experts_per_tok"), 2)
SMALL |= {"vocab_size": 64, "head_dim": 16, "query_pre_attn_scalar": 16, "bos_token_id": 1, "eos_token_id": 2}
SMALL |= {"pad_token_id": 0, "max_position_embeddings": 128, "n_positions": 128}
