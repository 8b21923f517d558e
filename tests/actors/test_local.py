"""An engine in the learner's process."""

import subprocess
import sys
from pathlib import Path

import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from tests.actors.models import EOS, VOCABULARY
from tests.whole_runs import ROOT, environment

CODE = """
import sys
from actors.vllm_setup import environment, keep_model_classes
import os
os.environ.update(environment("cpu", 1))
keep_model_classes()
from actors.vllm_engine import VllmEngine
from core.config import ResolvedRollout
config = ResolvedRollout(actors=1, max_prompt_tokens=16, max_response_tokens=16, max_running=4, kv_cache_gib=0.05)
VllmEngine(sys.argv[1], config, dtype="float32", device="cpu", seed=0)
import torch
from transformers import AutoModelForCausalLM
print(AutoModelForCausalLM.from_pretrained(sys.argv[1])(torch.tensor([[1, 2, 3]])).logits.shape)
"""


def test_the_learner_has_the_class_of_a_model_that_vllm_runs_by_transformers(tmp_path: Path) -> None:
    """Of GPT-NeoX (Pythia) vLLM has no class of its own."""
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = GPTNeoXConfig(vocab_size=VOCABULARY, max_position_embeddings=64, eos_token_id=EOS, **sizes)
    GPTNeoXForCausalLM(config).to(torch.float32).save_pretrained(tmp_path)
    command = [sys.executable, "-c", CODE, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    assert f"[1, 3, {VOCABULARY}]" in done.stdout, done.stderr


EXPERTS = """
import os, sys
from actors.vllm_setup import environment
os.environ.update(environment("cpu", 1))
import numpy as np
from actors.vllm_engine import VllmEngine
from core.config import ResolvedRollout
from tests.actors import models
from transformers import AutoModelForCausalLM
config = ResolvedRollout(actors=1, max_prompt_tokens=16, max_response_tokens=16, max_running=4, kv_cache_gib=0.05)
engine = VllmEngine(sys.argv[1], config, dtype="float32", device="cpu", seed=0)
model, ids = AutoModelForCausalLM.from_pretrained(sys.argv[1]), np.arange(1, 15, dtype=np.int32)
for version in (1, 2):
    for weight in model.parameters():
        weight.data *= 1.1
    engine.load_weights(models.weights(model, version))
    gap = np.abs(models.logprobs(model, ids) - engine.sequence_logprobs([ids])[0]).max()
    assert gap < 1e-4, gap
print("same")
"""


def test_experts_are_those_of_the_last_update(tmp_path: Path) -> None:
    """vLLM 0.32 on CPU packs experts only while they have no kernel."""
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    experts = {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 2}
    config = Qwen3MoeConfig(
        vocab_size=VOCABULARY, max_position_embeddings=64, eos_token_id=EOS, head_dim=32, **sizes, **experts
    )
    Qwen3MoeForCausalLM(config).to(torch.float32).save_pretrained(tmp_path)
    command = [sys.executable, "-c", EXPERTS, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    assert "same" in done.stdout, done.stderr
