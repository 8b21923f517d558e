"""What the store says of itself: sizes, ages, what was kept, and how replayed starts do against fresh ones.

Shards report `ShardStats`; the store adds them up to `StoreStats`, which the trainer logs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

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
    states = shard.states
    return ShardStats(
        counters=shard.counters,
        states=len(states),
        replayable=shard.replayable(),
        trajectories=len(shard.trajectories),
        problems=int(np.count_nonzero(np.bincount(states["problem"], minlength=1))),
        token_bytes=shard.token_bytes,
        memory_bytes=shard.nbytes,
        version=shard.version,
        version_sum=float(states["version"].sum(dtype=np.float64)),
        oldest=int(states["version"].min(initial=shard.version)),
        value_sum=float(states["value"].sum(dtype=np.float64)),
        depth_sum=float(states["length"].sum(dtype=np.float64)),
    )


@dataclass(frozen=True, slots=True)
class StoreStats:
    """The whole store. Counts run from the creation of the store, checkpoints included."""

    states: int
    replayable: int  # states that the ranking allows to be drawn
    trajectories: int
    problems: int
    token_bytes: int
    memory_bytes: int  # of states, trajectories and tokens
    offered: int  # states in accepted candidates
    merged: int  # of these, already there
    rejected: int  # of these, beyond the quota of their problem
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
    """Add up the shards; only the driver knows how many states were asked for and handed out."""
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
