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
from replay import kernels
from replay.arena import ends_of
from replay.batch import Batch, Ints, OutcomeBatch
from replay.columns import Columns, RankSettings, rank_settings
from replay.holdings import Holdings, shallow
from replay.keys import Keys, Reals, Rows, gumbels, state_keys
from replay.ranking import RANKINGS, Ranking, standing, weights
from replay.records import Selected
from replay.table import Table


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
        self._age(touched, place, batch.version)
        self._count_roots(batch, touched, place)
        base = self.trajectories.used  # batch trajectories are numbered from here until it is known which are kept
        rows, counts, held, merged = self._join(batch, problems, touched, place, base)
        self._rank(rows, np.repeat(np.arange(len(touched)), counts), touched, base, batch.sizes)
        offered = len(batch.lengths)
        if counts.max(initial=0) > self._quota:
            stays = kernels.best(standing(rows["worth"], rows["version"], rows["key"]), counts, self._quota)
            owner = np.repeat(np.arange(len(touched)), counts)
            was = np.arange(len(rows)) - (np.cumsum(counts) - counts)[owner] < held[owner]
            self.counters.evicted += int((was & ~stays).sum())
            self.counters.rejected += int((~was & ~stays).sum())
            rows, counts = rows.take(np.flatnonzero(stays)), np.bincount(owner[stays], minlength=len(touched))
        self.counters.offered += offered
        self.counters.merged += merged
        self._store_trajectories(batch, problems, rows, base)
        self._replace(touched, rows, counts)

    def _join(
        self, batch: Batch, problems: Rows, touched: Rows, place: Rows, base: int
    ) -> tuple[Table, Rows, Rows, int]:
        """Rows of the touched problems with the batch's states, how many of each, how many before, how many were merged."""
        counts, lengths = batch.counts.astype(np.int64), batch.lengths.astype(np.int32)
        hashes = self.blocks.problems.rows["hash"][problems]
        keys = state_keys(hashes, batch.tokens, batch.sizes, batch.counts, batch.lengths)
        states, (starts, held) = self.blocks.states.rows, self.blocks.spans(touched)
        target, after, fresh = kernels.join(states, starts, held, place, counts, keys)
        given = lengths, batch.values.astype(np.float32), counts, batch.version.astype(np.int32)
        origin = batch.provenance.astype(np.uint8)
        rows = kernels.merge(states, starts, held, after, target, fresh, keys, *given, origin, base)
        return rows, after, held, len(keys) - int(fresh.sum())

    def record(self, batch: OutcomeBatch) -> None:
        """Count outcomes of replayed states; those of states that were evicted meanwhile are counted as lost."""
        problems = self.known(batch.problem_ids)
        touched, place = np.unique(problems, return_inverse=True)
        self._age(touched, place, batch.version)
        states = self.blocks.states.rows
        at = kernels.locate(states, *self.blocks.spans(problems), batch.keys.astype(np.uint64))
        self.counters.lost_outcomes += kernels.tally(states, at, batch.correct.astype(np.bool_))
        self.counters.outcomes += len(batch.keys)
        self.counters.solved += int(batch.correct.sum())
        self._rerank(touched)

    def revalue(self, batch: Revaluation) -> None:
        """Take new values where they are not older than what is held; unknown states are passed over."""
        problems = self.known(batch.problem_ids)
        states = self.blocks.states.rows
        at = kernels.locate(states, *self.blocks.spans(problems), batch.keys.astype(np.uint64))
        newer = np.flatnonzero(
            at >= 0
        )  # first: a shard without states has no row that an unknown state could be held against
        newer = newer[batch.version[newer] >= states["version"][at[newer]]]
        states["value"][at[newer]], states["version"][at[newer]] = batch.values[newer], batch.version[newer]
        self._rerank(np.unique(problems))

    def trust(self, gate: float) -> None:
        """Set the trust in the critic and rank everything anew."""
        self.settings = replace(self.settings, gate=gate)
        for first in range(0, len(self.names), 4096):
            self._rerank(np.arange(first, min(first + 4096, len(self.names))))

    def _rerank(self, touched: Rows) -> None:
        """Rank the states of problems anew after their columns have changed."""
        self.replayable -= self._live(touched)
        members = self.blocks.gather(touched)
        self._rank(members.rows, members.owner, touched)
        for field in ("promise", "worth"):
            self.blocks.states.rows[field][members.where] = members.rows[field]
        self._weigh(touched, members.rows, members.owner)

    def evict(self, count: int) -> None:
        """Remove the `count` states of the least standing and rank the rest of their problems anew."""
        doomed = self._least(count)
        rows = self.blocks.states.rows
        touched = np.unique(self.trajectories.rows["problem"][rows["trajectory"][doomed]]).astype(np.int64)
        old = self.blocks.gather(touched)
        stays = ~np.isin(old.where, doomed)
        rows, owner = old.rows.take(np.flatnonzero(stays)), old.owner[stays]
        self._rank(rows, owner, touched)
        self._replace(touched, rows, np.bincount(owner, minlength=len(touched)))
        self.counters.evicted += len(doomed)

    # -- reads

    def least(self, count: int) -> tuple[Keys, Keys]:
        """Standing and key of the `count` states that would be evicted first, in that order."""
        rows = self.blocks.states.rows.take(self._least(count))
        return standing(rows["worth"], rows["version"], rows["key"]), rows["key"]

    def draw(self, pool: int, groups: Rows, fractions: Reals) -> Rows:
        """Row numbers of the states at the given fractions [m] in [0, 1) of the mass of the given groups [m]."""
        problems, left = self.pools[pool].draw(groups, fractions)
        which = pool if self._pools == 2 else -1
        given = left, self._temperature, which, int(Provenance.OWN_FAILED)
        rows: Rows = kernels.choose(self.blocks.states.rows, *self.blocks.spans(problems), *given)
        return rows

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
            starts=ends_of(rows["length"])[:-1],
            lengths=rows["length"].copy(),
            values=rows["value"].copy(),
            provenance=rows["provenance"].copy(),
            versions=rows["version"].copy(),
            wins=rows["wins"].copy(),
            losses=rows["losses"].copy(),
        )

    # -- inside

    def _age(self, touched: Rows, place: Rows, version: Ints) -> None:
        """Decay the outcomes of the touched problems and of their states up to the versions of a write.

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
        kernels.fade(self.blocks.states.rows, *self.blocks.spans(touched), factor)

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
