"""How much of the text that a run writes and learns from is wrong before it ends, where the task can tell
(`replay.exclude_wrong`). An observer: it proposes no start."""

import math
from collections.abc import Iterable, Sequence

from core.parts.sources import Progress, StartSource
from core.records import Boundaries, IntArray, Rollout, Use, used
from replay.cutting import IsWrong, before_error


class Errors(StartSource):
    """Shares of wrong texts in the latest iteration."""

    def __init__(self, boundaries: Boundaries, is_wrong: IsWrong) -> None:
        """`boundaries`: where a step of a response ends."""
        self._boundaries, self._is_wrong = boundaries, is_wrong
        self._found: dict[str, float] = {}

    def observe(self, rollouts: Sequence[Rollout], at: Progress) -> None:  # noqa: ARG002
        """Measure an iteration."""
        generated, is_wrong = used(rollouts, Use.TRAIN, Use.COUNT), self._is_wrong
        replayed = {one.start.id: one.start for one in used(rollouts, Use.TRAIN) if one.start.replayed}.values()
        self._found = {
            "erroneous_share": erroneous_share(((start.problem_id, start.prefix_ids) for start in replayed), is_wrong),
            "erroneous_states": erroneous_states(generated, self._boundaries, is_wrong),
            "erroneous_imitated": erroneous_share(map(_response, used(rollouts, Use.IMITATE)), is_wrong),
            "lucky_share": erroneous_share((_response(one) for one in generated if one.verdict.correct), is_wrong),
        }

    def metrics(self) -> dict[str, float]:
        """See `StartSource`."""
        return self._found


def erroneous_share(texts: Iterable[tuple[str, IntArray]], is_wrong: IsWrong) -> float:
    """Share of wrong texts (problem id, beginning of a response) among those that `is_wrong` can tell; NaN of none."""
    known = [wrong for text in texts if (wrong := is_wrong(*text)) is not None]
    return sum(known) / len(known) if known else math.nan


def erroneous_states(rollouts: Sequence[Rollout], boundaries: Boundaries, is_wrong: IsWrong) -> float:
    """Share of wrong states among those of the rollouts that `is_wrong` can tell; NaN of none."""
    states = erroneous = 0
    for rollout in rollouts:
        lengths = rollout.states(boundaries)
        if is_wrong(rollout.start.problem_id, rollout.response_ids) is not None:
            states += len(lengths)
            erroneous += len(lengths) - len(before_error(rollout, lengths, is_wrong))
    return erroneous / states if states else math.nan


def _response(rollout: Rollout) -> tuple[str, IntArray]:
    """Problem id and whole response."""
    return rollout.start.problem_id, rollout.response_ids
