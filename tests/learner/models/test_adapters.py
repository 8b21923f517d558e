"""LoRA: what is trained, what is merged, and what the reference policy sees."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from core.errors import ModelError
from learner.models.adapters import Lora, adapters_off, merged
from learner.models.pretrained import PolicyModel, check_trainable, load_policy, load_value
from tests.learner.models.test_pretrained import ROWS, line

LORA = Lora(rank=4, alpha=8)


def adapted(path: Path) -> PolicyModel:
    """A policy whose adapters do something."""
    policy = load_policy(path, torch.float32, LORA)
    generator = torch.Generator().manual_seed(0)
    for parameter in policy.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.1, generator=generator)
    return policy


def test_only_adapters_of_linear_layers_are_trained_and_a_new_one_changes_nothing(
    tiny_model: Callable[[bool], Path],
) -> None:
    plain, policy = (load_policy(tiny_model(False), torch.float32, lora) for lora in (None, LORA))
    names = [name for name, p in policy.named_parameters() if p.requires_grad]
    # 2 layers x (q, k, v, o, gate, up, down) x (A, B); neither embedding nor output head
    assert len(names) == 2 * 7 * 2
    assert all("lora_" in name and ("self_attn" in name or "mlp" in name) for name in names)
    torch.testing.assert_close(policy(line(ROWS), 1.0), plain(line(ROWS), 1.0), atol=0, rtol=0)


def test_merged_weights_in_a_plain_model_give_the_adapted_log_probabilities(
    tiny_model: Callable[[bool], Path],
) -> None:
    for tied in (True, False):
        policy = adapted(tiny_model(tied))
        state = dict(merged(policy.model.named_parameters(), LORA.scale))
        plain = AutoModelForCausalLM.from_pretrained(tiny_model(tied), dtype=torch.float32)
        assert set(state) == {name for name, _ in plain.named_parameters()}
        before = PolicyModel(plain)(line(ROWS), 1.0)[0]
        plain.load_state_dict(state, strict=False)
        with torch.no_grad():
            own, after = policy(line(ROWS), 1.0)[0], PolicyModel(plain)(line(ROWS), 1.0)[0]
        torch.testing.assert_close(after, own, atol=1e-5, rtol=0)
        assert float((after - before.detach()).abs().max()) > 0.01  # the adapters did something


@pytest.mark.parametrize(
    ("family", "layer", "sizes"),
    [
        ("gpt2", "Conv1D", {"n_embd": 32, "n_layer": 1, "n_head": 2}),
        (
            "olmoe",
            "OlmoeExperts",
            {"hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 1, "num_experts": 4},
        ),
    ],
)
def test_layers_that_cannot_be_merged_are_refused(
    tmp_path: Path, family: str, layer: str, sizes: dict[str, object]
) -> None:
    AutoModelForCausalLM.from_config(CONFIG_MAPPING[family](vocab_size=64, **sizes)).save_pretrained(tmp_path)
    check_trainable(tmp_path, lora=False)
    for refused in (partial(check_trainable, tmp_path, lora=True), partial(load_policy, tmp_path, torch.float32, LORA)):
        with pytest.raises(ModelError, match=rf"^learner\.lora_rank: .* type {layer} cannot be merged; set it to 0"):
            refused()


def test_a_usual_model_may_have_adapters(tiny_model: Callable[[bool], Path]) -> None:
    for tied in (True, False):
        check_trainable(tiny_model(tied), lora=True)


def test_with_adapters_off_the_policy_is_the_one_it_started_from(tiny_model: Callable[[bool], Path]) -> None:
    plain, policy = load_policy(tiny_model(True), torch.float32), adapted(tiny_model(True))
    trained = [p for p in policy.parameters() if p.requires_grad]
    changed = policy(line(ROWS), 1.0)[0].detach()
    with torch.no_grad(), adapters_off(policy):
        reference = policy(line(ROWS), 1.0)[0]
    torch.testing.assert_close(reference, plain(line(ROWS), 1.0)[0], atol=0, rtol=0)
    assert float((changed - reference).abs().max()) > 0.01
    torch.testing.assert_close(policy(line(ROWS), 1.0)[0], changed, atol=0, rtol=0)
    assert [p for p in policy.parameters() if p.requires_grad] == trained


def test_a_critic_with_adapters_trains_its_whole_head(tiny_model: Callable[[bool], Path]) -> None:
    value = load_value(tiny_model(True), torch.float32, LORA)
    names = {name for name, p in value.named_parameters() if p.requires_grad}
    assert {"head.weight", "head.bias"} < names
    assert all("lora_" in name for name in names - {"head.weight", "head.bias"})
