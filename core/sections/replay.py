"""Replayed starts and the store behind them."""

from typing import Literal

from pydantic import Field

from core.sections.base import Section


class ReplayConfig(Section):
    """Replayed starts and the store behind them."""

    ratio: float = Field(
        0.5, ge=0, lt=1, description="Share of an iteration's starts that are replayed states, in [0, 1)."
    )
    share: Literal["constant", "annealed", "unsolved"] = Field(
        "constant",
        description="How the share of replayed starts changes: replay.ratio always; falling to 0 over the run; or replay.ratio times the share of rollouts from the root that fail.",
    )
    ranking: Literal["value", "learnability", "frontier", "posterior", "success_prefix", "canonical", "uniform"] = (
        Field("learnability", description="How the store ranks states (docs/method.md; formulas in replay/rankings/).")
    )
    start_states: int = Field(512, ge=1, description="States in the store before replay begins.")
    shards: int = Field(
        1, ge=1, description="Shard actors; problems are hashed to them. More than one only spreads memory over nodes."
    )
    capacity: int = Field(
        200_000, ge=1, description="States over all shards; those of the lowest retention are evicted."
    )
    per_problem: int = Field(32, ge=1, description="States kept per problem.")
    max_gib: float = Field(
        4.0,
        gt=0,
        description="Memory of the states and tokens over all shards, in GiB; those of the lowest retention are evicted.",
    )
    boundary: Literal["line", "sentence", "code", "stride"] = Field(
        "line", description="Where a step ends: states begin only there."
    )
    stride: int = Field(16, ge=1, description="Tokens between boundaries when boundary is 'stride'.")
    temperature: float | None = Field(
        None, gt=0, description="The draw has probability ~ exp(priority / temperature); none: the ranking's own."
    )
    target: float = Field(
        0.3, gt=0, lt=1, description="Ranking frontier: success probability that a replayed state should still have."
    )
    decay: float = Field(
        0.95,
        gt=0,
        le=1,
        description="Weight of an outcome after one more visit of its problem: 0.95 remembers about 20.",
    )
    canonical: bool = Field(
        False,
        description="Also keep prefixes of canonical solutions of the iteration's problems, where the task has them.",
    )
    refresh: int = Field(
        256, ge=0, description="Stale values that the critic recomputes per iteration, highest priority first."
    )
    deadline: float = Field(120.0, gt=0, description="Seconds that a shard may take to answer one call.")
