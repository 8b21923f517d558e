"""Finds the ranking that `replay.ranking` names, and tries a user's own on a few states before a run."""

from dataclasses import fields, replace

import numpy as np

from core.config import ReplayConfig
from core.errors import ConfigError, first_line
from core.records import FloatArray
from core.sections.replay import RANKINGS
from core.tools import imported
from replay.rankings.base import Ranking, StateColumns, excluded

FIELD = "replay.ranking"


def find_ranking(config: ReplayConfig) -> Ranking:
    """The ranking of `replay.ranking`, with its settings. Raises ConfigError."""
    found = imported(FIELD, RANKINGS.get(config.ranking, config.ranking))
    if not (isinstance(found, type) and issubclass(found, Ranking)):
        raise ConfigError(f"{FIELD} {config.ranking!r}: name a subclass of replay.rankings.base.Ranking")
    return found(config)


def example_states() -> StateColumns:
    """Two problems with two chains each: an own failure, two states of an own success, and one of a canonical solution."""
    real, whole = np.float32, np.int64
    return StateColumns(
        problem=np.repeat(np.arange(2), 4),
        chain=np.array([0, 1, 1, 2, 3, 4, 4, 5]),
        length=np.array([40, 20, 60, 50, 30, 10, 70, 80], whole),
        total=np.full(8, 100, whole),
        value=np.array([0.1, 0.4, 0.9, 0.5, 0.2, 0.3, 0.8, 0.6], real),
        provenance=np.array([0, 1, 1, 2, 0, 1, 1, 2], np.uint8),
        wins=np.array([0, 1, 3, 0, 0, 0, 2, 0], real),
        losses=np.array([4, 3, 1, 0, 0, 0, 2, 0], real),
        tried=np.array([4, 4, 4, 0, 0, 0, 4, 0], whole),
        root_wins=np.repeat(np.array([1, 9], real), 4),
        root_losses=np.repeat(np.array([7, 0], real), 4),
    )


def check_ranking(config: ReplayConfig) -> None:
    """Rank `example_states`, together and each problem alone. Raises ConfigError naming what is wrong."""
    ranking, states = find_ranking(config), example_states()
    columns = {field.name: getattr(states, field.name) for field in fields(states) if field.name != "model"}
    for column in columns.values():
        column.setflags(write=False)
    halves = [
        replace(states, **{name: column[at] for name, column in columns.items()}) for at in (slice(4), slice(4, 8))
    ]
    prefix = f"{FIELD} {config.ranking!r} on {len(states.value)} states"
    try:
        priority = ranking.priority(states)
        retention = ranking.retention(states, priority)
        apart = [ranking.priority(replace(half, problem=half.problem - half.problem[0])) for half in halves]
        barred = excluded(ranking.why_not(states), len(states.value))
    except Exception as error:  # the user's code
        raise ConfigError(f"{prefix}: {type(error).__name__}: {first_line(error)}") from error
    for what, found in (("priority", priority), ("retention", retention)):
        _check_numbers(f"{prefix}: {what}", found, states.value)
    if not np.array_equal(np.concatenate(apart), priority):
        raise ConfigError(
            f"{prefix}: priorities differ if a problem is ranked alone; use only columns of its own problem"
        )
    if (barred & ~np.isneginf(priority)).any():
        raise ConfigError(f"{prefix}: why_not excludes a state that has a priority; return -inf for it")


def _check_numbers(prefix: str, found: object, like: FloatArray) -> None:
    if not isinstance(found, np.ndarray) or found.shape != like.shape or found.dtype.kind != "f":
        shape = f"{found.dtype} of shape {found.shape}" if isinstance(found, np.ndarray) else type(found).__name__
        raise ConfigError(f"{prefix} is {shape}; return an array of floats of shape {like.shape}")
    if np.isnan(found).any() or np.isposinf(found).any():
        raise ConfigError(f"{prefix} has a NaN or +inf; return finite numbers or -inf")
