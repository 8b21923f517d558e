"""What a shard holds: problems, states, trajectories, tokens, masses, and the one way in which they change together.

`replay/shard.py` derives from it and decides what to keep; here the pieces are kept in step. Invariants: tokens are kept
exactly for the trajectories that some state refers to; the masses are those of the states' promises.
"""

import copy
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from core.errors import StoreError
from core.records import Provenance
from replay import drawing, kernels
from replay.arena import Arena
from replay.batch import Batch, Tokens, token_type
from replay.keys import Reals, Rows, problem_hash, ragged
from replay.masses import Masses
from replay.records import Counters
from replay.table import STATE, TRAJECTORY, Blocks, Growing, Table, put


class Holdings:
    """The content of a shard."""

    def __init__(self, vocabulary: int, temperature: float, explores: bool, name: str) -> None:
        self._name = name
        self.numbers: dict[str, int] = {}  # problem id -> problem
        self.names: list[str] = []
        self.blocks = Blocks()
        self.trajectories = Growing(TRAJECTORY)
        self.references = Growing(np.dtype(np.int32))  # states that refer to each trajectory; 0: a free row
        self.free_trajectories: list[int] = []
        self.arena = Arena(token_type(vocabulary))
        self.pools = [Masses(1.0), Masses(-1.0)] if explores else [Masses(1.0)]
        self._weighing = temperature, int(Provenance.OWN_FAILED) if explores else -1  # own failures are a pool apart
        self.counters = Counters()
        self.states = 0
        self.version = 0  # newest weight version seen

    def enter(self, problem_ids: list[str]) -> Rows:
        """Numbers of the problems, new ones entered."""
        numbers = self.numbers
        unknown = [name for name in dict.fromkeys(problem_ids) if name not in numbers]
        if unknown:
            first = self.blocks.problems.extend(len(unknown))
            numbers.update(zip(unknown, range(first, first + len(unknown)), strict=True))
            self.names.extend(unknown)
            table = self.blocks.problems.rows
            table["hash"][first:] = np.fromiter(map(problem_hash, unknown), np.uint64, len(unknown))
            for masses in self.pools:
                masses.insert(table)
        return _numbered(map(numbers.__getitem__, problem_ids), len(problem_ids))

    def known(self, problem_ids: list[str]) -> Rows:
        """Numbers of problems that must be there; StoreError names one that is not."""
        try:
            return _numbered(map(self.numbers.__getitem__, problem_ids), len(problem_ids))
        except KeyError as error:
            unknown = error.args[0]
        raise StoreError(f"{self._name}: problem '{unknown}' is unknown: no trajectory of it was ever added")

    def load(self, numbers: Rows, trajectories: Table, tokens: Tokens, rows: Table, owner: Rows) -> None:
        """Put in the content of a snapshot: problems `numbers` without states so far, `owner` indexes them.

        Trajectories of `rows` count within `trajectories`, whose tokens lie one after the other in `tokens`.
        """
        base = self.trajectories.extend(len(trajectories))
        self.references.extend(len(trajectories))
        trajectories["address"] = self.arena.append(tokens, trajectories["size"])
        self.trajectories.rows[base:] = trajectories
        rows["trajectory"] += base
        self._replace(numbers, rows, np.bincount(owner, minlength=len(numbers)))

    def masses(self) -> Reals:
        """[pools, GROUPS] mass per group."""
        return np.stack([masses.groups for masses in self.pools])

    def replayable(self) -> Rows:
        """[pools] states that may be drawn."""
        return np.array([masses.replayable for masses in self.pools])

    @property
    def content_bytes(self) -> int:
        """Bytes of what is held, slack apart: the same however the problems are placed, so bounds are kept on it."""
        trajectories = self.references.used - len(self.free_trajectories)
        per_trajectory = TRAJECTORY.itemsize + self.references.rows.itemsize
        tokens = self.arena.live * self.arena.itemsize
        return self.states * STATE.itemsize + trajectories * per_trajectory + tokens

    @property
    def nbytes(self) -> int:
        """Bytes of states, trajectories, problems, masses and tokens (the names of the problems apart)."""
        masses = sum(masses.nbytes for masses in self.pools)
        return self.blocks.nbytes + self.trajectories.nbytes + self.references.nbytes + self.arena.nbytes + masses

    def _copy_content(self, other: "Holdings") -> None:
        other.blocks, other.trajectories = self.blocks.copy(), self.trajectories.copy()
        other.references, other.arena = self.references.copy(), self.arena.frozen()
        other.counters = replace(self.counters)

    def _store_trajectories(self, batch: Batch, problems: Rows, rows: Table, base: int) -> None:
        """Keep the batch trajectories that some row refers to, and number the rows' trajectories accordingly."""
        mine = rows["trajectory"] >= base
        local = rows["trajectory"][mine].astype(np.int64) - base
        wanted = np.zeros(len(batch.sizes), np.bool_)
        wanted[local] = True
        used = np.flatnonzero(wanted)
        reused = [self.free_trajectories.pop() for _ in range(min(len(used), len(self.free_trajectories)))]
        fresh = len(used) - len(reused)
        first = self.trajectories.extend(fresh)
        self.references.extend(fresh)
        numbers = np.concatenate([np.array(reused, np.int64), np.arange(first, first + fresh)])
        tokens, sizes = batch.tokens, batch.sizes.astype(np.int64)
        if len(used) < len(sizes):
            tokens = tokens[ragged((np.cumsum(sizes) - sizes)[used], sizes[used])]
        made = np.zeros(len(used), TRAJECTORY)
        made["address"] = self.arena.append(tokens, batch.sizes[used])
        made["problem"], made["size"] = problems[used], batch.sizes[used]
        for field in ("parent", "version", "reward", "provenance"):
            made[field] = getattr(batch, field)[used]
        put(self.trajectories.rows, numbers, made)
        final = np.zeros(len(sizes), np.int64)
        final[used] = numbers
        rows["trajectory"][mine] = final[local]

    def _replace(self, touched: Rows, rows: Table, counts: Rows) -> None:
        """Let `rows`, counts[i] for problem i, be all states of the touched problems; renew what depends on them."""
        spans = self.blocks.spans(touched)
        dead = kernels.refer(self.references.rows, self.blocks.states.rows, *spans, rows)
        self.states += len(rows) - int(spans[1].sum())
        self.blocks.write(touched, rows, counts)
        self._weigh(touched)
        self._forget(dead)

    def _weigh(self, touched: Rows, changed: Rows | None = None) -> None:
        """Renew weights and masses of the touched problems after promises have changed, those of some rows or all."""
        blocks = self.blocks
        columns = blocks.states.rows, blocks.weights.rows
        if changed is None:
            drawing.weigh_all(blocks.problems.rows, *columns, touched, *self._weighing)
        else:
            drawing.weigh(*columns, changed, *self._weighing)
        for masses in self.pools:
            masses.renew(blocks, touched)

    def _forget(self, dead: Rows) -> None:
        """Free trajectories that no state refers to (named once or more), and the tokens of many of them at once."""
        if not len(dead):
            return
        dead, table = np.unique(dead), self.trajectories.rows
        self.arena.release(int(table["size"][dead].sum()))
        put(table, dead, np.zeros(len(dead), TRAJECTORY))
        self.free_trajectories.extend(dead.tolist())
        if self.arena.wasteful:
            live = np.flatnonzero(self.references.rows)
            table["address"][live] = self.arena.compact(table["address"][live], table["size"][live])


def _numbered(numbers: Iterable[int], count: int) -> Rows:
    return np.fromiter(numbers, np.int64, count)


def shallow(holdings: Holdings) -> Holdings:
    """The same object with its content copied, for another thread; tokens are shared, as they never change."""
    other = copy.copy(holdings)
    holdings._copy_content(other)
    return other
