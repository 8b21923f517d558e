"""The ranking `uniform`: random boundaries, the mandatory baseline."""

from replay.rankings.base import Ranking


class Uniform(Ranking):
    """Every state has the priority 0."""
