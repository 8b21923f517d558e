"""The ranking `value`: the paper's (arXiv 2504.14363). The priority of a state is the critic's V(s), whatever came of its replay.

The paper does not say how states are drawn. Here V is divided by the standard deviation of all values, so that the draw is equally
sharp for every scale of rewards. At temperature 1 a state one deviation above another is drawn e = 2.7 times as often.
"""

import numpy as np

from core.records import FloatArray
from replay.rankings.base import Ranking, RankSettings, StateColumns


def value(columns: StateColumns, settings: RankSettings) -> FloatArray:
    """Priority [S]: V(s) in standard deviations of the critic's values."""
    return columns.value / np.float32(settings.model.spread)


RANKING = Ranking(value, needs_values=True, uses_spread=True, temperature=1.0)
