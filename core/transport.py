"""Direct ways for weights from learner rank 0 to the engines, beside the copy that every broadcast leaves in the object store.

`learner.distributed.worker` owns a `Sender`, gives it every bucket while `core.weights.pack` publishes it, and sends its offer along as
`Weights.direct`; `actors.actor` calls `receive` on that. Invariants: torch's default process group is not touched; no wait is
without a deadline; what is received is told from what was sent by its digest alone, so a receiver never trusts a channel.

A group is made for one broadcast, of the engines that serve at that moment: whoever died, left or joined since the last one
needs no word. An engine that starts between two broadcasts reads the object store's copy and needs no learner for it.
"""

import logging
import pickle
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import accumulate, groupby
from math import prod
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.multiprocessing  # teaches ForkingPickler to pass tensors by handle
from torch.distributed import BroadcastOptions, ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]

from core.weights import Home, Manifest, Place, Received, Sender, TensorSpec

ALIGNMENT = 16
"""Bytes that every tensor's place in a flat bucket is a multiple of, so that it can be viewed as any type."""
GROUP_SECONDS = 60.0
"""Longest wait of the sender for a receiver, and for one bucket, once an engine has asked for the group."""
WORLD = "world"
"""Key under which the engines tell the sender how large the group is; NOBODY: it was not needed."""
NOBODY = "0"

logger = logging.getLogger("retrospect.transport")


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where rank 0 of a group waits to broadcast the buckets once, in order."""

    host: str
    port: int

    def receive(self, manifest: Manifest, place: Place) -> list[Received]:
        """Join as rank `place.rank`. Raises RuntimeError when another member does not come or is lost."""
        store = self.connect(place.seconds)
        store.set(WORLD, str(place.world))
        group = join(store, place)
        try:
            buckets: list[Received] = []
            for specs in by_bucket(manifest):
                flat = torch.empty(places(specs)[-1], dtype=torch.uint8, device=place.device)
                send(group, flat)
                buckets.append(split(flat, specs))
            return buckets
        finally:
            group.shutdown()

    def connect(self, seconds: float) -> TCPStore:
        """A connection to the meeting's store. Raises RuntimeError when there is none within `seconds`."""
        return TCPStore(self.host, self.port, is_master=False, timeout=timedelta(seconds=seconds))


@dataclass(frozen=True, slots=True)
class Handles:
    """One pickled handle per bucket to memory of the sender's: CUDA's between processes on a GPU, else the host's, shared."""

    pickled: tuple[bytes, ...]

    def receive(self, manifest: Manifest, place: Place) -> list[Received]:
        """Map the sender's memory: nothing is copied. Raises RuntimeError when it is not there."""
        found: list[Received] = []
        for handle, specs in zip(self.pickled, by_bucket(manifest), strict=True):
            try:
                flat: torch.Tensor = pickle.loads(handle)
            except (pickle.UnpicklingError, OSError, EOFError) as error:
                raise RuntimeError(f"not a handle of this machine: {error}") from error
            flat.untyped_storage()._shared_incref()  # torch counts a handle as used up by its first reader; there are several
            found.append(split(flat.to(place.device), specs))
        return found


class GroupSender(Sender):
    """Channel `collective`: one broadcast to all engines, by NCCL between GPUs and by Gloo between CPUs."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._flats: list[torch.Tensor] = []
        self._sending: threading.Thread | None = None
        self._store: TCPStore | None = None
        self._group: Any = None

    def stage(self, tensors: Sequence[torch.Tensor]) -> None:
        """Keep a copy of a bucket, on the tensors' device."""
        self._flats.append(flattened(tensors))

    def offer(self) -> Meeting:
        """Begin to wait for the engines, on a thread of its own."""
        store = TCPStore(
            self._home.host, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=GROUP_SECONDS)
        )
        self._store = store  # whoever comes late, `close` too, must find it
        self._sending = threading.Thread(target=self._send, args=(store,), name="weight-broadcast", daemon=True)
        self._sending.start()
        return Meeting(self._home.host, int(store.port))

    def close(self) -> None:
        """End the group, also one that nobody came to, and free the copies."""
        if self._store is not None and self._sending is not None:
            if self._sending.is_alive():  # a connection of its own: the thread's is busy waiting
                Meeting(self._home.host, int(self._store.port)).connect(GROUP_SECONDS).set(WORLD, NOBODY)
            self._sending.join()
        if self._group is not None:
            self._group.shutdown()
        self._sending = self._store = self._group = None
        self._flats = []

    def _send(self, store: TCPStore) -> None:
        try:
            store.wait([WORLD], timedelta(seconds=self._home.seconds))
            world = store.get(WORLD).decode()
            if world == NOBODY:
                return
            # kept until `close`: engines may still be passing data on to each other
            self._group = join(store, Place(0, int(world), self._home.device, GROUP_SECONDS))
            for flat in self._flats:
                send(self._group, flat)
        except RuntimeError as error:  # every engine that misses something says so itself and has another way
            logger.warning("weight broadcast to a group: %s", error)


