"""What config.json of a model may say: a value that no model can have is named before anything is built from it."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

SIZES = ("num_attention_heads", "num_hidden_layers", "hidden_size", "vocab_size", "max_position_embeddings")
"""Sizes that every model has."""
OTHER_SIZES = ("head_dim", "num_key_value_heads", "intermediate_size")
MOST_LAYERS = 1000
"""No model has more. Each takes milliseconds to make, even without its weights."""
DIVISORS = ("_eps", "_epsilon", "rope_theta", "factor")
"""Ends of the names of numbers that something is divided by, or that have a logarithm or a root."""
ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function")
ROPES = ("rope_parameters", "rope_scaling")
RENAMED = {"default", "mrope", "su"}
"""Kinds of rotary embeddings that some models' configurations make another of."""


def wrong_field(raw: Mapping[str, Any]) -> str:
    """The first wrong value in config.json as it was read, empty if there is none. transformers finds such values when
    it computes with them, and does not say their names.

    >>> wrong_field({"head_dim": "64"}), wrong_field({"rope_scaling": {"factor": 0}})
    ("head_dim = '64' is no whole number from 1 to 2147483647", 'rope_scaling.factor = 0 is no number above 0')
    """
    return next(_wrong_fields(raw), "")


def _wrong_fields(raw: Mapping[str, Any]) -> Iterator[str]:
    from transformers.activations import ACT2CLS
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    names = raw.get("architectures")
    if names is not None and not (isinstance(names, list) and all(isinstance(one, str) for one in names)):
        yield f"architectures = {names!r} is no list of names"
    for place, value in _fields(raw):
        name = place.rpartition(".")[2]
        most = MOST_LAYERS if name == "num_hidden_layers" else 2**31 - 1
        if name in SIZES + OTHER_SIZES and not (type(value) is int and 0 < value <= most):
            yield f"{place} = {value!r} is no whole number from 1 to {most}"
        elif name.endswith(DIVISORS) and not all(map(_is_divisor, value if isinstance(value, list) else [value])):
            yield f"{place} = {value!r} is no number above 0"
        elif name in ACTIVATIONS and not (isinstance(value, str) and value in ACT2CLS):
            yield f"{place} = {value!r} is no activation that transformers knows"
        elif "rope_" in place and name in ("rope_type", "type") and value not in {*RENAMED, *ROPE_INIT_FUNCTIONS}:
            yield f"{place} = {value!r} is no rotary embedding that transformers knows"


def _fields(raw: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Names with values, also in the parts that have fields of their own."""
    for name, value in raw.items():
        if isinstance(value, Mapping) and name in ("text_config", *ROPES):
            yield from ((f"{name}.{below}", found) for below, found in _fields(value))
        elif value is not None:
            yield name, value


def _is_divisor(value: object) -> bool:
    return isinstance(value, int | float) and type(value) is not bool and math.isfinite(value) and value > 0
