import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GPT2Config,
    GPT2ForTokenClassification,
    OPTConfig,
    Qwen2ForSequenceClassification,
    Qwen2ForTokenClassification,
)

from core.errors import ModelError
from learner.models.adapters import Lora
from learner.models.attention import Line, line_on
from learner.models.pretrained import check_trainable, load_policy, load_shared, load_value, recompute_activations
from learner.packing.micro_batches import Row, micro_batch

ROWS = [
    Row(np.array([5, 6, 7, 8, 9], dtype=np.int32), 2),
    Row(np.array([1, 2, 3], dtype=np.int32), 1),
    Row(np.array([60, 50, 40, 30, 20, 10, 0, 1], dtype=np.int32), 7),
]


def line(rows: list[Row]) -> Line:
    return line_on(micro_batch(rows), torch.device("cpu"))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probabilities_are_those_of_the_full_hugging_face_forward(
    tiny_model: Callable[[bool], Path], tied: bool, temperature: float
) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model(tied), dtype=torch.float32).eval()
    policy = load_policy(tiny_model(tied), torch.float32)
    logprobs, entropy = (numbers.detach() for numbers in policy(line(ROWS), temperature))
    with torch.no_grad():
        scored, unread = policy(line(ROWS), temperature)
    torch.testing.assert_close(scored, logprobs, atol=0, rtol=0)  # scoring and training see the same
    assert unread.isnan().all()
    at = 0
    for row in ROWS:
        with torch.no_grad():
            logits = model(torch.from_numpy(row.tokens[None].astype(np.int64))).logits[0] / temperature
        expected = torch.log_softmax(logits, -1)
        for t in range(row.context, len(row.tokens)):
            assert float(logprobs[at]) == pytest.approx(float(expected[t - 1, int(row.tokens[t])]), abs=1e-5)
            own = -float((expected[t - 1].exp() * expected[t - 1]).sum())
            assert float(entropy[at]) == pytest.approx(own, abs=1e-5)
            at += 1
    assert at == len(logprobs)


