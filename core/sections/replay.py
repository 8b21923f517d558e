"""Replayed starts and the store behind them."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from core.sections.base import Count, Section, Whole, one_of
from core.sections.registry import names

Boundary = Literal["line", "sentence", "code", "stride"]
ReplaySchedule = Literal["constant", "annealed", "unsolved"]


class ReplayConfig(Section):
    """Replayed starts and the store behind them."""

    ratio: Annotated[float, Field(ge=0, lt=1)] = 0.25
    """Largest share of replayed starts, in [0, 1). 0: all rollouts start from prompts, and there is no store. Measured:
    docs/method.md, Defaults."""
    schedule: ReplaySchedule = "unsolved"
    """How the share of replayed starts changes: replay.ratio always; falling to 0 over the run; or replay.ratio times
    the share of fresh problems of which every sample fails. Why: docs/method.md, Defaults."""
    fill: bool = True
    """Whether fresh problems take the places of states that are missing, because few are worth replaying. False: the
    iteration is smaller. Why: docs/method.md, Defaults."""
    ranking: Annotated[str, AfterValidator(one_of(names("replay.ranking"), "class"))] = Field(
        "learnability",
        description=f"How the store ranks states: {', '.join(names('replay.ranking'))} (formulas in replay/rankings/), "
        "or your own class as module:class. Measured: docs/method.md, Defaults.",
    )
    start_states: Count = 64
    """States in the store before replay begins."""
    shards: Count = 1
    """Shard actors; problems are hashed to them. More than one only spreads memory over nodes."""
    capacity: Count = 200_000
    """States over all shards; those of the lowest retention are evicted."""
    per_problem: Count = 32
    """States kept per problem."""
    boundary: Boundary = "line"
    """Where a step ends: states begin only there."""
    stride: Count = 16
    """Tokens between boundaries when boundary is 'stride'."""
    exclude_wrong: bool = False
    """Whether states whose text is already wrong are left out, and successes that contain something wrong are not
    imitated, as far as the task can tell: a false equation, a program that cannot be parsed (docs/method.md). States of
    failures that the task finds right begin like those of a success. Wrong ones are in erroneous_share,
    erroneous_states, erroneous_imitated and lucky_share."""
    canonical: bool = False
    """Also keep prefixes of canonical solutions of the iteration's problems, where the task has them."""
    bounded: bool = True
    """Whether states of many problems are drawn, each now and then: a problem once in 4 iterations, those whose root
    fails first, and with the ranking learnability a state until it has 24 decayed outcomes. False: by the priority
    alone."""
    discoveries: Whole = 16
    """Most discoveries that an update repeats in the language-model loss, from the prompt on: successes that continue a
    state of a problem whose root does not succeed. They fade like those of `imitated`. 0, or a
    replay.ratio of 0: none."""
    imitated: Whole = 0
    """Most own earlier successes that an update adds to the language-model loss (self-imitation, 1806.05635): the
    newest of each problem of which at most half of the rollouts from the root succeed. With
    algorithm.estimator gae and algorithm.aggregation token-mean a token of a new one weighs at most as much as a token
    of the batch with an advantage of 1 (the mean is over both); the weight halves every 32 iterations. 0: none.
    Measured: docs/method.md, Defaults."""

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        if self.ratio > 0 and self.capacity < self.start_states:
            raise ValueError(
                f"replay.capacity = {self.capacity} is less than replay.start_states = {self.start_states}, so that "
                "replay would never begin; raise the one or lower the other"
            )
        return self
