"""The ranking `value`: the paper's (arXiv 2504.14363). The priority is the critic's V(s), whatever the outcomes. The
paper does not say how states are drawn. Here V is divided by the standard deviation of all values, so that the draw is
equally sharp for every scale of rewards: at temperature 1 one deviation more is drawn e = 2.7 times as often."""

import numpy as np

from core.records import FloatArray
from replay.rankings.base import Ranking, StateColumns


class Value(Ranking):
    """States of high value more often."""

    temperature = 1.0
    values = "needed"
    model = "scale"

    def priority(self, states: StateColumns) -> FloatArray:
        """Priority [S]: V(s) in standard deviations of the critic's values."""
        return states.value / np.float32(states.model.spread)
