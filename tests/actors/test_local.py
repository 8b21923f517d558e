"""An engine in the learner's process."""

import subprocess
import sys
from pathlib import Path

import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

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
