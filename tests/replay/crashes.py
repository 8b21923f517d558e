"""A shard as a process has it that dies: between any two changes to its files, or after any byte of its log."""

import math
import os
import threading
from typing import Any

import numpy as np

from core.config import ReplayConfig
from replay.log import pack_frame, segment_name, segments
from replay.opening import MANIFEST, Identity
from replay.ops import Evict, Operation, encode
from replay.server import ReplayShard
from replay.shard import Shard
from replay.storage import Folder, find_manifest
from replay.table import PROBLEM, STATE, TRAJECTORY

VOCABULARY = 4


class Dead(BaseException):
    """The process is no more."""


class Gate:
    """Lets a number of changes to files through; before the next one a compaction rests, and anything else dies.

    While a compaction rests its process goes on: it may write, and die before the compaction has gone on.
    """

    def __init__(self, changes: float = math.inf, *, rests: bool = True) -> None:
        self._changes, self._rests = changes, rests
        self.dead = False
        self.resting, self._released = threading.Event(), threading.Event()

    def change(self) -> None:
        """Called before every change."""
        if self._rests and threading.current_thread() is threading.main_thread():
            return
        if self._changes > 0:
            self._changes -= 1
            return
        self.dead |= not self._rests
        if not self.dead:
            self.resting.set()
            self._released.wait()
        if self.dead:
            raise Dead
        self._changes = math.inf

    def release(self, *, dead: bool = False) -> None:
        """Let what rests go on, or die."""
        self.dead |= dead
        self._changes = 0 if dead else self._changes
        self._released.set()


class _Stream:
    """A file that is being written: nothing more comes to it from a process that is dead."""

    def __init__(self, gate: Gate, stream: Any) -> None:
        self._gate, self._stream = gate, stream

    def __enter__(self) -> "_Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def write(self, data: Any) -> int:
        return memoryview(data).nbytes if self._gate.dead else int(self._stream.write(data))

    def flush(self) -> None:
        self._stream.flush()


class _Files:
    """A file system behind a gate."""

    def __init__(self, folder: "_Gated", files: Any) -> None:
        self._folder, self._files = folder, files

    def open_output_stream(self, path: str) -> Any:
        self._folder.gate.change()
        return _Stream(self._folder.gate, self._files.open_output_stream(path))

    def delete_file(self, path: str) -> None:
        self._folder.gate.change()
        self._files.delete_file(path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)


class _Gated(Folder):
    """A folder behind a gate."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self.gate = Gate()
        self.files = _Files(self, self.files)

    def sync(self, name: str) -> None:
        self.gate.change()
        super().sync(name)


class Mortal(ReplayShard):
    """A shard on files that can be left as a killed process leaves them."""

    def __init__(self, directory: object, config: ReplayConfig) -> None:
        super().__init__(Identity(0, 1, VOCABULARY, "f"), config, str(directory))
        self.files = _Gated(self._folder.uri)
        self._folder = self.files

    def _rest(self, busy: float) -> None:  # noqa: ARG002  that of a shard
        """No longer than the gate says, between any two parts of a snapshot."""
        self.files.gate.change()

    def do(self, operation: Operation) -> None:
        """The next write."""
        self.write(self.extent().sequence + 1, operation)

    def compact_to(self, changes: int) -> None:
        """Compact, and rest before the change with this number; returns when it does, or when it is done."""
        self.settle()
        self.files.gate = Gate(changes)
        self.compact()
        assert self._compaction is not None
        while self._compaction.is_alive() and not self.files.gate.resting.wait(0.001):
            pass

    def settle(self) -> None:
        """Let the compaction come to its end."""
        self.files.gate.release()
        self._wait_for_compaction()

    def die(self, write: Operation, share: float) -> bool:
        """Leave the files as they are after this share of the bytes of a write; whether all of it is on disk."""
        sequence = self.extent().sequence + 1
        parts = pack_frame(sequence, *encode(write))
        if self._log._handle >= 0:
            name = segments(self.files)[-1]
        else:
            name = segment_name(sequence)
            parts = [*pack_frame(sequence - 1, 0, self._log._identity), *parts]
        self.abandon(share)
        whole = b"".join(parts)
        cut = round(share * len(whole))
        if cut:
            with open(self.files.where(name), "ab") as file:
                file.write(whole[:cut])
        return cut == len(whole)

    def abandon(self, share: float) -> None:
        """Leave the files as they are. Of what nothing on disk says is complete, a share is left: it was not flushed."""
        self.files.gate.release(dead=True)
        if self._compaction is not None:
            self._compaction.join()
        if self._shard is not None and self._log._handle >= 0:
            os.close(self._log._handle)
        for name in unfinished(self.files):
            os.truncate(self.files.where(name), round(share * os.path.getsize(self.files.where(name))))


def unfinished(folder: Folder) -> list[str]:
    """Files of a snapshot, or a manifest, that no manifest names (yet)."""
    names = folder.names()
    manifest = find_manifest(folder, MANIFEST)
    pieces = manifest["pieces"] if manifest else []
    finished = {entry["name"] for piece in pieces for entry in piece["part"]["files"].values()}
    return [n for n in names if (n.startswith("snapshot-") and n not in finished) or n.endswith(".partial")]


def least(shard: Shard | ReplayShard, count: int) -> Evict:
    """The write that removes the states of the least standing."""
    ranks, keys = shard.least(count)
    return Evict(int(ranks[-1]), int(keys[-1])) if len(keys) else Evict(0, 0)


def content(shard: Shard) -> dict[str, Any]:
    """All that a shard knows, whatever its rows and problems are numbered: what must be the same after a crash."""
    states = {}
    for problem, name in enumerate(shard.names):
        block = shard.blocks.gather(np.array([problem])).rows
        chains = shard.trajectories.rows[block["trajectory"]]
        tokens = shard.arena.gather(chains["address"], chains["size"])
        states[name] = [
            *([block[field].tolist() for field in STATE.names or () if field not in ("trajectory", "spare")]),
            *([chains[field].tolist() for field in TRAJECTORY.names or () if field not in ("address", "problem", "spare")]),
            tokens.tolist(),
        ]  # fmt: skip
    problems = shard.blocks.problems.rows
    kept = [field for field in PROBLEM.names or () if field not in ("start", "room", "spare")]
    return {
        "states": states,
        "problems": {name: [problems[field][i].item() for field in kept] for i, name in enumerate(shard.names)},
        "rest": (shard.counters, shard.version, shard.settings, shard.states, shard.content_bytes),
        "masses": shard.masses().tolist(),
    }
