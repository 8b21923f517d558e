"""A wrong value in config.json of a model: one line that names the file and the field, at once."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from core.errors import ModelError
from learner.models.pretrained import check_trainable
from tests.trainer.model.test_files import save_model
from trainer.model.files import check_value_model, inspect_model

SECONDS = 10.0  # a busy machine; far less than what these sizes would take

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"hidden_size": 65}, "embed_tokens.weight is [8, 16], not [8, 65]"),
    ({"hidden_size": 65, "num_attention_heads": 64}, "config.json"),
    ({"hidden_size": "16"}, "hidden_size = '16'"),
    ({"hidden_size": True}, "hidden_size = True"),
    ({"num_attention_heads": 0}, "num_attention_heads = 0"),
    ({"num_key_value_heads": 0}, "num_key_value_heads = 0"),
    ({"num_key_value_heads": "2"}, "num_key_value_heads = '2'"),
    ({"num_key_value_heads": 3}, "num_key_value_heads"),
    ({"num_key_value_heads": 1}, "k_proj.bias is [16], not [8]"),
    ({"intermediate_size": 0}, "intermediate_size = 0"),
    ({"intermediate_size": 2**40}, "intermediate_size = 1099511627776"),
    ({"head_dim": 0}, "head_dim = 0"),
    ({"head_dim": -8}, "head_dim = -8"),
    ({"head_dim": 31.5}, "head_dim = 31.5"),
    ({"num_hidden_layers": 2**30}, "num_hidden_layers = 1073741824"),
    ({"num_hidden_layers": 2, "layer_types": None}, "is missing"),
    ({"vocab_size": []}, "vocab_size = []"),
    ({"max_position_embeddings": 2**62}, "max_position_embeddings = 4611686018427387904"),
    ({"hidden_act": "sillu"}, "hidden_act = 'sillu'"),
    ({"hidden_act": ["silu"]}, "hidden_act = ['silu']"),
    ({"rms_norm_eps": -1e-6}, "rms_norm_eps = -1e-06"),
    ({"rms_norm_eps": "small"}, "rms_norm_eps = 'small'"),
    ({"rope_parameters": {"rope_type": "odd", "rope_theta": 1e4}}, "rope_parameters.rope_type = 'odd'"),
    ({"rope_parameters": {"rope_type": "default", "rope_theta": 0}}, "rope_parameters.rope_theta = 0"),
    ({"rope_parameters": None, "rope_theta": "many"}, "rope_theta = 'many'"),
    (
        {"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": float("nan")}},
        "rope_scaling.factor = nan",
    ),
    ({"rope_parameters": 3}, "rope_parameters"),
    ({"architectures": 3}, "architectures = 3"),
    ({"architectures": "Qwen2ForCausalLM"}, "architectures = 'Qwen2ForCausalLM'"),
    ({"model_type": "gpt2"}, "is missing"),  # as which it would be made of random weights
]


def checked(folder: Path) -> None:
    """As `check` and `train` begin."""
    inspect_model(str(folder))
    check_trainable(folder, lora=False)


@pytest.mark.parametrize(("changed", "told"), WRONG, ids=str)
def test_a_wrong_field_is_named(
    changed: dict[str, Any], told: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = save_model(tmp_path) / "config.json"
    capfd.readouterr()
    checked(tmp_path)
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))
    begun = time.monotonic()
    with pytest.raises(ModelError) as raised:
        checked(tmp_path)
    assert time.monotonic() - begun < SECONDS
    assert "Loading weights" not in (printed := capfd.readouterr().err)
    assert "REPORT" not in printed
    line = str(raised.value)
    assert "\n" not in line
    assert str(tmp_path) in line
    assert told in line


def test_a_wrong_field_of_the_critic_is_named(tmp_path: Path) -> None:
    policy, critic = save_model(tmp_path / "policy"), save_model(tmp_path / "critic")
    file = critic / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"hidden_act": "sillu"}))
    with pytest.raises(ModelError, match=r"learner\.value_path = .*hidden_act = 'sillu'"):
        check_value_model(str(critic), str(policy))
