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
from replay import drawing, kernels
from replay.batch import Batch, Ints, OutcomeBatch
from replay.columns import Columns, RankSettings, rank_settings
from replay.holdings import Holdings, shallow
from replay.keys import Keys, Reals, Rows, gumbels, state_keys
from replay.ranking import RANKINGS, Ranking, standing, weights
from replay.records import Granted, Prefixes, Selected, Wish
from replay.table import Table

NONE = np.zeros(0, np.int32)


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
        self._quota, self._decay, self._temperature = config.per_problem, config.decay, config.temperature
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
        touched, place = kernels.distinct(problems)
        self._age(problems, batch.version)
        self._count_roots(batch, problems)
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
            if self._ranking.chains:
                self._rank(rows, owner[stays], touched, base, batch.sizes)
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
        self._age(problems, batch.version)
        tables = self.blocks.states.rows, self.blocks.problems.rows
        self.counters.lost_outcomes += kernels.tally(*tables, problems, batch.keys, batch.correct)
        self.counters.outcomes += len(batch.keys)
        self.counters.solved += int(np.count_nonzero(batch.correct))
        if self._ranking.of_value is None:
            self._rerank(kernels.distinct(problems)[0])

    def revalue(self, batch: Revaluation) -> None:
        """Take new values where they are not older than what is held; unknown states are passed over."""
        problems = self.known(batch.problem_ids)
        states = self.blocks.states.rows
        given = problems, batch.keys, batch.values, batch.version
        changed, touched = kernels.revalue(states, self.blocks.problems.rows, *given)
        if self._ranking.of_value is None:
            self._rerank(touched)
            return
        promise = self._ranking.of_value(states["value"][changed])
        states["promise"][changed] = states["worth"][changed] = promise
        self._weigh(touched, changed)

    def trust(self, gate: float) -> None:
        """Set the trust in the critic and rank everything anew."""
        self.settings = replace(self.settings, gate=gate)
        for first in range(0, len(self.names), 4096):
            self._rerank(np.arange(first, min(first + 4096, len(self.names))))

    def _rerank(self, touched: Rows) -> None:
        """Rank the states of problems anew after their columns have changed."""
        members = self.blocks.gather(touched)
        self._rank(members.rows, members.owner, touched)
        for field in ("promise", "worth"):
            self.blocks.states.rows[field][members.where] = members.rows[field]
        self._weigh(touched)

    def evict(self, bar: int, key: int) -> None:
        """Remove all states up to this standing and key, in the order of `least`, and rank the rest of their problems anew."""
        rows = self.blocks.states.rows
        ranks = standing(rows["worth"], rows["version"], rows["key"])
        low = (ranks < np.uint64(bar)) | ((ranks == np.uint64(bar)) & (rows["key"] <= np.uint64(key)))
        doomed = np.flatnonzero(low & (rows["key"] != 0))
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

    def grant(self, wish: Wish) -> Granted:
        """What this shard has to offer for a wish."""
        if len(wish.fractions):
            states, which = self.draw(wish.pool, wish.ends, wish.fractions, wish.wanted)
            return Granted(states, which)
        where, scores = self.race(wish.pool, wish.wanted, wish.seed, wish.excluded)
        return Granted(self.select(where), -scores)

    def draw(self, pool: int, ends: Reals, fractions: Reals, wanted: int) -> tuple[Selected, Rows]:
        """The first `wanted` different states at fractions [m] in [0, 1) of a pool's mass, and at which of them each was met.

        `ends` [GROUPS] are the running sums of the groups' masses over all shards; what falls to another shard is passed over.
        """
        stored = self.trajectories.rows, *self.arena.chunks
        *found, which = self.pools[pool].draw(self.blocks, stored, ends, fractions, wanted)
        return self._selected(*found), which

    def race(self, pool: int, count: int, seed: int, excluded: Keys) -> tuple[Rows, Reals]:
        """Row numbers and scores of the `count` best of log weight + Gumbel noise of (seed, key), excluded ones apart."""
        rows = self.blocks.states.rows
        live = np.flatnonzero((rows["key"] != 0) & ~np.isneginf(rows["promise"]) & ~np.isin(rows["key"], excluded))
        if len(self.pools) == 2:
            live = live[(rows["provenance"][live] == Provenance.OWN_FAILED) == pool]
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
        states, stored = self.blocks.states.rows, (self.trajectories.rows, *self.arena.chunks)
        return self._selected(*drawing.copy_out(states, *stored, where))

    # -- inside

    def _selected(self, rows: Table, problems: Rows, tokens: Prefixes, starts: Rows) -> Selected:
        names = self.names
        return Selected(rows, [names[i] for i in problems.tolist()], tokens, starts)

    def _age(self, problems: Rows, version: Ints) -> None:
        """Decay the outcomes of the written problems and of their states up to the versions of a write.

        Each problem by the versions of its own entries alone: the shard's newest version would depend on placement.
        """
        self.version = max(self.version, int(version.max(initial=0)))
        kernels.age(self.blocks.states.rows, self.blocks.problems.rows, problems, version, self._decay)

    def _count_roots(self, batch: Batch, problems: Rows) -> None:
        """Outcomes of rollouts from the root: own trajectories without a parent."""
        given = problems, batch.parent, batch.provenance, int(Provenance.CANONICAL), int(Provenance.OWN_SUCCESSFUL)
        tried, solved = kernels.count_roots(self.blocks.problems.rows, *given)
        self.counters.root_outcomes += tried
        self.counters.root_solved += solved

    def _rank(self, rows: Table, owner: Rows, touched: Rows, base: int = 1 << 40, sizes: Ints = NONE) -> None:
        """Set promise and worth of all states of the touched problems; trajectories from `base` on have these sizes."""
        if self._ranking.of_value is not None:
            rows["promise"] = rows["worth"] = self._ranking.of_value(rows["value"])
            return
        tables = self.blocks.problems.rows, touched, self.trajectories.rows
        reals, ints, provenance = kernels.columns(rows, owner, *tables, base, sizes)
        value, wins, losses, root_wins, root_losses = reals
        chain, length, total, tried = ints
        columns = Columns(owner, chain, length, total, value, provenance, wins, losses, tried, root_wins, root_losses)
        rows["promise"] = self._ranking.promise(columns, self.settings)
        promise = rows["promise"]
        rows["worth"] = promise if self._ranking.worth is None else self._ranking.worth(columns, promise)

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