class HandleSender(Sender):
    """Channel `ipc`: engines on this process's GPU (on CPU: its machine) read its memory."""

    def __init__(self, home: Home) -> None:
        if home.device == "cpu":
            torch.multiprocessing.set_sharing_strategy("file_system")  # descriptors pass between relatives only
        self._flats: list[torch.Tensor] = []

    def stage(self, tensors: Sequence[torch.Tensor]) -> None:
        """Keep a copy of a bucket: the optimizer's next step must not change what is being read."""
        self._flats.append(flattened(tensors))

    def offer(self) -> Handles:
        """Handles to all copies, complete in memory."""
        if self._flats:
            complete(self._flats[0].device.type)
        return Handles(tuple(bytes(ForkingPickler.dumps(flat)) for flat in self._flats))

    def close(self) -> None:
        """Free the copies; a reader that still holds one keeps its memory."""
        for flat in self._flats:
            flat.untyped_storage()._shared_decref()  # the one that the handle held; see `Handles.receive`
        self._flats = []


def join(store: TCPStore, place: Place) -> Any:
    """A process group of `place.world` members that meet at `store`; the backend follows from the device."""
    timeout = timedelta(seconds=place.seconds)
    if place.device == "cpu":
        return ProcessGroupGloo(store, place.rank, place.world, timeout)
    from torch.distributed import ProcessGroupNCCL  # is not in CPU builds

    options = ProcessGroupNCCL.Options()
    options._timeout = timeout
    return ProcessGroupNCCL(store, place.rank, place.world, options)


def send(group: Any, flat: torch.Tensor) -> None:
    """Rank 0's bytes into everybody's `flat`; returns when they are there."""
    options = BroadcastOptions()
    options.rootRank = 0
    group.broadcast([flat], options).wait()
    complete(flat.device.type)  # NCCL's wait orders streams, not the host


def complete(device: str) -> None:
    """Wait for what was given to a GPU; others may then change or free what it reads."""
    if device == "cuda":
        torch.cuda.synchronize()


def by_bucket(manifest: Manifest) -> Iterator[list[TensorSpec]]:
    """The tensors of each bucket in order."""
    for _, specs in groupby(manifest.tensors, key=lambda spec: spec.bucket):
        yield list(specs)


def places(specs: Sequence[TensorSpec]) -> list[int]:
    """Where each tensor begins in the flat bucket (bytes), and last where the bucket ends."""
    return _places([prod(spec.shape) * getattr(torch, spec.dtype).itemsize for spec in specs])


def flattened(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """One uint8 tensor with the bytes of all, on their device, each aligned."""
    begins = _places([tensor.nbytes for tensor in tensors])
    flat = torch.zeros(begins[-1], dtype=torch.uint8, device=tensors[0].device)
    for begin, tensor in zip(begins, tensors, strict=False):
        flat[begin : begin + tensor.nbytes] = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return flat


def split(flat: torch.Tensor, specs: Sequence[TensorSpec]) -> Received:
    """Undo `flattened`: views, without the padding."""
    sizes = [prod(spec.shape) * getattr(torch, spec.dtype).itemsize for spec in specs]
    return [flat[begin : begin + size] for begin, size in zip(places(specs), sizes, strict=False)]


def _places(sizes: Sequence[int]) -> list[int]:
    return [0, *accumulate(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)]
