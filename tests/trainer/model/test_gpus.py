"""The memory plan of the GPUs, by hand, for Qwen2.5-7B on 8 GPUs of 80 GiB."""

import json
from pathlib import Path
from typing import Any

import pytest

import launch
from core.config import ResolvedConfig
from core.errors import ConfigError
from core.load import parse_config
from core.machine import Machine
from tasks.limits import TokenLimits
from trainer.model.automatic import resolved
from trainer.model.files import ModelInfo
from trainer.model.gpus import CONTEXT_GIB, ENGINE_GIB, cache_tokens, describe_gpus, gpu_plan, planned_gpus

BILLION = ModelInfo(
    "Qwen2ForCausalLM",
    context=32_768,
    vocabulary=152_064,
    parameters=2**33,  # 16 GiB in bfloat16
    dtype="bfloat16",
    layers=28,
    hidden=3584,
    intermediate=18_944,
    key_value_width=512,
)
PAIRS: dict[str, Any] = {
    "model": {"path": "owner/name"},
    "rollout": {"actors": 8},
    "learner": {"ranks": 8, "zero_stage": 3, "value_model": "shared", "gradient_checkpointing": True},
    "algorithm": {"kl_coefficient": 0.01},
}


def planned(memory: float = 80.0, critic: str = "shared", **sections: dict[str, Any]) -> ResolvedConfig:
    asked = parse_config(PAIRS | {name: PAIRS.get(name, {}) | fields for name, fields in sections.items()}, "test")
    found, _ = resolved(asked, BILLION, TokenLimits(1024, 1024), 0, Machine(64, 1024.0), "cuda")
    return planned_gpus(asked, found, BILLION, critic, memory)


def test_a_pair_shares_a_gpu_in_every_phase() -> None:
    config = planned()
    # ZeRO 3 on 8 ranks: 18 x 8 GiB / 8 = 18; the reference 16 on each; 80 - 5 % - 34.7 = 41.3 for the engine
    assert config.rollout.gpu_memory_share == 0.51
    assert config.rollout.sleep
    phases = gpu_plan(config, BILLION, "shared", 80.0)
    assert phases["generate"] == {
        "CUDA": CONTEXT_GIB,
        "trained models": pytest.approx(18.0),
        "reference": pytest.approx(16.0),
        "engine": pytest.approx(0.51 * 80.0),
    }
    assert phases["update"]["engine"] == ENGINE_GIB  # it sleeps
    assert phases["broadcast"]["copy of the weights"] == pytest.approx(16.0)
    assert phases["broadcast"]["engine"] == pytest.approx(16.0 + ENGINE_GIB)
    # 2 x 28 x 512 x 2 bytes = 57,344 of a token; 40.8 - 2 - 16 = 22.8 GiB hold 426,920
    assert cache_tokens(config, BILLION, 80.0) == pytest.approx(426_920, rel=1e-3)
    assert "memory plan of each of 8 GPUs" in describe_gpus(config, BILLION, "shared", 80.0)


def test_a_share_that_is_given_stays_and_an_unknown_memory_is_not_planned() -> None:
    assert planned(rollout={"gpu_memory_share": 0.45}).rollout.gpu_memory_share == 0.45
    assert planned(memory=0.0).rollout.gpu_memory_share == 0.4


def test_a_cache_of_a_given_size_is_planned_as_it_is() -> None:
    config = planned(rollout={"gpu_memory_share": 0.02, "engine_options": {"kv_cache_memory_bytes": 2 * 2**30}})
    assert gpu_plan(config, BILLION, "shared", 80.0)["generate"]["engine"] == pytest.approx(2.0 + 16.0 + ENGINE_GIB)
    assert cache_tokens(config, BILLION, 80.0) == 2 * 2**30 // 57_344


def test_engines_of_an_asynchronous_run_have_their_own_gpus_and_never_sleep() -> None:
    config = planned(rollout={"max_staleness": 1})
    assert (config.rollout.sleep, config.rollout.gpu_memory_share) == (False, 0.85)
    assert set(gpu_plan(config, BILLION, "shared", 80.0)["engine"]) == {"engine"}
    shared = planned(memory=140.0, rollout={"max_staleness": 1}, cluster={"colocate": True})
    assert "engine" in gpu_plan(shared, BILLION, "shared", 140.0)["update"]
    assert not shared.rollout.sleep


@pytest.mark.parametrize(
    ("memory", "sections", "named"),
    [
        (40.0, {}, r"broadcast.*learner\.offload"),
        (80.0, {"rollout": {"gpu_memory_share": 0.9}}, r"generate.*rollout\.gpu_memory_share"),
        (80.0, {"rollout": {"gpu_memory_share": 0.2}}, r"KV cache"),
        (80.0, {"learner": {"zero_stage": 2}}, r"learner\.zero_stage to 3"),
        (60.0, {}, r"broadcast.*learner\.transport"),
        (60.0, {"cluster": {"colocate": False}, "learner": {"zero_stage": 2}}, r"broadcast.*zero_stage"),
        (24.0, {"cluster": {"colocate": False}, "rollout": {"gpu_memory_share": 0.5}}, r"update|tensor_parallel"),
    ],
)
def test_what_cannot_fit_is_refused_with_the_fields_to_change(
    memory: float, sections: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        planned(memory, **sections)


def test_an_evaluation_needs_room_for_its_engines_alone() -> None:
    apart: dict[str, Any] = {"rollout": {}, "learner": {}, "cluster": {"colocate": False}}
    asked = parse_config(PAIRS | apart, "test")
    found, _ = resolved(asked, BILLION, TokenLimits(1024, 1024), 0, Machine(64, 1024.0), "cuda")
    with pytest.raises(ConfigError, match="update"):  # 18 x 8 GiB of one model
        planned_gpus(asked, found, BILLION, "shared", 80.0)
    assert planned_gpus(asked, found, BILLION, "shared", 80.0, training=False) == found
    with pytest.raises(ConfigError, match="KV cache"):
        planned_gpus(asked, found, BILLION, "shared", 20.0, training=False)


def test_check_plans_for_another_machine_from_config_json_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launch.signal.signal", lambda *_: None)
    shape = {"hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 2}
    model = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": 32_000, "dtype": "bfloat16"}
    (tmp_path / "config.json").write_text(json.dumps(model | shape | {"intermediate_size": 4096}))
    command = ["check", "--offline", "--task.name=sums", "--model.path", str(tmp_path), "--gpus", "8"]
    pairs = ["--rollout.actors", "4", "--learner.ranks", "4"]
    assert launch.main([*command, *pairs, "--cluster.gpu_memory", "24"]) == 0
    said = capsys.readouterr().out
    assert "memory plan of each of 4 GPUs" in said
    assert "4 of 8 GPUs stay idle" in said
    assert launch.main([*command, *pairs, "--cluster.gpu_memory", "1"]) == 2
    assert "a GPU of 1.0 GiB" in capsys.readouterr().err
    assert launch.main([*command, "--rollout.actors", "9", "--learner.ranks", "9", "--cluster.gpu_memory", "24"]) == 2
    assert "9 GPUs" in capsys.readouterr().err
