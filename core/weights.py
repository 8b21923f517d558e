"""Model weights as one flat byte buffer per data type, with a manifest that names the tensors and a digest.

The learner calls `flatten`, the buffers travel (object store, NCCL, ...), every engine calls `unflatten` and
acknowledges with the version and the digest of what it received. Invariant: `unflatten(flatten(w)) == w` bit for bit.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
import xxhash

from core.records import FloatArray, IntArray

Buffer = npt.NDArray[np.uint8]
NamedTensor = tuple[str, torch.Tensor]
WeightHandle = Any
"""A Ray object reference to `Weights` (core does not import Ray)."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Where one tensor lies: `count` elements of `dtype` from byte `offset` of the buffer of that type."""

    name: str  # Hugging Face parameter name
    dtype: str  # "float32", "bfloat16"
    shape: tuple[int, ...]
    offset: int  # bytes
    size: int  # bytes


@dataclass(frozen=True, slots=True)
class Manifest:
    """What the buffers hold."""

    version: int
    tensors: tuple[TensorSpec, ...]
    digest: str  # 32 hex digits, see `digest`


@dataclass(frozen=True, slots=True)
class Weights:
    """A version of a model's weights: pickles with its buffers out of band (one shared copy per node under Ray)."""

    manifest: Manifest
    buffers: Mapping[str, Buffer]  # dtype name -> flat bytes


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """What one engine says it has loaded."""

    engine: str
    version: int
    digest: str


def flatten(named: Iterable[NamedTensor], version: int) -> Weights:
    """Copy the tensors (any device) into one byte buffer per data type on the CPU."""
    parts: dict[str, list[Buffer]] = {}
    offsets: dict[str, int] = {}
    specs: list[TensorSpec] = []
    for name, tensor in named:
        dtype = str(tensor.dtype).removeprefix("torch.")
        flat = tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8).numpy()
        offset = offsets.get(dtype, 0)
        specs.append(TensorSpec(name, dtype, tuple(tensor.shape), offset, flat.size))
        parts.setdefault(dtype, []).append(flat)
        offsets[dtype] = offset + flat.size
    buffers = {dtype: np.concatenate(chunks) for dtype, chunks in parts.items()}
    return Weights(Manifest(version, tuple(specs), digest(specs, buffers)), buffers)


def unflatten(weights: Weights) -> Iterator[NamedTensor]:
    """The named tensors, as views of the buffers (read-only when the buffers are: copy before writing)."""
    for spec in weights.manifest.tensors:
        raw = weights.buffers[spec.dtype][spec.offset : spec.offset + spec.size]
        flat = torch.frombuffer(raw.data, dtype=getattr(torch, spec.dtype))
        yield spec.name, flat.reshape(spec.shape)


def digest(specs: Iterable[TensorSpec], buffers: Mapping[str, Buffer]) -> str:
    """128-bit hash of names, shapes, placement and bytes: what every engine must acknowledge."""
    state = xxhash.xxh3_128()
    for spec in specs:
        state.update(repr((spec.name, spec.dtype, spec.shape, spec.offset)).encode())
    for dtype in sorted(buffers):
        state.update(np.ascontiguousarray(buffers[dtype]).data)
    return state.hexdigest()


class WeightReceiver(Protocol):
    """Whoever the learner broadcasts to (the rollout pool)."""

    def load_weights(self, handle: WeightHandle) -> list[Acknowledgement]:
        """Swap the weights of every engine between two engine steps; one acknowledgement per engine."""

    def sequence_logprobs(self, sequences: Sequence[IntArray]) -> list[list[FloatArray]]:
        """[engine][sequence][T - 1]: log-probability of tokens 1..T-1 of each sequence at temperature 1."""
