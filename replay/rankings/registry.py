"""The rankings by name. A new ranking is a file in this folder and a line in `RANKINGS`."""

from replay.rankings import (
    canonical,
    frontier,
    learnability,
    posterior,
    success_prefix,
    uniform,
    uniform_filtered,
    value,
)
from replay.rankings.base import Ranking

RANKINGS: dict[str, Ranking] = {
    "value": value.RANKING,
    "learnability": learnability.RANKING,
    "frontier": frontier.RANKING,
    "posterior": posterior.RANKING,
    "success_prefix": success_prefix.RANKING,
    "canonical": canonical.RANKING,
    "uniform": uniform.RANKING,
    "uniform_filtered": uniform_filtered.RANKING,
}
"""The rankings by their name in `replay.ranking`."""
