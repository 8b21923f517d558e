"""Finds the ranking that `replay.ranking` names, and tries a user's own on a few states before a run."""

from dataclasses import fields, replace
from typing import Any

import numpy as np

from core.config import ReplayConfig
from core.errors import ConfigError, first_line
from core.records import Provenance
from core.sections.registry import find
from replay.rankings.base import Ranking, StateColumns, excluded

FIELD = "replay.ranking"
_HALVES = slice(5), slice(5, 10)


def find_ranking(config: ReplayConfig) -> Ranking:
    """The ranking of `replay.ranking`, with its settings. Raises ConfigError."""
    found = find(FIELD, config.ranking)
    if not (isinstance(found, type) and issubclass(found, Ranking)):
        raise ConfigError(f"{FIELD} {config.ranking!r}: name a subclass of replay.rankings.base.Ranking")
    return found(config)


def example_states() -> StateColumns:
    """Two problems with four chains each: an own failure, two states of a success, one of a canonical solution, and one
    of a failure that solves a part."""
    failed, partial, won, canonical = Provenance
    columns: dict[str, list[float]] = {
        "problem": [0, 0, 0, 0, 0, 1, 1, 1, 1, 1],
        "chain": [0, 1, 1, 2, 3, 4, 5, 5, 6, 7],
        "length": [40, 20, 60, 50, 30, 30, 10, 70, 80, 40],
        "total": [100] * 10,
        "left": [0.5, 0.9, 0.3, 0.5, 0.7, 0.8, 0.95, 0.2, 0.1, 0.6],
        "value": [0.1, 0.4, 0.9, 0.5, 0.3, 0.2, 0.3, 0.8, 0.6, 0.4],
        "provenance": [failed, won, won, canonical, partial, failed, won, won, canonical, partial],
        "wins": [0, 1, 3, 0, 2, 0, 0, 2, 0, 0],
        "losses": [4, 3, 1, 0, 2, 0, 0, 2, 0, 4],
        "tried": [4, 4, 4, 0, 4, 0, 0, 4, 0, 4],
        "root_wins": [1, 1, 1, 1, 1, 9, 9, 9, 9, 9],
        "root_losses": [7, 7, 7, 7, 7, 0, 0, 0, 0, 0],
        "root_solved": [1, 1, 1, 1, 1, 9, 9, 9, 9, 9],
    }
    reals = ("left", "value", "wins", "losses", "root_wins", "root_losses")
    types: dict[str, Any] = {"provenance": np.uint8} | dict.fromkeys(reals, np.float32)
    arrays: dict[str, Any] = {name: np.array(given, types.get(name, np.int64)) for name, given in columns.items()}
    return StateColumns(**arrays)


def check_ranking(config: ReplayConfig) -> None:
    """Rank `example_states`, together and each problem alone. Raises ConfigError naming what is wrong."""
    ranking, states = find_ranking(config), example_states()
    columns = {field.name: getattr(states, field.name) for field in fields(states) if field.name != "model"}
    for column in columns.values():
        column.setflags(write=False)
    first, last = (replace(states, **{name: column[at] for name, column in columns.items()}) for at in _HALVES)
    alone = (first, replace(last, problem=first.problem))
    prefix = f"{FIELD} {config.ranking!r} on {len(states.value)} states"
    try:
        priority = ranking.priority(states)
        retention = ranking.retention(states, priority)
        apart = np.concatenate([ranking.priority(problem) for problem in alone])
        barred = excluded(ranking.why_not(states), len(states.value))
    except Exception as error:  # the user's code
        raise ConfigError(f"{prefix}: {type(error).__name__}: {first_line(error)}") from error
    for what, found in (("priority", priority), ("retention", retention)):
        if not isinstance(found, np.ndarray) or found.shape != states.value.shape or found.dtype.kind != "f":
            raise ConfigError(f"{prefix}: {what} is {found!r}; return an array of floats of shape {states.value.shape}")
        if np.isnan(found).any() or np.isposinf(found).any():
            raise ConfigError(f"{prefix}: {what} has a NaN or +inf; return finite numbers or -inf")
    if not np.array_equal(apart, priority):
        raise ConfigError(f"{prefix}: priorities change if a problem is ranked alone; read only its own columns")
    if (barred & ~np.isneginf(priority)).any():
        raise ConfigError(f"{prefix}: why_not excludes a state that has a priority; return -inf for it")
