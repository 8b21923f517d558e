"""The trust in the critic: measured on the outcomes of replayed states, compared within problems."""

import numpy as np
import numpy.typing as npt

from core.scoring import base_brier, brier, within_auc
from replay.keys import Reals

FREEDOM = 4.0
"""Fewest degrees of freedom for any trust in the critic: about five problems with both right and wrong outcomes."""


def critic_gate(values: Reals, correct: npt.NDArray[np.bool_], groups: npt.NDArray[np.int64]) -> float:
    """The trust in the critic, in {0, 1/4, 1/2, 3/4, 1}, from a window of outcomes [N] of replayed states.

    `groups` are problems. Pairs are compared within a problem, because telling easy problems from hard ones does not help to
    choose a state. The trust is 0 unless two conditions hold. The within-group AUC is above 1/2 with 99 % confidence (Student's
    t over the groups, quantile 2.33 + 4.9 / degrees of freedom), and the Brier score is below that of the base rate. Then it is
    twice the AUC's excess over 1/2, rounded down to quarters.
    """
    area, error, freedom = within_auc(values, correct, groups)
    sure = freedom >= FREEDOM and area - (2.33 + 4.9 / freedom) * error > 0.5
    if not sure or brier(values, correct) >= base_brier(correct):
        return 0.0
    return float(np.floor(min(1.0, 2.0 * (area - 0.5)) * 4.0) / 4.0)
