"""What the store says of itself: sizes, ages, what was kept, and how replayed starts fare against fresh ones.

Shards report `ShardStats`; the store adds them up to `StoreStats`, which the trainer logs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from replay import kernels
from replay.records import Counters
from replay.shard import Shard


@dataclass(frozen=True, slots=True)
class ShardStats:
    """One shard at one moment."""

    counters: Counters
    states: int
    replayable: int
    trajectories: int
    problems: int  # problems with at least one state
    token_bytes: int
    memory_bytes: int
    version: int  # newest weight version seen
    version_sum: float  # over states
    oldest: int  # smallest version of a state; `version` without states
    value_sum: float  # over states
    depth_sum: float  # over states: prefix tokens


def shard_stats(shard: Shard) -> ShardStats:
    """Count a shard (one pass over its states)."""
    versions, oldest, values, depths = kernels.totals(shard.blocks.states.rows, shard.version)
    return ShardStats(
        counters=shard.counters,
        states=shard.states,
        replayable=int(shard.replayable().sum()),
        trajectories=shard.references.used - len(shard.free_trajectories),
        problems=int((shard.blocks.problems.rows["count"] > 0).sum()),
        token_bytes=shard.arena.nbytes,
        memory_bytes=shard.nbytes,
        version=shard.version,
        version_sum=versions,
        oldest=oldest,
        value_sum=values,
        depth_sum=depths,
    )


@dataclass(frozen=True, slots=True)
class StoreStats:
    """The whole store. Counts run from the creation of the store, checkpoints included."""

    states: int
    replayable: int  # states that the ranking allows to be drawn
    trajectories: int
    problems: int
    token_bytes: int
    memory_bytes: int  # of states, trajectories, problems and tokens
    offered: int  # states in accepted candidates
    merged: int  # of these, already there
    rejected: int  # of these, below the quota of their problem
    evicted: int
    requested: int  # states asked for
    sampled: int  # of these, handed out
    outcomes: int  # continuations of replayed states
    solved: int
    lost_outcomes: int  # outcomes of states evicted meanwhile
    root_outcomes: int  # rollouts from a root
    root_solved: int
    mean_age: float  # weight versions since the value of a state was written
    max_age: int  # the same of the state whose value is the oldest
    mean_value: float
    mean_depth: float  # prefix tokens

    @property
    def hit_rate(self) -> float:
        """Share of the states asked for that the store could hand out."""
        return self.sampled / self.requested if self.requested else 0.0


def combine(shards: Sequence[ShardStats], requested: int, sampled: int) -> StoreStats:
    """Add up the shards; how many states were asked for and handed out only the driver knows."""
    counters = {f.name: sum(getattr(s.counters, f.name) for s in shards) for f in fields(Counters)}
    states = sum(s.states for s in shards)
    newest = max((s.version for s in shards), default=0)
    per_state = max(states, 1)
    return StoreStats(
        states=states,
        replayable=sum(s.replayable for s in shards),
        trajectories=sum(s.trajectories for s in shards),
        problems=sum(s.problems for s in shards),
        token_bytes=sum(s.token_bytes for s in shards),
        memory_bytes=sum(s.memory_bytes for s in shards),
        requested=requested,
        sampled=sampled,
        mean_age=(newest * states - sum(s.version_sum for s in shards)) / per_state,
        max_age=newest - min((s.oldest for s in shards if s.states), default=newest),
        mean_value=sum(s.value_sum for s in shards) / per_state,
        mean_depth=sum(s.depth_sum for s in shards) / per_state,
        **counters,
    )
