"""Direct transfer of weights from learner rank 0 to the engines, next to the copy in the object store.

`pack` stages buckets in a `Sender` and puts its offer into `Weights.direct`, on which engines call `receive`. Each
broadcast has a new process group, so engines may die or start between two; a late one reads the copy.

Invariants: torch's default process group is not touched. Every wait has a deadline. The receiver's digest decides
whether the bytes are right.
"""

import logging
import pickle
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import accumulate, groupby
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.multiprocessing  # teaches ForkingPickler to pass tensors by handle
from torch.distributed import BroadcastOptions, ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]

from core.weights import DirectTransfer, Manifest, Member, Received, Sender, SenderHost, TensorSpec

ALIGNMENT = 16
"""Every tensor in a flat bucket begins at a multiple of so many bytes, so that it can be viewed as any type."""
GROUP_SECONDS = 60.0  # longest wait of the sender for a receiver, and for one bucket, after the first engine has joined
WORLD = "world"  # key under which the engines tell the sender the size of the group; NOBODY: no engine joins
NOBODY = "0"

logger = logging.getLogger("retrospect.transport")


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where rank 0 of a group waits for the others, to broadcast the buckets once, in order."""

    host: str
    port: int

    def receive(self, manifest: Manifest, member: Member) -> list[Received]:
        """Join as rank `member.rank`. Raises RuntimeError when another member does not join, or fails."""
        store = self.connect(member.seconds)
        store.set(WORLD, str(member.world))
        group = join(store, member)
        try:
            buckets: list[Received] = []
            for specs in by_bucket(manifest):
                flat = torch.empty(offsets(specs)[-1], dtype=torch.uint8, device=member.device)
                send(group, flat)
                buckets.append(split(flat, specs))
            return buckets
        finally:
            group.shutdown()

    def connect(self, seconds: float) -> TCPStore:
        """Connect to the rendezvous's store. Raises RuntimeError when that fails for `seconds`."""
        return TCPStore(self.host, self.port, is_master=False, timeout=timedelta(seconds=seconds))


@dataclass(frozen=True, slots=True)
class MemoryHandles:
    """A pickled handle per bucket to the sender's memory: CUDA's between processes on a GPU, else shared memory."""

    pickled: tuple[bytes, ...]

    def receive(self, manifest: Manifest, member: Member) -> list[Received]:
        """Map the sender's memory: nothing is copied. Raises RuntimeError when a handle cannot be opened here."""
        found: list[Received] = []
        for handle, specs in zip(self.pickled, by_bucket(manifest), strict=True):
            try:
                flat: torch.Tensor = pickle.loads(handle)
            except (pickle.UnpicklingError, OSError, EOFError) as error:
                raise RuntimeError(f"not a handle of this machine: {error}") from error
            flat.untyped_storage()._shared_incref()  # torch expects one reader per handle; there are several
            found.append(split(flat.to(member.device), specs))
        return found


@dataclass(frozen=True, slots=True)
class OfPairs:
    """An offer of every learner rank, for the engine of its number: they share a GPU (on CPU a machine)."""

    offers: tuple[DirectTransfer, ...]

    def receive(self, manifest: Manifest, member: Member) -> list[Received]:
        """The buckets of the engine's own rank. Raises RuntimeError as that offer does."""
        return self.offers[member.engine].receive(manifest, member)


class GroupSender(Sender):
    """Channel `collective`: one broadcast to all engines, by NCCL between GPUs and by Gloo between CPUs."""

    def __init__(self, host: SenderHost) -> None:
        self._host = host
        self._flats: list[torch.Tensor] = []
        self._sending: threading.Thread | None = None
        self._store: TCPStore | None = None
        self._group: Any = None

    def stage(self, tensors: Sequence[torch.Tensor]) -> None:
        """Keep a copy of a bucket, on the tensors' device."""
        self._flats.append(flattened(tensors))

    def offer(self) -> Rendezvous:
        """Start a thread that waits for the engines and then broadcasts."""
        store = serve_store(self._host.host, GROUP_SECONDS)
        self._store = store
        self._sending = threading.Thread(target=self._send, args=(store,), name="weight-broadcast", daemon=True)
        self._sending.start()
        return Rendezvous(self._host.host, int(store.port))

    def close(self) -> None:
        """End the group, even if no engine joined, and free the copies."""
        if self._store is not None and self._sending is not None:
            if self._sending.is_alive():  # on a second connection: the thread's own is blocked in `wait`
                Rendezvous(self._host.host, int(self._store.port)).connect(GROUP_SECONDS).set(WORLD, NOBODY)
            self._sending.join()
        if self._group is not None:
            self._group.shutdown()
        self._sending = self._store = self._group = None
        self._flats = []

    def _send(self, store: TCPStore) -> None:
        try:
            store.wait([WORLD], timedelta(seconds=self._host.seconds))
            world = store.get(WORLD).decode()
            if world == NOBODY:
                return
            # kept until `close`: engines may still be passing data on to each other
            self._group = join(store, Member(0, int(world), self._host.device, GROUP_SECONDS))
            for flat in self._flats:
                send(self._group, flat)
        except RuntimeError as error:  # an engine that misses something reports it and reads the object store's copy
            logger.warning("weight broadcast to a group: %s", error)


