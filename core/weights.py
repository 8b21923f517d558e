"""Model weights as buckets of flat byte buffers, with a manifest of names and a digest. The learner calls `pack`; the
buckets travel through the object store or `core.transport`; every engine calls `unpack` and acknowledges version and
digest. Invariants: `unpack(pack(w)) == w` bit for bit; memory never has a second copy of the model or of a bucket."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
import xxhash

from core.machine import UNKNOWN, Memory
from core.records import FloatArray, IntArray

Buffer = npt.NDArray[np.uint8]
Bucket = list[Buffer]  # the bytes of some tensors, one buffer each. Ray keeps one shared copy per node.
Received = list[torch.Tensor]  # a bucket from a direct transfer: the same bytes as uint8 tensors on the engine's device
NamedTensor = tuple[str, torch.Tensor]
BUCKET_BYTES = 2**28  # bytes after which a bucket is full; a larger tensor has a bucket to itself


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Describes one tensor of a bucket; in the order of the bucket's buffers."""

    name: str  # Hugging Face parameter name
    dtype: str  # "float32", "bfloat16"
    shape: tuple[int, ...]
    bucket: int

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return int(prod(self.shape) * getattr(torch, self.dtype).itemsize)


@dataclass(frozen=True, slots=True)
class Manifest:
    """Describes the content of all buckets."""

    version: int
    tensors: tuple[TensorSpec, ...]
    digest: str  # 32 hex digits, see `digest`


@dataclass(frozen=True, slots=True)
class SenderHost:
    """Where the sender of a broadcast runs."""

    device: str  # "cpu" or "cuda"
    host: str  # its address for the engines
    seconds: float  # longest wait for the first engine


@dataclass(frozen=True, slots=True)
class Member:
    """One process that takes part in a direct transfer."""

    rank: int  # 0 is the sender
    world: int  # number of processes, with the sender
    device: str  # "cpu" or "cuda"
    seconds: float  # longest wait for another process
    engine: int = 0  # number of a receiver among all engines, also those that do not take part


class DirectTransfer(Protocol):
    """How engines receive one broadcast directly from the sender; see `core.transport`."""

    def receive(self, manifest: Manifest, member: Member) -> list[Received]:
        """The buckets. Raises RuntimeError when they do not arrive."""


class Sender(Protocol):
    """Sends weights directly from learner rank 0 to the engines; see `core.transport`."""

    def __init__(self, host: SenderHost) -> None: ...

    def stage(self, tensors: Sequence[torch.Tensor]) -> None:
        """Keep a copy of a bucket to send."""

    def offer(self) -> DirectTransfer:
        """What the engines need to receive the staged buckets."""

    def close(self) -> None:
        """Free the staged buckets; called once every engine has answered. Idempotent."""


@dataclass(frozen=True, slots=True)
class Weights:
    """A version of a model's weights."""

    manifest: Manifest
    buckets: tuple[Any, ...]  # of `Bucket`, or of what `publish` returned for it: Ray object references
    direct: DirectTransfer | None = None  # faster access to the same bytes, for engines that serve during the broadcast


WeightHandle = Weights | Any
"""What the learner sends to the engines: `Weights`, or a Ray object reference to them (core does not import Ray)."""


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """Which weights one engine has loaded."""

    engine: str
    version: int
    digest: str
    fallback: str = ""  # why it read the object store's copy although a direct transfer was offered
    memory: Memory = UNKNOWN  # the most that it has had, with the swap


def copied(bucket: Bucket) -> Bucket:
    """Publish a bucket within this process: a copy that later optimizer steps do not change."""
    return [buffer.copy() for buffer in bucket]


def pack(
    named: Iterable[NamedTensor],
    version: int,
    publish: Callable[[Bucket], Any] = copied,
    bucket_bytes: int = BUCKET_BYTES,
    sender: Sender | None = None,
) -> Weights:
    """Publish the tensors (any device, consumed one by one) bucket by bucket. `publish` copies a bucket and returns a
    handle by which engines get it (`ray.put`); `sender` offers the same bytes directly."""
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


def stage(named: Iterable[NamedTensor], sender: Sender, bucket_bytes: int = BUCKET_BYTES) -> DirectTransfer:
    """Offer the tensors directly alone, in the buckets of `pack`."""
    for tensors in bucketed(named, bucket_bytes):
        sender.stage([tensor for _, tensor in tensors])
    return sender.offer()


def bucketed(named: Iterable[NamedTensor], bucket_bytes: int) -> Iterator[list[NamedTensor]]:
    """Groups of consecutive tensors, each of at most `bucket_bytes` or a single larger tensor."""
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
    """128-bit hash of names, types, shapes, order and bytes. Every engine must acknowledge it."""
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
    """The receiving side of a broadcast: the rollout pool."""

    def load_weights(self, handle: WeightHandle) -> list[Acknowledgement]:
        """Swap the weights of every engine between two engine steps; one acknowledgement per engine."""

    def sequence_logprobs(self, sequences: Sequence[IntArray]) -> list[list[FloatArray]]:
        """[engine][sequence][T - 1]: log-probability of tokens 1..T-1 of each sequence at temperature 1."""
