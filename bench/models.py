"""What several benchmarks use: a local Ray, real data, and random Qwen2 models."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from core.startup import set_environment

if TYPE_CHECKING:
    import torch
    from transformers import Qwen2ForCausalLM


ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared" / "data"
DATA = Path(os.environ.get("RETROSPECT_DATA", SHARED if SHARED.is_dir() else ROOT / "tests" / "data"))
"""The folder of the data sets (CONTRIBUTING.md)."""
MODEL = "models/SmolLM2-135M-Instruct.Q4_1.gguf"
"""The pretrained model that `make model` puts into place."""
END = 0  # the token that ends a text


def local_ray() -> AbstractContextManager[object]:
    """A local Ray for this process, stopped at the end of the block."""
    set_environment()
    import ray

    context: AbstractContextManager[object] = ray.init(
        address="local", num_cpus=2, namespace="retrospect", include_dashboard=False, log_to_driver=False
    )
    return context


class Model(NamedTuple):
    """What engines generate with."""

    path: str
    dtype: str
    vocabulary: int
    title: str


@contextmanager
def measured_model(folder: str | None) -> Iterator[Model]:
    """The pretrained model in `folder`, in its own type; without one a random Qwen2 of 0.8 M parameters."""
    if folder is None:
        shape = Shape(2048, hidden=128, intermediate=256, layers=4, heads=4, key_value_heads=2)
        with tempfile.TemporaryDirectory() as path:
            build_model(Path(path), shape)
            yield Model(path, "float32", shape.vocabulary, "Qwen2, 0.8 M")
        return
    from transformers import AutoConfig

    from trainer.model.gguf import model_folder

    folder = model_folder(folder)
    config = AutoConfig.from_pretrained(folder)
    dtype = str(config.dtype or "float32").removeprefix("torch.")
    yield Model(folder, dtype, config.vocab_size, f"{Path(folder).name}, {dtype}")


@dataclass(frozen=True, slots=True)
class Shape:
    """A Qwen2 with tied embeddings."""

    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    key_value_heads: int


def build_model(path: Path, shape: Shape, dtype: "torch.dtype | None" = None) -> "Qwen2ForCausalLM":
    """Save a random model of this shape (`dtype`: float32 if none is given) and return it."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_value_heads,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        eos_token_id=END,
        bos_token_id=None,
    )
    model = Qwen2ForCausalLM(config).to(dtype or torch.float32)
    model.save_pretrained(path)
    return model
