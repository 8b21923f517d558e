"""Policy and critic around Hugging Face models, computing only what PPO reads.

Used by `learner.distributed.actor_critic`. Invariants: [B, T, V] logits never exist (hidden states are gathered at the scored positions, then
projected in chunks); a token's value is that of the state *before* it; there is no dropout, so scoring and training see the
same function.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from core.errors import ModelError, first_line
from learner.models.adapters import Lora, add_adapters
from learner.models.logprobs import token_logprobs
from learner.models.varlen import register, spans, works

CHUNK_LOGITS = 2**26
"""Logits projected at once (fp32: 256 MB). One chunk: kept for the backward pass; several: recomputed there."""

Attention = Literal["sdpa", "flash_attention_2", "torch_varlen"]
"""Only the last two read packed rows without a [T, T] mask."""

_OUTPUT_TRANSFORMS = ("final_logit_softcapping", "logit_scale", "logits_scaling")


class PolicyModel(nn.Module):
    """A causal language model that returns log-probabilities and entropies of chosen tokens."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        targets: Tensor,
        temperature: float,
        places: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies [N] fp32 of the distribution softmax(logits / temperature).

        Without gradients the entropies are NaN: scoring does not read them.

        Args:
            tokens: [B, T] right-padded.
            positions: [N] index into B * T of the state before each target.
            targets: [N] tokens.
            temperature: of the sampling that the log-probabilities are compared with.
            places: [1, T] place of every token in its row where rows are packed into one line (block-diagonal attention).
        """
        return self.read(_states(self.model.get_decoder(), tokens, positions, places), targets, temperature)

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


def _states(decoder: nn.Module, tokens: Tensor, positions: Tensor, places: Tensor | None) -> Tensor:
    """Last hidden states [N, H] at `positions` (index into B * T of `tokens` [B, T])."""
    hidden = decoder(input_ids=tokens, position_ids=places, use_cache=False, **spans(places)).last_hidden_state
    states: Tensor = hidden.reshape(-1, hidden.shape[-1]).index_select(0, positions)
    return states


def _value_head(trunk: PreTrainedModel) -> nn.Linear:
    """A scalar head at zero: every state is worth 0 until something was learnt."""
    head = nn.Linear(trunk.config.get_text_config().hidden_size, 1, dtype=trunk.dtype)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


class ValueModel(nn.Module):
    """A decoder with a scalar head."""

    def __init__(self, trunk: PreTrainedModel) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = _value_head(trunk)

    def forward(self, tokens: Tensor, positions: Tensor, places: Tensor | None = None) -> Tensor:
        """Values [N] fp32 of the states at `positions` (index into B * T of `tokens` [B, T])."""
        values: Tensor = self.head(_states(self.trunk, tokens, positions, places))
        return values[:, 0].float()


class SharedModel(PolicyModel):
    """A policy with a scalar head on its own trunk: one pass gives log-probabilities and values."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        self.head = _value_head(model)

    def forward(  # type: ignore[override]  # a value more than the policy alone
        self,
        tokens: Tensor,
        positions: Tensor,
        targets: Tensor,
        temperature: float,
        train_trunk: bool = True,
        places: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities, entropies and values [N] fp32; arguments as of `PolicyModel`.

        Without `train_trunk` gradients end at the head (critic warm-up: the policy must not move).
        """
        with torch.set_grad_enabled(train_trunk and torch.is_grad_enabled()):
            states = _states(self.model.get_decoder(), tokens, positions, places)
            logprobs, entropy = self.read(states, targets, temperature)
        values: Tensor = self.head(states)
        return logprobs, entropy, values[:, 0].float()


def attention_kernel(device: str, dtype: torch.dtype, flash: bool, varlen: Callable[[], bool]) -> Attention:
    """Attention over packed rows on GPUs in bf16: by the package flash-attn where it is installed, else by torch's own kernel if
    `varlen` says that it can; plain attention over padded rows everywhere else.
    """
    if device != "cuda" or dtype is not torch.bfloat16:
        return "sdpa"
    if flash:
        return "flash_attention_2"
    return "torch_varlen" if varlen() else "sdpa"


def torch_varlen(path: str | Path, device: str) -> bool:
    """Whether torch's kernel for packed rows serves this model on this device; transformers knows it then. Raises ModelError."""
    config = read_config(path).get_text_config()
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    if not works(device, heads, getattr(config, "num_key_value_heads", None) or heads, size):
        return False
    register(varlen_attn)
    return True


def load_policy(
    path: str | Path, dtype: torch.dtype, lora: Lora | None = None, attention: Attention = "sdpa"
) -> PolicyModel:
    """The policy from a Hugging Face directory or name.

    Raises:
        ModelError: the model cannot be read, or transforms its logits in a way that is not supported.
    """
    return PolicyModel(_causal(path, dtype, lora, attention))


def load_shared(
    path: str | Path, dtype: torch.dtype, lora: Lora | None = None, attention: Attention = "sdpa"
) -> SharedModel:
    """The policy with a value head on its trunk. Raises ModelError as `load_policy`."""
    return SharedModel(_causal(path, dtype, lora, attention))


def _causal(path: str | Path, dtype: torch.dtype, lora: Lora | None, attention: Attention) -> PreTrainedModel:
    config = read_config(path)
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            path, config=config, dtype=dtype, attn_implementation=attention
        )
    except (OSError, ValueError) as error:
        raise ModelError(
            f"model.path {path}: cannot be loaded as a causal language model: {first_line(error)}"
        ) from error
    if lora is not None:
        add_adapters(model, lora)
    return model


def load_value(
    path: str | Path, dtype: torch.dtype, lora: Lora | None = None, attention: Attention = "sdpa"
) -> ValueModel:
    """The critic: trunk from the policy's directory, head zero. Adapters go on the trunk; the head is trained whole.

    Raises:
        ModelError: the model cannot be read.
    """
    config = read_config(path)
    try:
        trunk: PreTrainedModel = AutoModel.from_pretrained(
            path, config=config, dtype=dtype, attn_implementation=attention
        )
    except (OSError, ValueError) as error:
        raise ModelError(f"model.path {path}: cannot be loaded as the critic's trunk: {first_line(error)}") from error
    if lora is not None:
        add_adapters(trunk, lora)
    return ValueModel(trunk)


def recompute_activations(module: PolicyModel | ValueModel) -> None:
    """Turn on gradient checkpointing, which Hugging Face models do in training mode only (there is no dropout to wake)."""
    inner = module.model if isinstance(module, PolicyModel) else module.trunk
    inner.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    module.train()


def read_config(path: str | Path) -> PretrainedConfig:
    """The model's configuration without dropout (PPO's ratios must compare the same function)."""
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
