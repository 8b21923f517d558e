"""The ranking `success_prefix`: prefixes of own successful trajectories of hard problems (after PrefixRL, arXiv 2601.18795)."""

from core.records import FloatArray, Provenance
from replay.rankings.base import Ranking, RankSettings, StateColumns, only, success_rate


def success_prefix(columns: StateColumns, settings: RankSettings) -> FloatArray:  # noqa: ARG001  one signature for all rankings
    """Priority [S]: 0 for own successes of problems whose root success (w + 1) / (w + l + 2) is at most 1/2, else -inf."""
    hard = success_rate(columns.root_wins, columns.root_losses) <= 0.5
    return only(hard & (columns.provenance == Provenance.OWN_SUCCESSFUL))


def own_successes(columns: StateColumns, priority: FloatArray) -> FloatArray:  # noqa: ARG001
    """Retention [S]: own successes are kept, also those of problems that have become easy."""
    return only(columns.provenance == Provenance.OWN_SUCCESSFUL)


RANKING = Ranking(success_prefix, own_successes)