def test_chunks_change_neither_results_nor_gradients(
    tiny_model: Callable[[bool], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = load_policy(tiny_model(True), torch.float32)

    def run() -> list[torch.Tensor]:
        policy.zero_grad()
        logprobs, entropy = policy(line(ROWS), 0.7)
        (logprobs.square().sum() + entropy.sum()).backward()
        return [
            logprobs.detach(),
            entropy.detach(),
            *(p.grad.clone() for p in policy.parameters() if p.grad is not None),
        ]

    whole = run()
    monkeypatch.setattr("learner.models.pretrained.CHUNK_LOGITS", 3 * 64)  # chunks of 3 tokens of a vocabulary of 64
    for a, b in zip(whole, run(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def test_a_value_sees_nothing_of_the_token_it_precedes(tiny_model: Callable[[bool], Path]) -> None:
    value = load_value(tiny_model(True), torch.float32)
    torch.nn.init.normal_(value.head.weight)
    tokens = np.array([3, 4, 5, 6], dtype=np.int32)
    changed = np.array([3, 4, 5, 60], dtype=np.int32)
    first, second = (value(line([Row(t, 2)])) for t in (tokens, changed))
    torch.testing.assert_close(first, second, atol=0, rtol=0)  # V before tokens 2 and 3: token 3 is unseen
    changed[2] = 50
    assert float((value(line([Row(changed, 2)])) - first)[1].abs().detach()) > 1e-3


def test_a_new_critic_values_everything_at_zero(tiny_model: Callable[[bool], Path]) -> None:
    assert not load_value(tiny_model(True), torch.float32)(line(ROWS)).any()


def test_the_values_of_a_shared_trunk_alone_do_not_read_the_language_model_head(
    tiny_model: Callable[[bool], Path],
) -> None:
    model = load_shared(tiny_model(False), torch.float32)
    torch.nn.init.normal_(model.head.weight)
    values = model(line(ROWS), 1.0)[2].detach()
    read = []
    model.model.lm_head.register_forward_hook(lambda *_: read.append(True))
    logprobs, entropies, alone = model(line(ROWS), None)
    alone.sum().backward()
    assert not read
    assert (len(logprobs), len(entropies)) == (0, 0)
    torch.testing.assert_close(alone.detach(), values, atol=0, rtol=0)
    assert [name for name, p in model.named_parameters() if p.grad is not None] == ["head.weight", "head.bias"]


def reward_model(
    path: Path, tiny: Path, kind: type[Qwen2ForSequenceClassification | Qwen2ForTokenClassification]
) -> Qwen2ForSequenceClassification | Qwen2ForTokenClassification:
    config = AutoConfig.from_pretrained(tiny)
    config.num_labels, config.pad_token_id = 1, 0
    torch.manual_seed(9)
    reward = kind(config)
    torch.nn.init.normal_(reward.score.weight)
    if reward.score.bias is not None:
        torch.nn.init.normal_(reward.score.bias)
    reward.save_pretrained(path)
    return reward.eval()


@pytest.mark.parametrize("kind", [Qwen2ForSequenceClassification, Qwen2ForTokenClassification])
@pytest.mark.parametrize("lora", [None, Lora(2, 4)])
def test_a_critic_from_a_reward_model_begins_with_its_scores(
    tiny_model: Callable[[bool], Path], tmp_path: Path, lora: Lora | None, kind: Any
) -> None:
    """verl saves its critics as classifiers of tokens."""
    reward = reward_model(tmp_path, tiny_model(True), kind)
    check_trainable(tiny_model(True), lora=False, critic=str(tmp_path))
    value = load_value(tmp_path, torch.float32, lora)
    tokens = np.array([3, 4, 5, 6], dtype=np.int32)
    found = value(line([Row(tokens, 1)]))  # of the states after 3; 3, 4; 3, 4, 5
    for length in (1, 2, 3):
        ids = torch.from_numpy(tokens[:length].astype(np.int64))[None]
        torch.testing.assert_close(found[length - 1], reward(input_ids=ids).logits.flatten()[-1], atol=1e-6, rtol=1e-5)
    assert value.head.weight.requires_grad
    assert value.head.weight.shape == (1, 32)
    assert any("lora" in name for name, _ in value.trunk.named_parameters()) == (lora is not None)


def test_a_critic_whose_weights_have_other_names_is_refused(tiny_model: Callable[[bool], Path], tmp_path: Path) -> None:
    """transformers would begin with random ones."""
    reward_model(tmp_path, tiny_model(True), Qwen2ForSequenceClassification)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    for wrong in (
        {f"pretrained_model.{name}": weight for name, weight in weights.items()},
        {name: weight for name, weight in weights.items() if name != "score.weight"},
    ):
        save_file(wrong, file, {"format": "pt"})
        with pytest.raises(ModelError, match=r"learner\.value_path .* weights are not those of config\.json"):
            check_trainable(tiny_model(True), lora=False, critic=str(tmp_path))
    with pytest.raises(ModelError, match=r"no weight score\.weight"):  # of the hub
        load_value(tmp_path, torch.float32)
    file.unlink()
    with pytest.raises(ModelError, match=r"learner\.value_path .*: cannot be loaded"):
        check_trainable(tiny_model(True), lora=False, critic=str(tmp_path))


@pytest.mark.parametrize("name", ["v_head.summary.weight", "score.weight"])
def test_a_critic_whose_head_nothing_reads_is_refused(
    tiny_model: Callable[[bool], Path], tmp_path: Path, name: str
) -> None:
    """Saved by TRL's models with a value head, or as a classifier with several labels."""
    shutil.copytree(tiny_model(True), tmp_path, dirs_exist_ok=True)
    file = tmp_path / "model.safetensors"
    save_file(load_file(file) | {name: torch.ones(1, 32)}, file, {"format": "pt"})
    with pytest.raises(ModelError, match=rf"learner\.value_path .*: its head {name} would be lost"):
        check_trainable(tiny_model(True), lora=False, critic=str(tmp_path))


def test_the_head_of_a_critic_may_be_called_classifier(tiny_model: Callable[[bool], Path], tmp_path: Path) -> None:
    """As of GPT-2's classifier of tokens."""
    config = GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=64, num_labels=1)
    reward = GPT2ForTokenClassification(config)
    torch.nn.init.normal_(reward.classifier.weight)
    reward.save_pretrained(tmp_path)
    check_trainable(tiny_model(True), lora=False, critic=str(tmp_path))
    assert load_value(tmp_path, torch.float32).head.weight.tolist() == reward.classifier.weight.tolist()


def test_the_head_of_a_bf16_critic_computes_in_fp32(tiny_model: Callable[[bool], Path]) -> None:
    value = load_value(tiny_model(True), torch.bfloat16)
    torch.nn.init.normal_(value.head.weight)
    states = torch.randn(5, 32, dtype=torch.bfloat16, generator=torch.Generator().manual_seed(1))
    exact = (states.double() @ value.head.weight.double().T).float()
    found = value.head(states)
    assert found.dtype is torch.float32
    torch.testing.assert_close(found, exact, atol=1e-5, rtol=1e-5)  # bf16 would be off by 4e-3 of it


def test_dropout_is_off_in_training_mode(tiny_model: Callable[[bool], Path]) -> None:
    policy = load_policy(tiny_model(True), torch.float32).train()  # the model's config asks for attention dropout 0.1
    torch.testing.assert_close(policy(line(ROWS), 1.0), policy(line(ROWS), 1.0), atol=0, rtol=0)


def test_recomputed_activations_give_the_same_gradients(tiny_model: Callable[[bool], Path]) -> None:
    policy = load_policy(tiny_model(True), torch.float32)
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    policy.model.get_decoder().layers[0].mlp.register_forward_pre_hook(count)

    def run() -> list[torch.Tensor]:
        policy.zero_grad()
        policy(line(ROWS), 1.0)[0].sum().backward()
        return [p.grad.clone() for p in policy.parameters() if p.grad is not None]

    plain = run()
    assert calls == 1
    recompute_activations(policy)
    for a, b in zip(plain, run(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=0)
    assert calls == 3  # forward, and again in the backward pass


def test_what_was_learnt_stays_when_the_file_of_the_model_is_written_again(
    tiny_model: Callable[[bool], Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tiny_model(True), tmp_path / "model"))
    policy = load_policy(folder, torch.float32)
    with torch.no_grad():
        for weights in policy.parameters():
            weights.add_(1)
    learnt = [weights.detach().clone() for weights in policy.parameters()]
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes())
    assert all(torch.equal(*pair) for pair in zip(policy.parameters(), learnt, strict=True))


@pytest.mark.parametrize(
    "fields", [{"temperature": 0.9, "top_p": 0.6}, {"early_stopping": True, "num_beams": 1}, {"pad_token_id": -1}]
)
def test_a_model_whose_generation_config_contradicts_itself_can_be_saved(
    tiny_model: Callable[[bool], Path], tmp_path: Path, fields: dict[str, object]
) -> None:
    """transformers refuses that, so the first checkpoint would end the run."""
    folder = Path(shutil.copytree(tiny_model(True), tmp_path / "model"))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 2, **fields}))
    load_policy(folder, torch.float32).model.save_pretrained(tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "generation_config.json").read_text())["eos_token_id"] == 2


def test_the_critic_reads_states_that_a_model_projects(tmp_path: Path) -> None:
    """OPT-350m: its last states are narrower than its layers."""
    sizes = {"ffn_dim": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 64}
    config = OPTConfig(vocab_size=64, hidden_size=32, word_embed_proj_dim=16, **sizes)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    assert load_value(tmp_path, torch.float32)(line(ROWS)).shape == (3 + 2 + 1,)
    assert len(load_shared(tmp_path, torch.float32)(line(ROWS), 1.0)[2]) == 3 + 2 + 1


def test_a_directory_without_a_model_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json") as error:
        load_policy(tmp_path, torch.float32)
    assert "\n" not in str(error.value)
