"""Where a shard keeps the tokens of its trajectories: once each, in chunks that never move while they are written.

Used by `replay/shard.py` alone. Invariants: a trajectory lies in one chunk; written tokens are never changed, so a
snapshot may read chunks while the shard goes on; dead tokens are at most a fifth of the live ones plus two chunks.
"""

import copy

import numpy as np
import numpy.typing as npt

from replay.batch import Ints, Tokens
from replay.keys import Rows, ragged
from replay.table import Growing

CHUNK = 1 << 22
"""Tokens per chunk (longer trajectories get a chunk of their own): large enough for numpy to ask for huge pages."""
_SHIFT = np.int64(32)
_MASK = np.int64(0xFFFFFFFF)


class Arena:
    """Append-only token storage with addresses of 64 bits: chunk number and offset."""

    def __init__(self, dtype: np.dtype[np.unsignedinteger], chunk: int = CHUNK) -> None:
        self._dtype = dtype
        self.itemsize = dtype.itemsize
        self._chunk = chunk
        self._chunks: dict[int, Tokens] = {}
        self._used: dict[int, int] = {}  # tokens written to each chunk
        self._next = 0
        self._bases = Growing(np.dtype(np.int64))  # where each chunk begins in memory
        self._kind: Tokens = np.zeros(0, dtype)
        self.live = 0  # tokens that belong to a trajectory of the shard

    @property
    def nbytes(self) -> int:
        """Bytes of all written tokens, dead ones included."""
        return sum(self._used.values()) * self._dtype.itemsize

    def append(self, tokens: Tokens, sizes: Ints) -> Rows:
        """Store trajectories that lie one after the other in `tokens`; their addresses, [T]."""
        addresses = np.empty(len(sizes), np.int64)
        ends = np.cumsum(sizes, dtype=np.int64)
        done, base = 0, 0
        while done < len(sizes):
            name = self._next - 1
            room = len(self._chunks[name]) - self._used[name] if name in self._chunks else 0
            stop = int(np.searchsorted(ends, base + room, side="right"))
            if stop == done:
                self._open(max(self._chunk, int(sizes[done])))
                continue
            used, last = self._used[name], int(ends[stop - 1])
            self._chunks[name][used : used + last - base] = tokens[base:last]
            addresses[done:stop] = (np.int64(name) << _SHIFT) + used + (ends[done:stop] - sizes[done:stop] - base)
            self._used[name] = used + last - base
            done, base = stop, last
        self.live += base
        return addresses

    def _open(self, size: int) -> None:
        made: Tokens = np.empty(size, self._dtype)
        self._chunks[self._next], self._used[self._next] = made, 0
        self._bases.extend(1)
        self._bases.rows[self._next] = made.__array_interface__["data"][0]
        self._next += 1

    @property
    def chunks(self) -> tuple[Rows, Tokens]:
        """Where each chunk begins in memory, by number, and an empty array of their type: what `drawing.copy_out` reads by.

        Good until the next `append` or `compact`.
        """
        return self._bases.rows, self._kind

    def gather(self, addresses: Rows, lengths: Ints) -> Tokens:
        """The first `lengths[i]` tokens of each trajectory, one after the other."""
        chunks = self._chunks
        ends = ((addresses & _MASK) + lengths).tolist()
        places = zip((addresses >> _SHIFT).tolist(), (addresses & _MASK).tolist(), ends, strict=True)
        parts = [chunks[name][start:end] for name, start, end in places]
        return np.concatenate(parts) if parts else np.zeros(0, self._dtype)

    def release(self, tokens: int) -> None:
        """Count tokens of removed trajectories as dead; `wasteful` then says when to compact."""
        self.live -= tokens

    def frozen(self) -> "Arena":
        """A reader of what is stored now."""
        other = copy.copy(self)
        other._chunks, other._used, other._bases = dict(self._chunks), dict(self._used), self._bases.copy()
        return other

    @property
    def wasteful(self) -> bool:
        """Whether more than a fifth (and two chunks) of what is written is dead."""
        written = sum(self._used.values())
        return written - self.live > max(self.live // 5, 2 * self._chunk)

    def compact(self, addresses: Rows, sizes: Ints) -> Rows:
        """Rewrite the chunks that are less than nine tenths alive; the new addresses of the given live trajectories."""
        chunk_of = addresses >> _SHIFT
        names, inverse = np.unique(chunk_of, return_inverse=True)
        alive = dict(zip(names.tolist(), np.bincount(inverse, weights=sizes).tolist(), strict=True))
        moved = addresses.copy()
        current = self._next - 1
        for name in [n for n in self._chunks if n != current]:
            if alive.get(name, 0) >= 0.9 * self._used[name]:
                continue
            old = self._chunks.pop(name)
            del self._used[name]
            inside = np.flatnonzero(chunk_of == name)
            if len(inside):
                tokens = old[ragged(addresses[inside] & _MASK, sizes[inside].astype(np.int64))]
                moved[inside] = self.append(tokens, sizes[inside])
                self.live -= len(tokens)
        return moved


def ends_of(counts: npt.NDArray[np.integer]) -> Rows:
    """[len + 1] offsets of consecutive runs of the given lengths."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
