"""What a write does to the states of the problems it touches: merging equal states, keeping the quota, finding keys.

Pure functions on rows of `replay/table.py`, called by the shard. Invariant: the result for one problem depends only on
that problem's rows and their order.
"""

import numpy as np
import numpy.typing as npt

from replay.keys import Keys, Rows, ragged
from replay.ranking import standing
from replay.table import Table, group_first

Mask = npt.NDArray[np.bool_]


def merge(rows: Table) -> Mask:
    """Merge rows of equal key into the first of them, in place; which rows remain, [S].

    The newer value wins (of equals the later row), outcome counts add up, and the state moves to the trajectory of the
    higher provenance: a proven prefix stays proven.
    """
    remain = np.ones(len(rows), np.bool_)
    order, starts = group_first(rows["key"])
    sizes = np.diff(np.append(starts, len(rows)))
    several = sizes > 1
    if not several.any():
        return remain
    starts, sizes = starts[several], sizes[several]
    members = order[ragged(starts, sizes)]
    group = np.repeat(np.arange(len(sizes)), sizes)
    members = members[np.lexsort((members, group))]
    first = np.cumsum(sizes) - sizes
    keepers = members[first]
    for step in range(1, int(sizes.max())):
        more = sizes > step
        _absorb(rows, keepers[more], members[first[more] + step])
    remain[members] = False
    remain[keepers] = True
    return remain


def _absorb(rows: Table, into: Rows, other: Rows) -> None:
    newer = rows["version"][other] >= rows["version"][into]
    for field in ("value", "version"):
        rows[field][into[newer]] = rows[field][other[newer]]
    proven = rows["provenance"][other] > rows["provenance"][into]
    for field in ("trajectory", "provenance"):
        rows[field][into[proven]] = rows[field][other[proven]]


def within_quota(rows: Table, owner: Rows, problems: int, quota: int) -> Mask:
    """Which rows stay when each problem keeps its `quota` of highest standing (ties: the later row stays), [S].

    `owner` is non-decreasing in [0, problems).
    """
    counts = np.bincount(owner, minlength=problems)
    kept = np.ones(len(rows), np.bool_)
    full = np.flatnonzero(counts > quota)
    if not len(full):
        return kept
    first = (np.cumsum(counts) - counts)[full]
    where = ragged(first, counts[full])
    chosen = rows.take(where)
    ranks = standing(chosen["worth"], chosen["version"], chosen["key"])
    line = np.repeat(np.arange(len(full)), counts[full])
    column = where - np.repeat(first, counts[full])
    width = int(counts[full].max())
    matrix = np.zeros((len(full), width), np.uint64)
    matrix[line, column] = ranks
    bar = np.partition(matrix, width - quota, axis=1)[:, width - quota]
    above = matrix > bar[:, None]
    level = (matrix == bar[:, None]) & (np.arange(width) < counts[full][:, None])
    later = np.cumsum(level[:, ::-1], axis=1)[:, ::-1]  # ties from here to the end
    stays = above | (level & (later <= quota - above.sum(axis=1, keepdims=True)))
    kept[where] = stays[line, column]
    return kept


def find(keys: Keys, wanted: Keys) -> tuple[Rows, Mask]:
    """Where each wanted key [N] is among `keys` (0 where it is not), and whether it is there."""
    if not len(keys):
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), np.bool_)
    order = np.argsort(keys)
    at = order[np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)]
    found = keys[at] == wanted
    return np.where(found, at, 0), found