class HandleSender(Sender):
    """Channel `ipc`: engines on this process's GPU (on CPU: its machine) read its memory."""

    def __init__(self, host: SenderHost) -> None:
        if host.device == "cpu":
            torch.multiprocessing.set_sharing_strategy("file_system")  # file descriptors pass only from parent to child
        self._flats: list[torch.Tensor] = []

    def stage(self, tensors: Sequence[torch.Tensor]) -> None:
        """Keep a copy of a bucket: the next optimizer step must not change it while engines read."""
        self._flats.append(flattened(tensors))

    def offer(self) -> MemoryHandles:
        """Handles to all copies, once they are complete in memory."""
        if self._flats:
            synchronise(self._flats[0].device.type)
        return MemoryHandles(tuple(bytes(ForkingPickler.dumps(flat)) for flat in self._flats))

    def close(self) -> None:
        """Free the copies; a reader that still maps one keeps its memory."""
        for flat in self._flats:
            flat.untyped_storage()._shared_decref()  # counted when the handle was pickled; see `MemoryHandles.receive`
        self._flats = []


def serve_store(host: str, seconds: float) -> TCPStore:
    """A store that listens on a free port of the address `host` alone, not of all of the machine's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, 0), family=family, backlog=1024)
    port, timeout = listener.getsockname()[1], timedelta(seconds=seconds)
    store = TCPStore(
        host, port, is_master=True, wait_for_workers=False, timeout=timeout, master_listen_fd=listener.fileno()
    )
    listener.detach()  # the store closes it
    return store


def alone(backend: str) -> None:
    """Make this process torch's default group, unless it is in one. (vLLM's own store would listen everywhere.)"""
    if not torch.distributed.is_initialized():
        store = serve_store("127.0.0.1", GROUP_SECONDS)
        torch.distributed.init_process_group(backend, store=store, rank=0, world_size=1)


def join(store: TCPStore, member: Member) -> Any:
    """A process group of `member.world` members that meet at `store`; the backend follows from the device."""
    timeout = timedelta(seconds=member.seconds)
    if member.device == "cpu":
        return ProcessGroupGloo(store, member.rank, member.world, timeout)
    from torch.distributed import ProcessGroupNCCL  # is not in CPU builds

    options = ProcessGroupNCCL.Options()
    options._timeout = timeout
    return ProcessGroupNCCL(store, member.rank, member.world, options)


def send(group: Any, flat: torch.Tensor) -> None:
    """Broadcast rank 0's bytes into every member's `flat`; returns when they have arrived."""
    options = BroadcastOptions()
    options.rootRank = 0
    group.broadcast([flat], options).wait()
    synchronise(flat.device.type)  # NCCL's `wait` orders streams but does not block the host


def synchronise(device: str) -> None:
    """Wait until a GPU has finished its work; then its inputs may be changed or freed."""
    if device == "cuda":
        torch.cuda.synchronize()


def by_bucket(manifest: Manifest) -> Iterator[list[TensorSpec]]:
    """The tensors of each bucket in order."""
    for _, specs in groupby(manifest.tensors, key=lambda spec: spec.bucket):
        yield list(specs)


def offsets(tensors: Sequence[TensorSpec | torch.Tensor]) -> list[int]:
    """Byte at which each tensor begins in the flat bucket, and last the bucket's size."""
    return [0, *accumulate(-(-tensor.nbytes // ALIGNMENT) * ALIGNMENT for tensor in tensors)]


def flattened(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """One uint8 tensor with the bytes of all, each aligned, on their device."""
    begins = offsets(tensors)
    flat = torch.zeros(begins[-1], dtype=torch.uint8, device=tensors[0].device)
    for begin, tensor in zip(begins, tensors, strict=False):
        flat[begin : begin + tensor.nbytes] = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return flat


def split(flat: torch.Tensor, specs: Sequence[TensorSpec]) -> Received:
    """Undo `flattened`: views, without the padding."""
    return [flat[begin : begin + spec.nbytes] for begin, spec in zip(offsets(specs), specs, strict=False)]
