"""One shard of the replay store as a plain object: what it writes, ranks and hands out. No Ray, no files.

`replay/server.py` wraps it. Invariants: every write is a deterministic function of the state before it and its
arguments, and concerns each problem by itself, so that replaying a log, or spreading problems over more shards, gives
the same states; a problem never has more than `quota` states.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from core.config import ReplayConfig
from core.records import Provenance
from replay.batch import Batch, Ints, OutcomeBatch
from replay.columns import Columns, RankSettings, rank_settings
from replay.holdings import Holdings, shallow
from replay.keys import Keys, Reals, Rows, gumbels, state_keys
from replay.masses import padded, pick
from replay.merging import find, merge, within_quota
from replay.ranking import RANKINGS, Ranking, standing, weights
from replay.records import Selected
from replay.table import STATE, Table


@dataclass(frozen=True, slots=True)
class Revaluation:
    """New values of N states from a critic that has moved."""

    problem_ids: list[str]  # [N]
    keys: npt.NDArray[np.uint64]  # [N]
    values: npt.NDArray[np.float32]  # [N]
    version: Ints  # [N] weight version of the critic


class Shard(Holdings):
    """States of the problems that fall to this shard."""

    def __init__(self, config: ReplayConfig, vocabulary: int, name: str) -> None:
        self._ranking: Ranking = RANKINGS[config.ranking]
        super().__init__(vocabulary, config.temperature, self._ranking.explores, name)
        self._quota, self._decay = config.per_problem, config.decay
        self.settings: RankSettings = rank_settings(config)

    def frozen(self) -> "Shard":
        """A copy of this moment, to be read from another thread."""
        other = shallow(self)
        assert isinstance(other, Shard)
        return other

    # -- writes

    def add(self, batch: Batch) -> None:
        """Store the states of a batch; see `Batch`."""
        problems = self.enter(batch.problem_ids)
        touched, place = np.unique(problems, return_inverse=True)
        old = self.blocks.gather(touched)
        kept_rows = old.rows.copy()
        self._age(touched, place, batch.version, kept_rows, old.owner)
        self._count_roots(batch, touched, place)
        base = self.trajectories.used  # batch trajectories are numbered from here until it is known which are kept
        fresh, trajectory = _new_rows(batch, base)
        rows, owner = np.concatenate([kept_rows, fresh]), np.concatenate([old.owner, place[trajectory]])
        is_old = np.arange(len(rows)) < len(old.rows)
        remain = merge(rows)
        order = np.flatnonzero(remain)
        order = order[np.argsort(owner[order], kind="stable")]
        rows, owner, is_old = rows.take(order), owner[order], is_old[order]
        self._rank(rows, owner, touched, base, batch.sizes)
        stays = within_quota(rows, owner, len(touched), self._quota)
        self.counters.offered += len(fresh)
        self.counters.merged += int((~remain).sum())
        self.counters.evicted += int((is_old & ~stays).sum())
        self.counters.rejected += int((~is_old & ~stays).sum())
        rows, owner = rows.take(np.flatnonzero(stays)), owner[stays]
        self._store_trajectories(batch, problems, rows, base)
        self._replace(touched, old, rows, owner)

    def record(self, batch: OutcomeBatch) -> None:
        """Count outcomes of replayed states; those of states that were evicted meanwhile are counted as lost."""
        touched, place = np.unique(self.known(batch.problem_ids), return_inverse=True)
        old = self.blocks.gather(touched)
        rows = old.rows.copy()
        self._age(touched, place, batch.version, rows, old.owner)
        at, found = find(rows["key"], batch.keys)
        tried = np.bincount(at[found], minlength=len(rows))
        solved = np.bincount(at[found & batch.correct], minlength=len(rows))
        rows["wins"] += solved
        rows["losses"] += tried - solved
        rows["tried"] = np.minimum(rows["tried"] + tried, 65535)
        rows["solved"] = np.minimum(rows["solved"] + solved, 65535)
        self._rank(rows, old.owner, touched)
        self._replace(touched, old, rows, old.owner)
        self.counters.outcomes += len(batch.keys)
        self.counters.solved += int(batch.correct.sum())
        self.counters.lost_outcomes += int((~found).sum())

    def revalue(self, batch: Revaluation) -> None:
        """Take new values where they are not older than what is held; unknown states are passed over."""
        touched = np.unique(self.known(batch.problem_ids))
        old = self.blocks.gather(touched)
        rows = old.rows.copy()
        at, found = find(rows["key"], batch.keys)
        found &= batch.version >= rows["version"][at] if len(rows) else False
        rows["value"][at[found]], rows["version"][at[found]] = batch.values[found], batch.version[found]
        self._rank(rows, old.owner, touched)
        self._replace(touched, old, rows, old.owner)

    def trust(self, gate: float) -> None:
        """Set the trust in the critic and rank everything anew."""
        self.settings = replace(self.settings, gate=gate)
        for first in range(0, len(self.names), 4096):
            touched = np.arange(first, min(first + 4096, len(self.names)))
            old = self.blocks.gather(touched)
            rows = old.rows.copy()
            self._rank(rows, old.owner, touched)
            self._replace(touched, old, rows, old.owner)

    def evict(self, count: int) -> None:
        """Remove the `count` states of the least standing and rank the rest of their problems anew."""
        doomed = self._least(count)
        rows = self.blocks.states.rows
        touched = np.unique(self.trajectories.rows["problem"][rows["trajectory"][doomed]]).astype(np.int64)
        old = self.blocks.gather(touched)
        stays = ~np.isin(old.where, doomed)
        rows, owner = old.rows.take(np.flatnonzero(stays)), old.owner[stays]
        self._rank(rows, owner, touched)
        self._replace(touched, old, rows, owner)
        self.counters.evicted += len(doomed)

    # -- reads

    def least(self, count: int) -> tuple[Keys, Keys]:
        """Standing and key of the `count` states that would be evicted first, in that order."""
        rows = self.blocks.states.rows.take(self._least(count))
        return standing(rows["worth"], rows["version"], rows["key"]), rows["key"]

    def draw(self, pool: int, groups: Rows, fractions: Reals) -> Rows:
        """Row numbers of the states at the given fractions [m] in [0, 1) of the mass of the given groups [m]."""
        problems, fractions = self.pools[pool].draw(groups, fractions)
        table = self.blocks.problems.rows
        starts, counts = table["start"][problems], table["count"][problems].astype(np.int64)
        promise = padded(self.blocks.states.rows["promise"], starts, counts, fill=-np.inf)
        if self._pools == 2:
            owned = padded(self.blocks.states.rows["provenance"], starts, counts, fill=-1.0) == Provenance.OWN_FAILED
            promise = np.where(owned == pool, promise, -np.inf)
        index, _ = pick(weights(promise, self._temperature), fractions)
        return starts + index

    def race(self, pool: int, count: int, seed: int, excluded: Keys) -> tuple[Rows, Reals]:
        """Row numbers and scores of the `count` best of log weight + Gumbel noise of (seed, key), excluded ones apart."""
        rows = self.blocks.states.rows
        live = np.flatnonzero((rows["key"] != 0) & ~np.isneginf(rows["promise"]) & ~np.isin(rows["key"], excluded))
        live = live[self.pool_of(rows.take(live)) == pool]
        keys = rows["key"][live]
        scores = np.log(weights(rows["promise"][live], self._temperature)) + gumbels(keys, seed)
        best = np.lexsort((keys, scores))[::-1][:count]
        return live[best], scores[best]

    def top(self, count: int, older_than: int | None = None) -> tuple[Rows, Keys]:
        """Row numbers and standings of the most promising replayable states (valued before a version), best first."""
        rows = self.blocks.states.rows
        wanted = (rows["key"] != 0) & ~np.isneginf(rows["promise"])
        live = np.flatnonzero(wanted if older_than is None else wanted & (rows["version"] < older_than))
        ranks = standing(rows["promise"][live], rows["version"][live], rows["key"][live])
        best = np.lexsort((rows["key"][live], ranks))[::-1][:count]
        return live[best], ranks[best]

    def select(self, where: Rows) -> Selected:
        """The states in the given rows."""
        rows = self.blocks.states.rows.take(where)
        trajectories = self.trajectories.rows.take(rows["trajectory"])
        return Selected(
            keys=rows["key"].copy(),
            problem_ids=[self.names[i] for i in trajectories["problem"].tolist()],
            tokens=self.arena.gather(trajectories["address"], rows["length"]),
            lengths=rows["length"].copy(),
            values=rows["value"].copy(),
            provenance=rows["provenance"].copy(),
            versions=rows["version"].copy(),
            wins=rows["wins"].copy(),
            losses=rows["losses"].copy(),
        )

    # -- inside

    def _age(self, touched: Rows, place: Rows, version: Ints, rows: Table, owner: Rows) -> None:
        """Decay the outcomes of the touched problems and of their states (in `rows`) up to the versions of a write.

        Each problem by the versions of its own entries alone: the shard's newest version would depend on placement.
        """
        self.version = max(self.version, int(version.max(initial=0)))
        table = self.blocks.problems.rows
        before = table["touched"][touched]
        now = before.copy()
        np.maximum.at(now, place, version)
        factor = np.float32(self._decay) ** (now - before).astype(np.float32)
        table["touched"][touched] = now
        for field in ("wins", "losses"):
            table[field][touched] *= factor
            rows[field] *= factor[owner]

    def _count_roots(self, batch: Batch, touched: Rows, place: Rows) -> None:
        """Outcomes of rollouts from the root: own trajectories without a parent."""
        root = (batch.parent == 0) & (batch.provenance != Provenance.CANONICAL)
        solved = root & (batch.provenance == Provenance.OWN_SUCCESSFUL)
        tried = np.bincount(place[root], minlength=len(touched))
        won = np.bincount(place[solved], minlength=len(touched))
        table = self.blocks.problems.rows
        for field, count in (("tried", tried), ("solved", won), ("wins", won), ("losses", tried - won)):
            table[field][touched] += count.astype(table[field].dtype)
        self.counters.root_outcomes += int(root.sum())
        self.counters.root_solved += int(solved.sum())

    def _rank(self, rows: Table, owner: Rows, touched: Rows, base: int = 1 << 40, sizes: Ints | None = None) -> None:
        """Set promise and worth of all states of the touched problems; trajectories from `base` on have these sizes."""
        chain = rows["trajectory"].astype(np.int64)
        fresh = chain >= base
        total = np.empty(len(rows), np.int64)
        total[~fresh] = self.trajectories.rows["size"][chain[~fresh]]
        if sizes is not None:
            total[fresh] = sizes[chain[fresh] - base]
        problems = self.blocks.problems.rows.take(touched)
        columns = Columns(
            problem=owner,
            chain=chain,
            length=rows["length"].astype(np.int64),
            total=total,
            value=rows["value"],
            provenance=rows["provenance"],
            wins=rows["wins"],
            losses=rows["losses"],
            tried=rows["tried"].astype(np.int64),
            root_wins=problems["wins"][owner],
            root_losses=problems["losses"][owner],
        )
        rows["promise"] = self._ranking.promise(columns, self.settings)
        rows["worth"] = rows["promise"] if self._ranking.worth is None else self._ranking.worth(columns)

    def _least(self, count: int) -> Rows:
        """Row numbers of the `count` states of the least standing, least first; ties by key."""
        rows = self.blocks.states.rows
        live = np.flatnonzero(rows["key"])
        ranks = standing(rows["worth"][live], rows["version"][live], rows["key"][live])
        if count < len(live):
            below = np.flatnonzero(ranks <= np.partition(ranks, count)[count])
            live, ranks = live[below], ranks[below]
        chosen: Rows = live[np.lexsort((rows["key"][live], ranks))[:count]]
        return chosen


def _new_rows(batch: Batch, base: int) -> tuple[Table, Rows]:
    """Rows of all states of a batch and the batch's trajectory of each; trajectories are numbered from `base` on."""
    trajectory = np.repeat(np.arange(len(batch.counts)), batch.counts)
    rows = np.zeros(len(trajectory), STATE)
    counts, sizes = batch.counts.astype(np.int64), batch.sizes.astype(np.int64)
    spans = np.stack([np.cumsum(sizes) - sizes, np.cumsum(counts) - counts, np.cumsum(counts)], axis=1)
    rows["key"] = state_keys(batch.problem_ids, batch.tokens.astype(np.uint32), spans, batch.lengths)
    rows["trajectory"] = base + trajectory
    rows["length"], rows["value"] = batch.lengths, batch.values
    rows["version"] = batch.version[trajectory]
    rows["provenance"] = batch.provenance[trajectory]
    return rows, trajectory
