"""Statistics of the store: sizes, ages of values, evictions, and outcomes of replayed and fresh starts."""

from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, field

import numpy as np

from core.machine import peak_memory
from replay.store.records import Counters
from replay.store.shard import Shard


@dataclass(slots=True)
class StoreStats(Counters):
    """Statistics of one shard, or the sum over all. Counters survive in checkpoints."""

    states: int = 0
    replayable: int = 0  # states that the ranking allows to be drawn
    trajectories: int = 0
    problems: int = 0  # with at least one state
    token_bytes: int = 0
    memory_bytes: int = 0  # of states, trajectories and tokens
    version_sum: int = 0  # sum over states: weight versions of their values
    value_sum: float = 0.0
    depth_sum: int = 0  # sum over states: prefix tokens
    requested: int = 0  # requested states; only the driver knows
    sampled: int = 0  # of these, returned
    newest: int = 0  # weight version seen
    oldest: int = 0  # weight version of a state's value; `newest` without states
    resident_bytes: int = field(default=0, compare=False)  # the most memory that the shard's process has had

    @property
    def hit_rate(self) -> float:
        """Share of the requested states that the store returned."""
        return self.sampled / self.requested if self.requested else 0.0

    @property
    def mean_age(self) -> float:
        """Mean age of the states' values in weight versions."""
        return self.newest - self.version_sum / self.states if self.states else 0.0

    @property
    def max_age(self) -> int:
        """Age of the oldest value in weight versions."""
        return self.newest - self.oldest if self.states else 0

    @property
    def mean_value(self) -> float:
        """Mean of the critic's values of the states."""
        return self.value_sum / max(self.states, 1)

    @property
    def mean_depth(self) -> float:
        """Mean prefix tokens of the states."""
        return self.depth_sum / max(self.states, 1)


def shard_stats(shard: Shard) -> StoreStats:
    """Count a shard (one pass over its states)."""
    states = shard.states
    return StoreStats(
        **asdict(shard.counters),
        states=len(states),
        replayable=shard.replayable(),
        trajectories=len(shard.trajectories),
        problems=int(np.count_nonzero(np.bincount(states["problem"], minlength=1))),
        token_bytes=shard.token_bytes,
        memory_bytes=shard.nbytes,
        version_sum=int(states["version"].sum(dtype=np.int64)),
        value_sum=float(states["value"].sum(dtype=np.float64)),
        depth_sum=int(states["length"].sum(dtype=np.int64)),
        newest=shard.version,
        oldest=int(states["version"].min()) if len(states) else shard.version,
        resident_bytes=peak_memory().resident,
    )


def combine(shards: Sequence[StoreStats], requested: int = 0, sampled: int = 0) -> StoreStats:
    """Add up the shards."""
    whole = StoreStats(*map(sum, zip(*map(astuple, shards), strict=True)))
    whole.newest = max((shard.newest for shard in shards), default=0)
    whole.oldest = min((shard.oldest for shard in shards if shard.states), default=0)
    whole.requested, whole.sampled = requested, sampled
    return whole
