"""LoRA (2106.09685) through peft: add adapters to a model, and merge them into its weights. Invariants: base weights
are frozen; a new adapter changes nothing (B = 0); `merged` of a model without adapters is the identity."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor, nn
from transformers import PreTrainedModel

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
    """Freeze the model and put an adapter on every linear layer but the output head, in place."""
    from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, lora_dropout=0.0, bias="none", target_modules="all-linear")
    inject_adapter_in_model(config, model)  # only the adapters are trainable now


def merged(named: Iterable[NamedTensor], scale: float) -> Iterator[NamedTensor]:
    """Whole parameters: W + scale B A in fp32, in W's type. Relies on the order base weight, A, B of a layer."""
    bases: dict[str, Tensor] = {}
    downs: dict[str, Tensor] = {}
    for name, tensor in named:
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
