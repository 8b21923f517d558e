"""Which models a run needs: whether its estimator or its ranking reads a critic's values."""

from typing import TYPE_CHECKING, Literal

from core.config import Config
from core.errors import ConfigError

if TYPE_CHECKING:
    from learner.estimators import Estimator
    from replay.rankings.base import Ranking


def critic(config: Config) -> Literal["separate", "shared", "none"]:
    """The critic of a run: `learner.value_model`, or none if neither estimator nor ranking needs values."""
    estimator, ranking = methods(config)
    ranked = config.replay.ratio > 0 and ranking.values == "needed"
    return config.learner.value_model if estimator.needs_values or ranked else "none"


def methods(config: Config) -> "tuple[Estimator, Ranking]":
    """The estimator and the ranking. Raises ConfigError for unknown ones."""
    from learner.estimators import find_estimator
    from replay.rankings.find import find_ranking

    return find_estimator(config.algorithm.estimator), find_ranking(config.replay)


def check_needs(config: Config) -> None:
    """Raises ConfigError if estimator or ranking lack what they need, or a setting is about an absent critic."""
    algorithm, learner, (estimator, ranking) = config.algorithm, config.learner, methods(config)
    by_estimator = f"algorithm.estimator '{algorithm.estimator}'"
    by_ranking, replayed = f"replay.ranking '{config.replay.ranking}'", config.replay.ratio > 0
    if estimator.needs_groups and config.rollout.samples < 2:
        raise ConfigError(
            f"{by_estimator} compares the continuations of a start, but rollout.samples is 1; raise rollout.samples to "
            "at least 2"
        )
    if critic(config) != "none":
        return
    unread = f"{by_estimator} and {by_ranking} read no values" if replayed else f"{by_estimator} reads no values"
    absent = "learner.value_model is 'none'" if learner.value_model == "none" else unread
    if estimator.needs_values or (replayed and ranking.values == "needed"):
        reader = by_estimator if estimator.needs_values else by_ranking
        raise ConfigError(f"{reader} needs values, but {absent}; set it to separate or shared")
    for name in ("critic_warmup", "value_path"):
        if given := getattr(learner, name):
            message = f"learner.{name} = {given} is about the critic, but there is none: {absent}; leave it out"
            raise ConfigError(message)
