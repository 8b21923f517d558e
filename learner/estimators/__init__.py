"""The estimators of the policy's advantages, by their name in `algorithm.estimator`.

A new one is a pure function of `Episodes` in one of these files, a line in `ESTIMATORS`, its name in `core/sections/algorithm.py`,
and a row in docs/learner.md.
"""

from learner.estimators import groups, returns
from learner.estimators.base import Estimator

ESTIMATORS: dict[str, Estimator] = {
    "gae": returns.GAE,
    "grpo": groups.GRPO,
    "dr_grpo": groups.DR_GRPO,
    "rloo": groups.RLOO,
    "opo": groups.OPO,
    "reinforce++": returns.REINFORCE,
    "reinforce++_baseline": groups.REINFORCE_BASELINE,
    "remax": returns.REMAX,
    "vineppo": returns.VINEPPO,
}
