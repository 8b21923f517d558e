"""Own successful prefixes of hard problems (after PrefixRL, arXiv 2601.18795).

--replay.ratio 0.5 --replay.ranking bench.rankings.success_prefix:SuccessPrefix
"""

from core.records import FloatArray, Provenance
from replay.rankings.base import IS_SOLVED, Ranking, Rules, StateColumns, only, solved


class SuccessPrefix(Ranking):
    """Own successes of problems whose root success (W + 1) / (W + L + 2) is at most 1/2, each as often."""

    def why_not(self, states: StateColumns) -> Rules:
        """Other states, and those of solved problems."""
        return (
            (states.provenance != Provenance.OWN_SUCCESSFUL, "no prefix of an own success"),
            (solved(states), IS_SOLVED),
        )

    def retention(self, states: StateColumns, priority: FloatArray) -> FloatArray:  # noqa: ARG002
        """Retention [S]: own successes are kept, also those of problems that have become easy."""
        return only(states.provenance == Provenance.OWN_SUCCESSFUL)
