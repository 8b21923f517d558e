"""The columns of a shard: states in one block per problem, trajectories, problems.

Used by `replay/shard.py`. Invariants: the live states of a problem are the first `count` rows of its block, oldest
first; a row outside every block's live part has key 0; what a problem's block holds depends only on the writes to that
problem, in their order.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from replay import kernels
from replay.keys import Rows, ragged

Table = npt.NDArray[Any]

STATE = np.dtype(
    [
        ("key", np.uint64),
        ("trajectory", np.uint32),
        ("length", np.int32),  # tokens of the prefix
        ("value", np.float32),
        ("version", np.int32),  # weight version of the last write
        ("promise", np.float32),  # what it is drawn by; -inf: not at all
        ("worth", np.float32),  # what it is kept by
        ("wins", np.float32),  # decayed count of correct continuations
        ("losses", np.float32),
        ("tried", np.uint16),  # continuations so far (saturates)
        ("solved", np.uint16),
        ("provenance", np.uint8),
        ("spare", np.uint8, 3),
    ]
)
"""48 bytes per state."""

TRAJECTORY = np.dtype(
    [
        ("address", np.int64),  # of its tokens in the arena
        ("parent", np.uint64),  # state it was started from, 0: the root
        ("problem", np.uint32),
        ("size", np.int32),  # tokens
        ("version", np.int32),
        ("reward", np.float32),
        ("provenance", np.uint8),
        ("spare", np.uint8, 3),
    ]
)

PROBLEM = np.dtype(
    [
        ("hash", np.uint64),
        ("start", np.int64),  # first row of its block
        ("count", np.int32),  # live states
        ("room", np.int32),  # rows of the block
        ("wins", np.float32),  # decayed root outcomes
        ("losses", np.float32),
        ("touched", np.int32),  # weight version up to which the outcomes of the problem and its states are decayed
        ("tried", np.int32),  # root rollouts seen
        ("solved", np.int32),
        ("spare", np.int32),
    ]
)


class Members(NamedTuple):
    """The states of some problems, gathered."""

    rows: Table  # [S], those of a problem adjacent, oldest first
    owner: Rows  # [S] index into the problems asked for
    where: Rows  # [S] row numbers in the table


def put(table: Table, where: Rows, rows: Table) -> None:
    """table[where] = rows, as whole rows of bytes: a structured assignment copies field by field, 10 times slower.

    For the same reason rows are read with `take`.
    """
    whole = f"V{table.dtype.itemsize}"
    table.view(whole)[where] = np.ascontiguousarray(rows).view(whole)


class Growing:
    """A table that grows at its end by a sixteenth, in place where the allocator allows."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._data = np.zeros(64, dtype)
        self.used = 0

    @property
    def rows(self) -> Table:
        """The rows in use. Fetch anew after `extend`: it may have moved."""
        return self._data[: self.used]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._data.nbytes

    def extend(self, count: int) -> int:
        """Append zero rows; the number of the first."""
        first = self.used
        if first + count > len(self._data):
            self._data.resize(max(first + count, len(self._data) * 17 // 16), refcheck=False)
        self.used = first + count
        return first

    def copy(self) -> "Growing":
        """The same rows elsewhere."""
        other = Growing(self._data.dtype)
        other._data, other.used = self.rows.copy(), self.used
        return other


class Blocks:
    """The states of a shard, one block of rows per problem."""

    def __init__(self) -> None:
        self.states = Growing(STATE)
        self.weights = Growing(np.dtype(np.float64))  # what each is drawn by; see `replay/drawing.py`
        self.problems = Growing(PROBLEM)
        self._free: dict[int, list[int]] = {}  # rows of a free block -> first rows

    def spans(self, problems: Rows) -> tuple[Rows, Rows]:
        """First rows and numbers of the states of problems."""
        table = self.problems.rows
        return table["start"][problems], table["count"][problems].astype(np.int64)

    def gather(self, problems: Rows) -> Members:
        """The live states of distinct problems."""
        starts, counts = self.spans(problems)
        where = ragged(starts, counts)
        return Members(self.states.rows.take(where), np.repeat(np.arange(len(problems)), counts), where)

    def write(self, problems: Rows, rows: Table, counts: Rows) -> None:
        """Replace the states of distinct problems by `rows`, `counts[i]` for problem i, one after the other."""
        self._reserve(problems, counts)
        kernels.store(self.states.rows, *self.spans(problems), rows, counts)
        self.problems.rows["count"][problems] = counts

    def _reserve(self, problems: Rows, counts: Rows) -> None:
        """Give problems whose block is too small a larger one; the old one's rows are cleared and reused."""
        table = self.problems.rows
        held = table["room"][problems]
        tight = np.flatnonzero(counts > held)
        if not len(tight):
            return
        short, rooms = problems[tight], _rooms(counts[tight])
        if held[tight].any():
            starts, old = self.spans(short)
            put(self.states.rows, ragged(starts, old), np.zeros(int(old.sum()), STATE))
            for room, start in zip(held[tight].tolist(), starts.tolist(), strict=True):
                if room:
                    self._free.setdefault(room, []).append(start)
        table["start"][short] = self._allocate(rooms)
        table["room"][short] = rooms
        table["count"][short] = 0

    def _allocate(self, rooms: Rows) -> Rows:
        starts = np.empty(len(rooms), np.int64)
        for room in np.unique(rooms).tolist():
            wanted = np.flatnonzero(rooms == room)
            free = self._free.get(room, [])
            reused = min(len(free), len(wanted))
            starts[wanted[:reused]] = [free.pop() for _ in range(reused)]
            fresh = wanted[reused:]
            starts[fresh] = self.states.extend(room * len(fresh)) + room * np.arange(len(fresh))
            self.weights.extend(room * len(fresh))
        return starts

    def copy(self) -> "Blocks":
        """The same states elsewhere, for reading."""
        other = Blocks()
        other.states, other.problems = self.states.copy(), self.problems.copy()
        return other

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        columns = self.states.nbytes + self.weights.nbytes + self.problems.nbytes
        return columns + sum(8 * len(free) for free in self._free.values())


def _rooms(counts: Rows) -> Rows:
    """Rows to reserve for so many states: the next of 4, 8, ..., 64, then steps of an eighth of the power of two."""
    step = np.maximum(4, 2 ** np.maximum(np.ceil(np.log2(np.maximum(counts, 1))) - 3, 2)).astype(np.int64)
    rooms: Rows = (counts + step - 1) // step * step
    return rooms
