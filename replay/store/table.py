"""Named numpy columns of one length. A shard stores its states, trajectories and problems in them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[Any]

DECAY = 0.95
"""Weight of an outcome after one more visit of its problem: about 20 are remembered."""
Schema = Mapping[str, type[np.generic]]

STATE: Schema = {
    "key": np.uint64,
    "parent": np.uint64,  # state that it descends from, 0: the root
    "problem": np.int32,
    "trajectory": np.int32,
    "length": np.int32,  # tokens of the prefix
    "left": np.float32,  # share of the decisions of its trajectory that are still to come
    "value": np.float32,
    "version": np.int32,  # weight version that computed the value
    "priority": np.float32,  # for drawing; -inf: never drawn
    "retention": np.float32,  # for eviction: the lowest goes first
    "wins": np.float32,  # its continuations that succeeded, decayed
    "losses": np.float32,  # the same of those that failed
    "tried": np.uint16,  # continuations so far (saturates)
    "solved": np.uint16,
    "provenance": np.uint8,
}
TRAJECTORY: Schema = {
    "tokens": np.object_,  # `bytes` of the first `stored` tokens
    "stored": np.int32,
    "size": np.int32,  # tokens of the whole response
    "reward": np.float32,
}
PROBLEM: Schema = {
    "hash": np.uint64,
    "wins": np.float32,  # the same of rollouts from the root
    "losses": np.float32,
    "version": np.int32,  # weight version up to which the outcomes of the problem and its states are decayed
    "tried": np.int32,  # rollouts from the root so far
    "solved": np.int32,
}


class Table:
    """Columns of one length."""

    def __init__(self, schema: Schema) -> None:
        self._columns: dict[str, Column] = {name: np.zeros(0, dtype) for name, dtype in schema.items()}
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, name: str) -> Column:
        """A column; writing to it changes the table. `append` and `keep` make new columns."""
        return self._columns[name]

    def __setitem__(self, name: str, column: Column) -> None:
        """Replace a column by one of its type and length."""
        assert len(column) == self._rows
        self._columns[name] = column.astype(self._columns[name].dtype, copy=False)

    def append(self, count: int, columns: Mapping[str, Column]) -> int:
        """Append rows; columns that are not given are 0. Returns the number of the first new row."""
        for name, old in self._columns.items():
            new = np.asarray(columns[name], old.dtype) if name in columns else np.zeros(count, old.dtype)
            self._columns[name] = np.concatenate([old, new])
        self._rows += count
        return self._rows - count

    def keep(self, rows: npt.NDArray[np.int64]) -> None:
        """Keep these rows only, in this order."""
        self._columns = {name: column.take(rows) for name, column in self._columns.items()}
        self._rows = len(rows)

    @property
    def nbytes(self) -> int:
        """Bytes of all columns."""
        return sum(column.nbytes for column in self._columns.values())
