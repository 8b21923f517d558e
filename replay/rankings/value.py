"""The ranking `value`: the paper's (arXiv 2504.14363). The priority of a state is the critic's V(s)."""

from core.records import FloatArray
from replay.rankings.base import Ranking, RankSettings, StateColumns


def value(columns: StateColumns, settings: RankSettings) -> FloatArray:  # noqa: ARG001  one signature for all rankings
    """Priority [S]: V(s)."""
    return columns.value


RANKING = Ranking(value, needs_values=True)
