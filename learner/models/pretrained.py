"""Policy and critic around Hugging Face models. Invariants: [B, T, V] logits never exist (states before
scored tokens are projected, in chunks); a value is that of the state *before* a token; there is no dropout."""

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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
    AutoModelForTokenClassification,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.auto_factory import _get_model_class
from transformers.utils import logging as transformers_logging

from core.errors import ModelError, first_line
from learner.models.adapters import Lora, add_adapters
from learner.models.attention import TREE, Line
from learner.models.logprobs import token_logprobs

CHUNK_LOGITS = 2**27
"""Most logits at once (fp32: 512 MB). A single chunk is kept for the backward pass; several are recomputed there."""
_RENAMED = ("minimax_m2", "mixtral", "phimoe")
"""Model types whose experts have other names in transformers than vLLM takes in a broadcast."""
_OUTPUT_TRANSFORMS = ("final_logit_softcapping", "logit_scale", "logits_scaling")


class PolicyModel(nn.Module):
    """A causal language model that returns log-probabilities and entropies of chosen tokens."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, line: Line, temperature: float) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies [N] fp32 under softmax(logits / temperature); no gradients: NaN entropies."""
        logprobs, entropy = self.read(_states(self.model.get_decoder(), line), line.targets, temperature)
        return logprobs[line.copies], entropy[line.copies]

    def read(self, states: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies [M] from hidden states [M, H]."""
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


def _states(decoder: nn.Module, line: Line) -> Tensor:
    """Last hidden states [M, H] before the scored tokens of a line."""
    read = {"input_ids": line.tokens[None], "position_ids": line.depths[None]}
    hidden = decoder(**read, use_cache=False, tree=line.attention).last_hidden_state
    states: Tensor = hidden[0].index_select(0, line.state_index)
    return states


class ValueHead(nn.Linear):
    """A scalar head that computes in fp32 whatever the type of its weights: bf16 has 3 digits, too few for a return."""

    def __init__(self, trunk: PreTrainedModel) -> None:
        """All zeros: every value is 0 before the first step."""
        config = trunk.config.get_text_config()
        width = getattr(config, "word_embed_proj_dim", None) or config.hidden_size  # OPT-350m projects its last states
        super().__init__(width, 1, dtype=trunk.dtype)
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

    def forward(self, line: Line) -> Tensor:
        """Values [N] fp32 of the states before the scored tokens."""
        values: Tensor = self.head(_states(self.trunk, line))
        return values[line.copies, 0]


class SharedModel(PolicyModel):
    """A policy with a value head on its trunk: one pass gives log-probabilities and values."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        self.head = ValueHead(model)

    def forward(  # type: ignore[override]  # it returns values too
        self, line: Line, temperature: float | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities, entropies and values [N] fp32. Without `temperature` only values: the other two are empty,
        the language-model head is not read, and gradients stop at the value head (the policy must not change)."""
        with torch.set_grad_enabled(temperature is not None and torch.is_grad_enabled()):
            states = _states(self.model.get_decoder(), line)
        values: Tensor = self.head(states)[line.copies, 0]
        if temperature is None:
            return values.new_empty(0), values.new_empty(0), values
        logprobs, entropy = self.read(states, line.targets, temperature)
        return logprobs[line.copies], entropy[line.copies], values


def load_policy(path: str | Path, dtype: torch.dtype, lora: Lora | None = None) -> PolicyModel:
    """The policy from a Hugging Face directory or name. Raises ModelError when it cannot be read, or is not supported."""
    return PolicyModel(_load(AutoModelForCausalLM, "a causal language model", path, dtype, lora))


def load_shared(path: str | Path, dtype: torch.dtype, lora: Lora | None = None) -> SharedModel:
    """The policy with a value head on its trunk. Raises ModelError as `load_policy`."""
    return SharedModel(_load(AutoModelForCausalLM, "a causal language model", path, dtype, lora))


def load_value(path: str | Path, dtype: torch.dtype, lora: Lora | None = None) -> ValueModel:
    """The critic: a pretrained trunk and a head of zeros, or a reward model's trunk and its score as the head. Adapters
    are added to the trunk only; the head is trained fully. Raises ModelError as `load_policy`."""
    kind = critic_class(read_config(path))
    if kind is AutoModel:
        return ValueModel(_load(kind, "the critic's trunk", path, dtype, lora))
    reward = _load(kind, "a reward model", path, dtype, None)
    trunk, score = reward.base_model, _score(reward)
    assert score is not None  # `check_trainable` has refused the others
    if lora is not None:
        add_adapters(trunk, lora)
    value = ValueModel(trunk)
    value.head.load_state_dict({"weight": score.weight, "bias": torch.zeros(1) if score.bias is None else score.bias})
    return value


def critic_class(config: PretrainedConfig) -> Any:
    """What a critic is loaded as: a classifier of sequences or tokens with one label, whose score reads the last hidden
    states (a reward model; verl's critics), or else a trunk."""
    name = next(iter(config.architectures or []), "") if config.num_labels == 1 else ""
    if name.endswith("ForSequenceClassification"):
        return AutoModelForSequenceClassification
    return AutoModelForTokenClassification if name.endswith("ForTokenClassification") else AutoModel


def _score(reward: PreTrainedModel) -> torch.nn.Linear | None:
    """The head of a classifier with one label, if it is one linear layer, whatever its class calls it."""
    head = getattr(reward, "score", None) or getattr(reward, "classifier", None)
    return head if isinstance(head, torch.nn.Linear) and head.out_features == 1 else None


def _load(kind: Any, what: str, path: str | Path, dtype: torch.dtype, lora: Lora | None) -> PreTrainedModel:
    """A model of one of transformers' auto classes that reads lines of prefix trees, with adapters if asked for."""
    config = read_config(path)
    _check_layers(kind, config, path)
    model = _pretrained(kind, what, path, {"config": config, "dtype": dtype, "attn_implementation": TREE})
    make_savable(model)
    if lora is not None:
        add_adapters(model, lora)
    return model


def make_savable(model: PreTrainedModel) -> None:
    """Keep only the special tokens of a generation config that contradicts itself, such as a temperature without
    `do_sample`: transformers loads one and refuses to save it, so no checkpoint could be written."""
    found = getattr(model, "generation_config", None)  # a critic's trunk has none
    if found is None:
        return
    try:
        found.validate(strict=True)
    except ValueError:
        special = {name: getattr(found, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
        known = {name: ids for name, ids in special.items() if not (isinstance(ids, int) and ids < 0)}
        model.generation_config = GenerationConfig(**known)


def check_trainable(path: str | Path, lora: bool, critic: str = "") -> None:
    """Raises ModelError as `load_policy` for a model that the learner does not support, or not with adapters (`lora`),
    and for weights of a folder that are not those of its config.json; no weights are read. `critic`: the model of
    learner.value_path, if there is one."""
    model = _without_weights(AutoModelForCausalLM, path, "model.path")
    if lora:
        add_adapters(model, Lora(rank=1, alpha=1))
    if critic:
        kind = critic_class(read_config(critic, "learner.value_path"))
        model = _without_weights(kind, critic, "learner.value_path", heads=("score.", "classifier.", "v_head."))
        if kind is not AutoModel and _score(model) is None:
            raise ModelError(
                f"learner.value_path {critic}: {type(model).__name__} has no linear head with one label; name another "
                "critic"
            )


def _without_weights(kind: Any, path: str | Path, field: str, heads: tuple[str, ...] = ()) -> PreTrainedModel:
    """A model whose weights are there and fit, on no device. Raises ModelError that names `field`, also for weights
    that nothing reads and that begin with one of `heads`."""
    config = read_config(path, field)
    _check_layers(kind, config, path, field)
    options: dict[str, Any] = {"device_map": "meta", "output_loading_info": True, "ignore_mismatched_sizes": True}
    model: PreTrainedModel
    try:
        if Path(path).is_dir():
            with _quiet():
                model, found = kind.from_pretrained(path, config=config, **options)
        else:
            with torch.device("meta"):
                model = kind.from_config(config)
            found = {"missing_keys": (), "mismatched_keys": (), "unexpected_keys": ()}
    except Exception as error:  # whatever a model's class raises for a wrong number, or for a folder without weights
        raise ModelError(f"{field} {path}: cannot be loaded: {first_line(error)}") from error
    wrong = [f"{name} is {list(have)}, not {list(want)}" for name, have, want in sorted(found["mismatched_keys"])]
    wrong += [f"{name} is missing" for name in sorted(found["missing_keys"])]  # transformers would leave it random
    if wrong:
        raise ModelError(f"{field} {path}: {len(wrong)} weights are not those of config.json, such as: {wrong[0]}")
    if lost := sorted(name for name in found["unexpected_keys"] if name.startswith(heads)):
        raise ModelError(
            f"{field} {path}: its head {lost[0]} would be lost: only that of a classifier with one label is read; save "
            "the model as one, or without the head"
        )
    return model


@contextmanager
def _quiet() -> Iterator[None]:
    """Inside the block transformers prints neither a progress bar nor its table of weights that do not fit."""
    level, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()


def _check_layers(kind: Any, config: PretrainedConfig, path: str | Path, field: str = "model.path") -> None:
    """Raises ModelError that names `field`, unless all layers are attention over prefix trees, and engines take the
    weights of a policy."""
    if quantised := getattr(config, "quantization_config", None):
        method = quantised.get("quant_method") if isinstance(quantised, dict) else quantised.quant_method
        raise ModelError(
            f"{field} {path}: its weights are quantised ({method}); only plain ones are trained: name the model "
            "without quantisation"
        )
    found = _get_model_class(config, kind._model_mapping) if type(config) in kind._model_mapping else None
    if found is None:
        return  # `_pretrained` says so
    text = config.get_text_config()
    other = set(getattr(text, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    code = inspect.getsource(sys.modules[found.__module__])
    why = ""
    if not found._supports_attention_backend:
        why = "transformers cannot exchange its attention"
    elif other:
        why = f"it has layers of {', '.join(sorted(other))}"
    elif getattr(text, "kv_lora_rank", None) is not None:
        why = "its keys and values are compressed (MLA)"
    elif getattr(text, "attn_logit_softcapping", None) is not None:
        why = "attn_logit_softcapping bounds its attention scores"
    elif "s_aux=" in code:
        why = "its attention has sinks"
    if why:
        raise ModelError(
            f"{field} {path}: {found.__name__} cannot be trained: {why}, and the learner reads prefix trees by an "
            "attention of its own; choose another model (docs/sizing.md)"
        )
    # that bias is a buffer, or has another name; no engine reads a critic
    if kind is AutoModelForCausalLM and (config.model_type in _RENAMED or "e_score_correction_bias" in code):
        raise ModelError(
            f"{field} {path}: {found.__name__} cannot be trained: vLLM does not take the weights of its experts as "
            "transformers has them; choose another model (docs/sizing.md)"
        )


def _pretrained(kind: Any, what: str, path: str | Path, options: dict[str, Any]) -> PreTrainedModel:
    """A model in memory of its own: one that is mapped from its file loses what it learnt when the file is written again."""
    model: PreTrainedModel
    try:
        model, found = kind.from_pretrained(path, disable_mmap=True, output_loading_info=True, **options)
    except (OSError, ValueError, RuntimeError) as error:
        raise ModelError(f"the model {path} cannot be loaded as {what}: {first_line(error)}") from error
    if missing := sorted(found["missing_keys"]):  # of a name of the hub nobody has looked at the weights before
        raise ModelError(f"the model {path} has no weight {missing[0]}, which transformers would leave random")
    return model


def recompute_activations(module: PolicyModel | ValueModel) -> None:
    """Turn on gradient checkpointing. Hugging Face models need training mode for it, which is safe without dropout."""
    inner = module.trunk if isinstance(module, ValueModel) else module.model
    inner.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    module.train()


def read_config(path: str | Path, field: str = "model.path") -> PretrainedConfig:
    """The model's configuration without dropout. Raises ModelError if it is unreadable or changes logits after lm_head."""
    try:
        config = AutoConfig.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise ModelError(f"{field} {path}: no readable config.json: {first_line(error)}") from error
    for name, value in config.to_dict().items():
        if isinstance(value, float) and ("dropout" in name or name.endswith("pdrop")):
            setattr(config, name, 0.0)
        if name in _OUTPUT_TRANSFORMS and value not in (None, 1.0):
            raise ModelError(
                f"{field} {path}: {name}={value} changes the logits after lm_head, which the learner does not; choose "
                "another model (docs/sizing.md)"
            )
    return config
