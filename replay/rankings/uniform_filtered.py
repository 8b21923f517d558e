"""The ranking `uniform_filtered`: random states among those that `learnability` replays. It shows what 4 p (1 - p) is worth."""

from dataclasses import replace

from core.records import FloatArray
from replay.rankings import learnability
from replay.rankings.base import RankSettings, StateColumns, only


def uniform_filtered(columns: StateColumns, settings: RankSettings) -> FloatArray:
    """Priority [S]: 0 for states of unsolved problems with a chance of success of at least 5 %, else -inf."""
    if not len(columns.value):
        return columns.value
    return only(learnability.replayed(columns, learnability.state_chances(columns, settings)))


RANKING = replace(learnability.RANKING, priority=uniform_filtered)
