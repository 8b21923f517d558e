"""Policy, critic and reward model around Hugging Face models; they compute only what training reads.

Used by `learner.distributed` and `learner.supervised`. Invariants: [B, T, V] logits never exist (only the hidden states before
scored tokens are projected, in chunks); a token's value is that of the state *before* it; there is no dropout, so scoring and
training use the same function.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
)

from core.errors import ModelError, first_line
from learner.models.adapters import Lora, add_adapters
from learner.models.logprobs import token_logprobs

CHUNK_LOGITS = 2**26
"""Most logits computed at once (fp32: 256 MB). A single chunk is kept for the backward pass; several are recomputed there."""

_OUTPUT_TRANSFORMS = ("final_logit_softcapping", "logit_scale", "logits_scaling")


class PolicyModel(nn.Module):
    """A causal language model that returns log-probabilities and entropies of chosen tokens."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        tokens: Tensor,
        state_index: Tensor,
        targets: Tensor,
        temperature: float,
        position_ids: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies [N] fp32 of the distribution softmax(logits / temperature).

        Without gradients (scoring) the entropies are NaN.

        Args:
            tokens: [B, T] right-padded.
            state_index: [N] index into B * T of the state before each target.
            targets: [N] tokens.
            temperature: of the sampling that the log-probabilities are compared with.
            position_ids: [1, T] position of every token in its row, where rows are packed into one line; None: padded rows.
        """
        return self.read(_states(self.model.get_decoder(), tokens, state_index, position_ids), targets, temperature)

    def read(self, states: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies [N] from hidden states [N, H]."""
        head = self.model.get_output_embeddings()
        size = max(1, CHUNK_LOGITS // self.model.config.get_text_config().vocab_size)
        if len(states) <= size:
            return _read(head, states, targets, temperature)
        parts = [
            checkpoint(_read, head, s, t, temperature, use_reentrant=False)
            for s, t in zip(states.split(size), targets.split(size), strict=True)
        ]
        return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])


def _read(head: nn.Module, states: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    return token_logprobs(head(states), targets, temperature)


def _states(decoder: nn.Module, tokens: Tensor, state_index: Tensor, position_ids: Tensor | None) -> Tensor:
    """Last hidden states [N, H] at `state_index` (index into B * T of `tokens` [B, T])."""
    hidden = decoder(
        input_ids=tokens, position_ids=position_ids, use_cache=False, **row_bounds(position_ids)
    ).last_hidden_state
    states: Tensor = hidden.reshape(-1, hidden.shape[-1]).index_select(0, state_index)
    return states


def row_bounds(position_ids: Tensor | None) -> dict[str, Any]:
    """Bounds of packed rows for the attention functions of transformers; nothing for padded rows.

    `position_ids`: [1, T], from 0 in each row. cu_seq_lens_q: bounds [rows + 1]; max_length_q: longest row.
    """
    if position_ids is None:
        return {}
    ends = torch.tensor([position_ids.shape[1]], device=position_ids.device)
    bounds = torch.cat([(position_ids[0] == 0).nonzero()[:, 0], ends])
    return {"cu_seq_lens_q": bounds.to(torch.int32), "max_length_q": int(bounds.diff().max())}


class ValueHead(nn.Linear):
    """A scalar head that computes in fp32 whatever the type of its weights: bf16 has 3 digits, too few for a return."""

    def __init__(self, trunk: PreTrainedModel) -> None:
        """All zeros: every value is 0 before the first step."""
        super().__init__(trunk.config.get_text_config().hidden_size, 1, dtype=trunk.dtype)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, states: Tensor) -> Tensor:
        """Values [N, 1] fp32 of hidden states [N, H]."""
        return nn.functional.linear(states.float(), self.weight.float(), self.bias.float())


class ValueModel(nn.Module):
    """A decoder with a scalar head."""

    def __init__(self, trunk: PreTrainedModel) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = ValueHead(trunk)

    def forward(self, tokens: Tensor, state_index: Tensor, position_ids: Tensor | None = None) -> Tensor:
        """Values [N] fp32 of the states at `state_index` (index into B * T of `tokens` [B, T])."""
        values: Tensor = self.head(_states(self.trunk, tokens, state_index, position_ids))
        return values[:, 0]


class SharedModel(PolicyModel):
    """A policy with a value head on its trunk: one pass gives log-probabilities and values."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        self.head = ValueHead(model)

    def forward(  # type: ignore[override]  # it returns values too
        self,
        tokens: Tensor,
        state_index: Tensor,
        targets: Tensor,
        temperature: float,
        train_trunk: bool = True,
        position_ids: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities, entropies and values [N] fp32; arguments as of `PolicyModel`.

        Without `train_trunk` gradients stop at the head (critic warm-up: the policy must not change).
        """
        with torch.set_grad_enabled(train_trunk and torch.is_grad_enabled()):
            states = _states(self.model.get_decoder(), tokens, state_index, position_ids)
            logprobs, entropy = self.read(states, targets, temperature)
        values: Tensor = self.head(states)
        return logprobs, entropy, values[:, 0]


