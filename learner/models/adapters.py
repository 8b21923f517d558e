"""LoRA (2106.09685) through peft: add adapters to a model, merge them into its weights, and save them. Invariants: base
weights are frozen; a new adapter changes nothing (B = 0); `merged` of a model without adapters is the identity."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn
from transformers import PreTrainedModel

from core.errors import ModelError
from core.weights import NamedTensor

_BASE = ".base_layer."
_A, _B = ".lora_A.default.weight", ".lora_B.default.weight"


@dataclass(frozen=True, slots=True)
class Lora:
    """Size of the adapters."""

    rank: int
    alpha: int

    @property
    def scale(self) -> float:
        """The factor of B A."""
        return self.alpha / self.rank


def add_adapters(model: PreTrainedModel, lora: Lora) -> None:
    """Freeze the model and put an adapter on every linear layer but the output head, in place. Raises ModelError for a
    model that has layers which `merged` cannot merge: fused experts, or GPT-2's transposed ones."""
    from peft import LoraConfig, inject_adapter_in_model
    from peft.tuners.tuners_utils import BaseTunerLayer

    config = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, lora_dropout=0.0, bias="none", target_modules="all-linear")
    inject_adapter_in_model(config, model)  # only the adapters are trainable now
    layers = [module.get_base_layer() for module in model.modules() if isinstance(module, BaseTunerLayer)]
    if other := {type(layer).__name__ for layer in layers} - {"Linear"}:
        raise ModelError(
            f"learner.lora_rank: adapters of {type(model).__name__} on layers of the type {min(other)} cannot be merged; "
            "set it to 0, or choose another model"
        )


def merged(
    named: Iterable[NamedTensor], scale: float, adapters: dict[str, Tensor] | None = None
) -> Iterator[NamedTensor]:
    """Whole parameters: W + scale B A in fp32, in W's type. Relies on the order base weight, A, B of a layer.
    `adapters` gets a copy of each A and B."""
    bases: dict[str, Tensor] = {}
    downs: dict[str, Tensor] = {}
    for name, tensor in named:
        if adapters is not None and name.endswith((_A, _B)):
            adapters[name] = tensor.detach().cpu().clone()
        if name.endswith(_A):
            downs[name.removesuffix(_A)] = tensor
        elif name.endswith(_B):
            layer = name.removesuffix(_B)
            base = bases.pop(layer)
            change = tensor.detach().float() @ downs.pop(layer).detach().float()
            yield f"{layer}.weight", (base.detach().float() + scale * change).to(base.dtype)
        elif name.endswith(f"{_BASE}weight"):
            bases[name.removesuffix(f"{_BASE}weight")] = tensor
        else:
            yield name.replace(_BASE, "."), tensor


def save_adapters(adapters: Mapping[str, Tensor], lora: Lora, base: str, folder: Path) -> None:
    """Write adapters, by parameter name, in PEFT's format. `base`: the model that they belong to."""
    from peft import LoraConfig
    from safetensors.torch import save_file

    LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules=sorted({name.removesuffix(_A).rpartition(".")[2] for name in adapters if name.endswith(_A)}),
        task_type="CAUSAL_LM",
        base_model_name_or_path=base,
        inference_mode=True,
    ).save_pretrained(str(folder))
    tensors = {f"base_model.model.{name.replace('.default.', '.')}": tensor for name, tensor in adapters.items()}
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})


@contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """Inside the block the model computes what it did before `add_adapters`: the reference policy."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)
