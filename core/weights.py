"""Model weights as buckets of flat byte buffers, with a manifest that names the tensors and a digest.

The learner calls `pack`, the buckets travel (object store, and `core.transport`), every engine calls `unpack` and acknowledges with the
version and the digest of what it received. Invariants: `unpack(pack(w)) == w` bit for bit; a bucket is copied once, to where it is published,
so that memory never has a second copy of the model or of a bucket.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
import xxhash

from core.records import FloatArray, IntArray

Buffer = npt.NDArray[np.uint8]
Bucket = list[Buffer]
"""The bytes of some tensors, one buffer each. Ray keeps one shared copy per node."""
Received = list[torch.Tensor]
"""The same as uint8 tensors on the engine's device: a bucket that came directly."""
NamedTensor = tuple[str, torch.Tensor]
BUCKET_BYTES = 2**28
"""Bytes after which a bucket is full; a larger tensor has a bucket to itself."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What one tensor of a bucket is, in the order of the bucket's buffers."""

    name: str  # Hugging Face parameter name
    dtype: str  # "float32", "bfloat16"
    shape: tuple[int, ...]
    bucket: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """What the buckets hold."""

    version: int
    tensors: tuple[TensorSpec, ...]
    digest: str  # 32 hex digits, see `digest`


@dataclass(frozen=True, slots=True)
class SenderHost:
    """Where the sender of a broadcast runs."""

    device: str  # "cpu" or "cuda"
    host: str  # the address that engines reach it by
    seconds: float  # longest wait for the first of them


@dataclass(frozen=True, slots=True)
class Member:
    """One process of a broadcast."""

    rank: int  # 0 is the sender
    world: int  # number of processes, with the sender
    device: str  # "cpu" or "cuda"
    seconds: float  # longest wait for another


class Direct(Protocol):
    """What a sender offers to the engines for one broadcast; see `core.transport`."""

    def receive(self, manifest: Manifest, member: Member) -> list[Received]:
        """The buckets. Raises RuntimeError when they do not arrive."""


class Sender(Protocol):
    """A direct way for weights out of learner rank 0; see `core.transport`."""

    def __init__(self, host: SenderHost) -> None: ...

    def stage(self, tensors: Sequence[torch.Tensor]) -> None:
        """Take a bucket."""

    def offer(self) -> Direct:
        """What the engines need to receive what was staged."""

    def close(self) -> None:
        """Forget what was staged, once every engine has answered. Idempotent."""


@dataclass(frozen=True, slots=True)
class Weights:
    """A version of a model's weights."""

    manifest: Manifest
    buckets: tuple[Any, ...]  # of `Bucket`, or of what publishing one gave: Ray object references
    direct: Direct | None = None  # a faster way to the same bytes, for the engines that serve during the broadcast


WeightHandle = Weights | Any
"""What travels from the learner to the engines: `Weights`, or a Ray object reference to them (core does not import Ray)."""


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """What one engine says it has loaded."""

    engine: str
    version: int
    digest: str
    detour: str = ""  # why it read the object store's copy although there was a direct way


def copied(bucket: Bucket) -> Bucket:
    """Publishing within a process: a copy that later optimizer steps do not change."""
    return [buffer.copy() for buffer in bucket]


def pack(
    named: Iterable[NamedTensor],
    version: int,
    publish: Callable[[Bucket], Any] = copied,
    bucket_bytes: int = BUCKET_BYTES,
    sender: Sender | None = None,
) -> Weights:
    """Publish the tensors (any device) bucket by bucket.

    Args:
        named: Hugging Face names and tensors; taken one by one.
        version: of the weights.
        publish: copies a bucket to where engines find it and returns how they do (`ray.put`).
        bucket_bytes: when a bucket is full.
        sender: offers the same bytes by a direct way.
    """
    specs: list[TensorSpec] = []
    handles: list[Any] = []
    digests: list[Future[str]] = []
    with ThreadPoolExecutor(1) as hashing:  # a bucket is hashed while it is copied: both release the GIL
        for number, tensors in enumerate(bucketed(named, bucket_bytes)):
            if sender is not None:
                sender.stage([tensor for _, tensor in tensors])
            bucket = [_bytes(tensor) for _, tensor in tensors]
            digests.append(hashing.submit(_bucket_digest, bucket))
            handles.append(publish(bucket))
            specs += [_spec(name, tensor, number) for name, tensor in tensors]
            digests[-1].result()  # a bucket's memory is free before the next is gathered
    whole = _whole_digest(specs, [future.result() for future in digests])
    return Weights(Manifest(version, tuple(specs), whole), tuple(handles), sender.offer() if sender else None)


def bucketed(named: Iterable[NamedTensor], bucket_bytes: int) -> Iterator[list[NamedTensor]]:
    """Consecutive tensors, as many as fill `bucket_bytes`."""
    bucket: list[NamedTensor] = []
    size = 0
    for name, tensor in named:
        if bucket and size + tensor.nbytes > bucket_bytes:
            yield bucket
            bucket, size = [], 0
        bucket.append((name, tensor))
        size += tensor.nbytes
    if bucket:
        yield bucket


def resolved(weights: Weights, fetch: Callable[[Any], Bucket]) -> Weights:
    """The weights with their buckets in this process; `fetch` (`ray.get`) turns a handle into a bucket."""
    return replace(weights, buckets=tuple(fetch(handle) for handle in weights.buckets))


def unpack(weights: Weights) -> Iterator[NamedTensor]:
    """The named tensors, as views of the buffers (read-only when the buffers are: copy before writing)."""
    buffers = (buffer for bucket in weights.buckets for buffer in bucket)
    for spec, raw in zip(weights.manifest.tensors, buffers, strict=True):
        kind = getattr(torch, spec.dtype)
        flat = raw.view(kind) if isinstance(raw, torch.Tensor) else torch.frombuffer(raw.data, dtype=kind)
        yield spec.name, flat.reshape(spec.shape)


def digest(weights: Weights) -> str:
    """128-bit hash of names, types, shapes, order and bytes: what every engine must acknowledge."""
    return _whole_digest(weights.manifest.tensors, [_bucket_digest(bucket) for bucket in weights.buckets])


def _whole_digest(specs: Iterable[TensorSpec], buckets: Sequence[str]) -> str:
    names = [(spec.name, spec.dtype, spec.shape, spec.bucket) for spec in specs]
    return xxhash.xxh3_128(repr((names, list(buckets))).encode()).hexdigest()


def _bucket_digest(bucket: Bucket | Received) -> str:
    state = xxhash.xxh3_128()
    for buffer in bucket:
        host = buffer.cpu().numpy() if isinstance(buffer, torch.Tensor) else buffer
        state.update(np.ascontiguousarray(host).data)
    return state.hexdigest()


def _bytes(tensor: torch.Tensor) -> Buffer:
    buffer: Buffer = tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8).numpy()
    return buffer


def _spec(name: str, tensor: torch.Tensor, bucket: int) -> TensorSpec:
    return TensorSpec(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), bucket)


class WeightReceiver(Protocol):
    """Whoever the learner broadcasts to (the rollout pool)."""

    def load_weights(self, handle: WeightHandle) -> list[Acknowledgement]:
        """Swap the weights of every engine between two engine steps; one acknowledgement per engine."""

    def sequence_logprobs(self, sequences: Sequence[IntArray]) -> list[list[FloatArray]]:
        """[engine][sequence][T - 1]: log-probability of tokens 1..T-1 of each sequence at temperature 1."""