class RewardModel(nn.Module):
    """A sequence classifier with one label. Its output at the last token that is not padding is the score of the dialogue.

    The Hugging Face class finds that token, so the score is the same wherever the saved model is loaded.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Scores [B] fp32 of the dialogues tokens[b, :lengths[b]] ([B, T], right-padded)."""
        real = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]
        padded = tokens.masked_fill(~real, self.model.config.pad_token_id)
        scores: Tensor = self.model(input_ids=padded, attention_mask=real.long(), use_cache=False).logits
        return scores[:, 0].float()


def load_policy(path: str | Path, dtype: torch.dtype, lora: Lora | None = None, attention: str = "sdpa") -> PolicyModel:
    """The policy from a Hugging Face directory or name; `attention` from `learner.models.attention.choose_attention`.

    Raises:
        ModelError: the model cannot be read, or transforms its logits in a way that is not supported.
    """
    return PolicyModel(_load(AutoModelForCausalLM, "a causal language model", path, dtype, lora, attention))


def load_shared(path: str | Path, dtype: torch.dtype, lora: Lora | None = None, attention: str = "sdpa") -> SharedModel:
    """The policy with a value head on its trunk. Raises ModelError as `load_policy`."""
    return SharedModel(_load(AutoModelForCausalLM, "a causal language model", path, dtype, lora, attention))


def load_value(path: str | Path, dtype: torch.dtype, lora: Lora | None = None, attention: str = "sdpa") -> ValueModel:
    """The critic: a pretrained trunk and a head of zeros, or a reward model's trunk and its score as the head.

    Adapters are added to the trunk only; the head is trained fully. Raises ModelError as `load_policy`.
    """
    if not is_reward_model(read_config(path)):
        return ValueModel(_load(AutoModel, "the critic's trunk", path, dtype, lora, attention))
    reward = _load(AutoModelForSequenceClassification, "a reward model", path, dtype, None, attention)
    trunk, score = reward.base_model, reward.get_submodule("score")
    if lora is not None:
        add_adapters(trunk, lora)
    value = ValueModel(trunk)
    value.head.load_state_dict({"weight": score.weight, "bias": torch.zeros(1) if score.bias is None else score.bias})
    return value


def is_reward_model(config: PretrainedConfig) -> bool:
    """Whether a model is a sequence classifier with one label, whose score reads the last hidden state."""
    names = config.architectures or []
    return config.num_labels == 1 and any(name.endswith("ForSequenceClassification") for name in names)


def load_reward(path: str, dtype: torch.dtype) -> RewardModel:
    """The reward model from a classifier, or from a causal language model with a new head. Raises ModelError."""
    config = read_config(path)
    tokenizer = AutoTokenizer.from_pretrained(path)
    config.num_labels = 1
    if config.pad_token_id is None:
        config.pad_token_id = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    options = {"config": config, "dtype": dtype}
    return RewardModel(_pretrained(AutoModelForSequenceClassification, "a sequence classifier", path, options))


def _load(
    kind: Any, what: str, path: str | Path, dtype: torch.dtype, lora: Lora | None, attention: str
) -> PreTrainedModel:
    """A model of one of transformers' auto classes, with adapters if asked for."""
    options = {"config": read_config(path), "dtype": dtype, "attn_implementation": attention}
    model = _pretrained(kind, what, path, options)
    if lora is not None:
        add_adapters(model, lora)
    return model


def _pretrained(kind: Any, what: str, path: str | Path, options: dict[str, Any]) -> PreTrainedModel:
    try:
        model: PreTrainedModel = kind.from_pretrained(path, **options)
    except (OSError, ValueError) as error:
        raise ModelError(f"model.path {path}: cannot be loaded as {what}: {first_line(error)}") from error
    return model


def recompute_activations(module: PolicyModel | ValueModel | RewardModel) -> None:
    """Turn on gradient checkpointing. Hugging Face models need training mode for it, which is safe without dropout."""
    inner = module.trunk if isinstance(module, ValueModel) else module.model
    inner.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    module.train()


def read_config(path: str | Path) -> PretrainedConfig:
    """The model's configuration without dropout. Raises ModelError if it is unreadable or changes logits after lm_head."""
    try:
        config = AutoConfig.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise ModelError(f"model.path {path}: no readable config.json: {first_line(error)}") from error
    for name, value in config.to_dict().items():
        if isinstance(value, float) and ("dropout" in name or name.endswith("pdrop")):
            setattr(config, name, 0.0)
        if name in _OUTPUT_TRANSFORMS and value not in (None, 1.0):
            raise ModelError(f"model.path {path}: {name}={value} changes the logits after lm_head; not supported")
    return config
