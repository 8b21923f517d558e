"""The ranking `uniform`: random boundaries, the mandatory baseline."""

import numpy as np

from core.records import FloatArray
from replay.rankings.base import Ranking, RankSettings, StateColumns


def uniform(columns: StateColumns, settings: RankSettings) -> FloatArray:  # noqa: ARG001  one signature for all rankings
    """Priority [S]: 0."""
    return np.zeros(len(columns.value), np.float32)


RANKING = Ranking(uniform)
