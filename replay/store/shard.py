"""One shard of the replay store: it stores states in numpy columns and applies writes to them.

Invariants: a write is a deterministic function of the current states and its arguments, and changes each problem
independently. So replaying a journal gives the same states, and so does spreading the problems over more shards. A
problem never has more than `quota` states. States are grouped by problem, in the order of the problems' numbers, and
oldest first within each. A trajectory's tokens are stored once, up to its longest state.
"""

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from core.config import ReplayConfig
from core.errors import StoreError
from core.records import Flags, IntArray, Provenance, ReplayedState
from replay.rankings.base import StateColumns, SuccessModel, in_words
from replay.rankings.find import find_ranking
from replay.store import writes
from replay.store.keys import Keys, Reals, Rows, eviction_order, problem_hash, state_keys
from replay.store.records import Candidates, Counters
from replay.store.table import DECAY, PROBLEM, STATE, TRAJECTORY, Table
from replay.success import Known, chances, features_of

_OBJECT_BYTES = 40  # overhead of a `bytes` object


class Shard:
    """The states of the problems that this shard owns."""

    def __init__(self, config: ReplayConfig, vocabulary: int) -> None:
        self.ranking = find_ranking(config)
        self._quota = config.per_problem
        self.token_type = writes.token_type(vocabulary)
        self.model = SuccessModel()
        self.states, self.trajectories, self.problems = Table(STATE), Table(TRAJECTORY), Table(PROBLEM)
        self.names: list[str] = []  # of each problem
        self._numbers: dict[str, int] = {}  # problem id -> problem
        self.counters = Counters()
        self.version = 0  # newest weight version seen

    @property
    def nbytes(self) -> int:
        """Bytes of states, trajectories and tokens. The sum over shards does not depend on placement."""
        objects = self.token_bytes + _OBJECT_BYTES * len(self.trajectories)
        return self.states.nbytes + self.trajectories.nbytes + objects

    @property
    def token_bytes(self) -> int:
        """Bytes of the tokens alone."""
        return int(self.trajectories["stored"].sum()) * self.token_type.itemsize

    # -- writes

    def apply(self, write: bytes) -> None:
        """Apply a write (`replay/store/writes.py`)."""
        rows = writes.unpack(write)
        match writes.kind_of(rows):
            case writes.ADD:
                self._add(rows)
            case writes.RECORD:
                self._record(rows)
            case writes.REVALUE:
                self._revalue(rows)
            case writes.REMOVE:
                found = self._find(self.number(rows.column("problem").to_pylist()), writes.column(rows, "key"))
                self._take_out(np.unique(found[found >= 0]))
            case writes.EVICT:
                self._evict(*writes.column(rows, "order"), *writes.column(rows, "key"))

    def _add(self, write: pa.RecordBatch) -> None:
        """Store the states of T trajectories: merge equal prefixes, rank the touched problems, keep the quota."""
        problems, version = self.number(write.column("problem").to_pylist()), writes.column(write, "version")
        provenance, parent = writes.column(write, "provenance"), writes.column(write, "parent")
        self._age(problems, version)
        self._count_roots(problems, parent, provenance)
        new = self._merge(write, problems, self._store_trajectories(write))
        touched = np.unique(problems)
        self._rank(touched)
        full = touched[self._spans(touched)[1] > self._quota]
        if len(full):
            excess = self._beyond_quota(full)
            rejected = int(np.count_nonzero(new[excess]))
            self.counters.rejected += rejected
            self._remove(excess, evicted=len(excess) - rejected)
        self._drop_unused_tokens()

    def _record(self, write: pa.RecordBatch) -> None:
        """Count outcomes of replayed states. Outcomes of states that have been evicted since count as lost."""
        problems, correct = self.number(write.column("problem").to_pylist()), writes.column(write, "correct")
        self._age(problems, writes.column(write, "version"))
        rows = self._find(problems, writes.column(write, "key"))
        known = rows >= 0
        self.counters.lost_outcomes += int(np.count_nonzero(~known))
        self.counters.outcomes += len(rows)
        self.counters.solved += int(np.count_nonzero(correct))
        for name, counted in (("wins", known & correct), ("losses", known & ~correct)):
            np.add.at(self.states[name], rows[counted], np.float32(1.0))
        for name, counted in (("tried", known), ("solved", known & correct)):
            at, counts = np.unique(rows[counted], return_counts=True)
            self.states[name][at] = np.minimum(self.states[name][at] + counts, np.iinfo(np.uint16).max)
        model = writes.model_of(write)
        changed, self.model = model != self.model, model
        self._rank(np.arange(len(self.problems)) if changed else np.unique(problems))

    def _revalue(self, write: pa.RecordBatch) -> None:
        """Store new values where they are not older than the stored ones. Skip states that have been evicted."""
        problems, version = self.number(write.column("problem").to_pylist()), writes.column(write, "version")
        self.version = max(self.version, int(version.max(initial=0)))
        rows = self._find(problems, writes.column(write, "key"))
        known = np.flatnonzero(rows >= 0)
        newer = known[version[known] >= self.states["version"][rows[known]]]
        self.states["value"][rows[newer]] = writes.column(write, "value")[newer]
        self.states["version"][rows[newer]] = version[newer]
        self._rank(np.unique(problems[newer]))

    def _evict(self, order: np.uint64, key: np.uint64) -> None:
        """Remove all states up to this (eviction order, key)."""
        orders, keys = self._eviction_order(), self.states["key"]
        self._take_out(np.flatnonzero((orders < order) | ((orders == order) & (keys <= key))))

    def _take_out(self, rows: Rows) -> None:
        """Remove states, and rank the remaining states of their problems again."""
        touched = np.unique(self.states["problem"][rows])
        self._remove(rows, evicted=len(rows))
        self._rank(touched)
        self._drop_unused_tokens()

    # -- reads

    def candidates(self) -> Candidates:
        """The states that may be drawn."""
        states = self.states
        rows = np.flatnonzero(~np.isneginf(states["priority"]))
        return Candidates(self.names, *(states[name][rows] for name in ("problem", "key", "priority", "version")))

    def fetch(self, problem_ids: list[str], keys: list[int]) -> list[ReplayedState]:
        """The states of these problems and keys."""
        rows = self._find(self.number(problem_ids), np.array(keys, np.uint64))
        values, provenance, version = (self.states[name][rows].tolist() for name in ("value", "provenance", "version"))
        prefixes = map(self.prefix, rows.tolist())
        columns = zip(keys, problem_ids, prefixes, values, map(Provenance, provenance), version, strict=True)
        return [ReplayedState(*column) for column in columns]

    def known(self, problem_ids: list[str], keys: list[int]) -> list[Known]:
        """What the success model knows of these states."""
        rows = self._find(self.number(problem_ids), np.array(keys, np.uint64))
        around, columns = self._columns(np.unique(self.states["problem"][rows]))
        features, at = features_of(columns), np.searchsorted(around, rows)
        chance = chances(columns, features)[at]
        return [Known(*one) for one in zip(chance.tolist(), features[at].tolist(), strict=True)]

    def least(self, count: int) -> tuple[Keys, Keys]:
        """(Eviction order, key) of the next `count` states to evict, the first one first."""
        orders, keys = self._eviction_order(), self.states["key"]
        if count < len(orders):
            rows = np.flatnonzero(orders <= np.partition(orders, count)[count])
            orders, keys = orders[rows], keys[rows]
        first = np.lexsort((keys, orders))[:count]
        return orders[first], keys[first]

    def replayable(self) -> int:
        """States that may be drawn."""
        return int(np.count_nonzero(~np.isneginf(self.states["priority"])))

    def why_not(self) -> npt.NDArray[np.object_]:
        """[S] why a state is not drawn now, in words; empty for those that may be drawn."""
        _, columns = self._columns(np.arange(len(self.problems)))
        found = in_words(self.ranking.why_not(columns), len(self.states))
        drawn = ~np.isneginf(self.states["priority"])
        return np.where(drawn, "", np.where(found == "", "its ranking gives it no priority", found))

    def success(self) -> Reals:
        """[S] the success of a continuation by which the ranking decides; NaN if it reads none."""
        return self.ranking.success(self._columns(np.arange(len(self.problems)))[1])

    def prefix(self, row: int) -> IntArray:
        """Tokens of the state in a row."""
        tokens = self.trajectories["tokens"][self.states["trajectory"][row]]
        return np.frombuffer(tokens, self.token_type, self.states["length"][row]).astype(np.int32)

    def number(self, problem_ids: list[str]) -> Rows:
        """Numbers [N] of problems; a new problem gets the next number."""
        known = self._numbers
        new = [name for name in dict.fromkeys(problem_ids) if name not in known]
        if new:
            known.update(zip(new, range(len(known), len(known) + len(new)), strict=True))
            self.names.extend(new)
            self.problems.append(len(new), {"hash": np.fromiter(map(problem_hash, new), np.uint64, len(new))})
        return np.fromiter(map(known.__getitem__, problem_ids), np.int64, len(problem_ids))

    # -- inside

    def _spans(self, problems: Rows) -> tuple[Rows, Rows]:
        """First row of each problem's states, and their number."""
        column, numbers = self.states["problem"], problems.astype(np.int32)
        first = np.searchsorted(column, numbers)
        return first, np.searchsorted(column, numbers, side="right") - first

    def _rows_of(self, problems: Rows) -> Rows:
        """Rows of the states of some problems (ascending numbers)."""
        first, sizes = self._spans(problems)
        before = np.cumsum(sizes) - sizes
        return np.repeat(first - before, sizes) + np.arange(sizes.sum())

    def _find(self, problems: Rows, keys: Keys) -> Rows:
        """[N] row of each key among the states of its problem; -1: not stored."""
        rows = self._rows_of(np.unique(problems))
        known = self.states["key"][rows]
        order = np.argsort(known)
        at = np.minimum(np.searchsorted(known, keys, sorter=order), max(len(known) - 1, 0))
        if not len(known):
            return np.full(len(keys), -1)
        found = rows[order[at]]
        return np.where(self.states["key"][found] == keys, found, -1)

    def _age(self, problems: Rows, version: npt.NDArray[np.int32]) -> None:
        """Decay the outcomes of a problem and its states if the versions [N] of a write are newer than its last visit.
        Decay counts visits, not versions: a problem that is visited every 40th version still collects the evidence to
        rest. Each problem uses only the versions of its own entries: the shard's newest would depend on placement."""
        self.version = max(self.version, int(version.max(initial=0)))
        newest = self.problems["version"].copy()
        np.maximum.at(newest, problems, version)
        late = newest > self.problems["version"]
        self.problems["version"] = newest
        if not late.any():
            return
        factor = np.where(late, np.float32(DECAY), np.float32(1.0))
        rows = self._rows_of(np.flatnonzero(late))
        for name in ("wins", "losses"):
            self.problems[name] *= factor
            self.states[name][rows] *= factor[self.states["problem"][rows]]

    def _count_roots(self, problems: Rows, parent: Keys, provenance: npt.NDArray[np.uint8]) -> None:
        """Count rollouts from the root: own trajectories without a parent."""
        root = (parent == 0) & (provenance != Provenance.CANONICAL)
        solved = root & (provenance == Provenance.OWN_SUCCESSFUL)
        tried_each = np.bincount(problems[root], minlength=len(self.problems))
        solved_each = np.bincount(problems[solved], minlength=len(self.problems))
        self.problems["tried"] += tried_each.astype(np.int32)
        self.problems["solved"] += solved_each.astype(np.int32)
        self.problems["wins"] += solved_each.astype(np.float32)
        self.problems["losses"] += (tried_each - solved_each).astype(np.float32)
        self.counters.root_outcomes += int(root.sum())
        self.counters.root_solved += int(solved.sum())

    def _store_trajectories(self, write: pa.RecordBatch) -> int:
        """Append the trajectories of a write; the number of the first."""
        tokens, stored = writes.ragged_column(write, "tokens")
        content, ends = tokens.tobytes(), np.cumsum(stored) * tokens.itemsize
        parts = np.array([content[a:b] for a, b in pairwise([0, *ends.tolist()])], np.object_)
        columns = {name: writes.column(write, name) for name in ("reward", "size")}
        return self.trajectories.append(len(stored), columns | {"stored": stored, "tokens": parts})

    def _merge(self, write: pa.RecordBatch, problems: Rows, first: int) -> Flags:
        """Store the states of trajectories `first`, first + 1, ...; equal prefixes become one. Returns which are new. A
        merged state takes the value of the newest version (ties: the last). It takes provenance and trajectory from the
        highest provenance (ties: the first), so a proven prefix stays proven."""
        lengths, counts = writes.ragged_column(write, "lengths")
        tokens, sizes = writes.ragged_column(write, "tokens")
        owner = np.repeat(np.arange(len(counts)), counts)
        old = self._rows_of(np.unique(problems))
        keys = state_keys(self.problems["hash"][problems], tokens, sizes, counts, lengths)
        given = {
            "key": keys,
            "problem": problems[owner],
            "length": lengths,
            "left": writes.ragged_column(write, "left")[0],
            "value": writes.ragged_column(write, "values")[0],
            "version": writes.column(write, "version")[owner],
            "trajectory": first + owner,
            "provenance": writes.column(write, "provenance")[owner],
        }
        column = {name: np.concatenate([self.states[name][old], of_new]) for name, of_new in given.items()}
        _, leader, group = np.unique(column["key"], return_index=True, return_inverse=True)
        newest, proven = np.empty(len(leader), np.int64), np.empty(len(leader), np.int64)
        order = np.argsort(column["version"], kind="stable")
        newest[group[order]] = order  # the last assignment wins: the newest version, of ties the last
        order = np.argsort(~column["provenance"], kind="stable")[::-1]
        proven[group[order]] = order  # the highest provenance, of ties the first
        of_newest, of_proven = ("value", "version"), ("trajectory", "left", "provenance")
        sources = [*((name, newest) for name in of_newest), *((name, proven) for name in of_proven)]
        known = leader < len(old)
        for name, source in sources:
            self.states[name][old[leader[known]]] = column[name][source[known]]
        fresh = np.flatnonzero(~known)
        fresh = fresh[np.argsort(leader[fresh])]
        made = {name: column[name][leader[fresh]] for name in ("key", "problem", "length")}
        made["parent"] = writes.column(write, "parent")[owner[leader[fresh] - len(old)]]
        before = self.states.append(len(fresh), made | {name: column[name][source[fresh]] for name, source in sources})
        grouped = np.argsort(self.states["problem"], kind="stable")
        self.states.keep(grouped)
        self.counters.offered += len(keys)
        self.counters.merged += len(keys) - len(fresh)
        return grouped >= before

    def _rank(self, touched: Rows) -> None:
        rows, columns = self._columns(touched)
        if not len(rows):
            return
        priority = self.ranking.priority(columns)
        if np.isnan(priority).any():  # a user's own ranking
            raise StoreError("replay.ranking: the priority of a state is NaN; return a finite number, or -inf")
        self.states["priority"][rows] = priority
        self.states["retention"][rows] = self.ranking.retention(columns, priority)

    def _columns(self, touched: Rows) -> tuple[Rows, StateColumns]:
        """The states of some problems (ascending numbers): their rows, and their columns for a ranking."""
        rows = self._rows_of(touched)
        states, problem, chain = self.states, self.states["problem"][rows], self.states["trajectory"][rows]
        return rows, StateColumns(
            problem=np.cumsum(np.diff(problem, prepend=problem[:1]) != 0),
            chain=chain.astype(np.int64),
            length=states["length"][rows].astype(np.int64),
            total=self.trajectories["size"][chain].astype(np.int64),
            left=states["left"][rows],
            value=states["value"][rows],
            provenance=states["provenance"][rows],
            wins=states["wins"][rows],
            losses=states["losses"][rows],
            tried=states["tried"][rows].astype(np.int64),
            root_wins=self.problems["wins"][problem],
            root_losses=self.problems["losses"][problem],
            root_solved=self.problems["solved"][problem].astype(np.int64),
            model=self.model,
        )

    def _eviction_order(self) -> npt.NDArray[np.uint64]:
        return eviction_order(self.states["retention"], self.states["version"], self.states["key"])

    def _beyond_quota(self, problems: Rows) -> Rows:
        """Rows of the states that exceed the quota of some problems: the first in eviction order, of ties the older."""
        rows = self._rows_of(problems)
        problem, keys = self.states["problem"][rows], self.states["key"][rows]
        order = eviction_order(self.states["retention"][rows], self.states["version"][rows], keys)
        sorted_by = np.lexsort((rows, order, problem))
        ends = np.searchsorted(problem, problem, side="right")  # rows of a problem are adjacent
        excess: Rows = rows[sorted_by[ends - np.arange(len(rows)) > self._quota]]
        return excess

    def _remove(self, rows: Rows, evicted: int) -> None:
        self.states.keep(np.delete(np.arange(len(self.states)), rows))
        self.counters.evicted += evicted

    def _drop_unused_tokens(self) -> None:
        """Free the tokens after the longest state of each trajectory, and the trajectories to which no state refers."""
        longest = np.zeros(len(self.trajectories), np.int32)
        np.maximum.at(longest, self.states["trajectory"], self.states["length"])
        used = longest > 0
        tokens, size = self.trajectories["tokens"], self.token_type.itemsize
        for at in np.flatnonzero(used & (longest < self.trajectories["stored"])).tolist():
            tokens[at] = tokens[at][: longest[at] * size]
        self.trajectories["stored"] = longest
        if not used.all():
            self.trajectories.keep(np.flatnonzero(used))
            self.states["trajectory"] = (np.cumsum(used) - 1)[self.states["trajectory"]]
