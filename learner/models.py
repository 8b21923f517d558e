"""Policy and critic around Hugging Face models, computing only what PPO reads.

Used by `learner.worker`. Invariants: [B, T, V] logits never exist (hidden states are gathered at the scored positions, then
projected in chunks); a token's value is that of the state *before* it; there is no dropout, so scoring and training see the
same function.
"""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from core.errors import ModelError, first_line

CHUNK_LOGITS = 2**26
"""Logits projected at once (fp32: 256 MB). One chunk: kept for the backward pass; several: recomputed there."""

_OUTPUT_TRANSFORMS = ("final_logit_softcapping", "logit_scale", "logits_scaling")


class PolicyModel(nn.Module):
    """A causal language model that returns log-probabilities and entropies of chosen tokens."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, tokens: Tensor, positions: Tensor, targets: Tensor, temperature: float, entropy_grad: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies [N] fp32 of the distribution softmax(logits / temperature).

        Args:
            tokens: [B, T] right-padded.
            positions: [N] index into B * T of the state before each target.
            targets: [N] tokens.
            temperature: of the sampling that the log-probabilities are compared with.
            entropy_grad: whether the entropies carry a gradient (they cost a second [N, V] then).
        """
        hidden = self.model.get_decoder()(input_ids=tokens, use_cache=False).last_hidden_state
        states = hidden.reshape(-1, hidden.shape[-1]).index_select(0, positions)
        head = self.model.get_output_embeddings()
        size = max(1, CHUNK_LOGITS // self.model.config.get_text_config().vocab_size)
        if len(states) <= size:
            return _token_logprobs(head, states, targets, temperature, entropy_grad)
        parts = [
            checkpoint(_token_logprobs, head, s, t, temperature, entropy_grad, use_reentrant=False)
            for s, t in zip(states.split(size), targets.split(size), strict=True)
        ]
        return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])


def _token_logprobs(
    head: nn.Module, states: Tensor, targets: Tensor, temperature: float, entropy_grad: bool
) -> tuple[Tensor, Tensor]:
    logits = head(states).float()
    if temperature != 1.0:
        logits = logits / temperature
    log_z = torch.logsumexp(logits, dim=-1)
    logprobs = logits.gather(1, targets[:, None])[:, 0] - log_z
    with torch.set_grad_enabled(entropy_grad and torch.is_grad_enabled()):
        chances = torch.exp(logits - log_z[:, None])
        entropy = log_z - torch.linalg.vecdot(chances, logits)
    return logprobs, entropy


class ValueModel(nn.Module):
    """A decoder with a scalar head. The head starts at zero: every state is worth 0 until something was learnt."""

    def __init__(self, trunk: PreTrainedModel) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = nn.Linear(trunk.config.get_text_config().hidden_size, 1, dtype=trunk.dtype)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Values [N] fp32 of the states at `positions` (index into B * T of `tokens` [B, T])."""
        hidden = self.trunk(input_ids=tokens, use_cache=False).last_hidden_state
        states = hidden.reshape(-1, hidden.shape[-1]).index_select(0, positions)
        values: Tensor = self.head(states)
        return values[:, 0].float()


def load_policy(path: str | Path, dtype: torch.dtype) -> PolicyModel:
    """The policy from a Hugging Face directory or name.

    Raises:
        ModelError: the model cannot be read, or transforms its logits in a way that is not supported.
    """
    config = read_config(path)
    try:
        return PolicyModel(AutoModelForCausalLM.from_pretrained(path, config=config, dtype=dtype))
    except (OSError, ValueError) as error:
        raise ModelError(
            f"model.path {path}: cannot be loaded as a causal language model: {first_line(error)}"
        ) from error


def load_value(path: str | Path, dtype: torch.dtype) -> ValueModel:
    """The critic: trunk from the policy's directory, head zero.

    Raises:
        ModelError: the model cannot be read.
    """
    config = read_config(path)
    try:
        return ValueModel(AutoModel.from_pretrained(path, config=config, dtype=dtype))
    except (OSError, ValueError) as error:
        raise ModelError(f"model.path {path}: cannot be loaded as the critic's trunk: {first_line(error)}") from error


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
