"""What bounds replay: a problem rests between its turns, and the share of replay halves where the root suffers.

Without rest the same few problems are drawn in every iteration, and replay can learn the ends of their responses by
heart, or make them better and their beginnings worse. How often a state is drawn is bounded by the ranking
`learnability`.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from core.records import ReplayedState
from replay.coverage import Coverage, Life

PAUSE = 4  # iterations in which a problem is replayed once at most
LEAST = 16  # problems whose root was started in two iterations, below which nothing is said of it
ERRORS = 2.0  # standard errors below 0
MASTERED = 0.5  # recent success of replayed states


def rested(
    drawn: Sequence[ReplayedState], count: int, lives: Mapping[str, Life], begun: Mapping[str, int], iteration: int
) -> list[int]:
    """The places in `drawn` of at most `count` states, one of each problem that has rested. First come problems whose
    root failed, of equals those that were replayed longest ago, of equals the order of `drawn`. `begun`: the latest
    iteration that drew each problem, whose outcomes may not be known yet."""
    first: dict[str, int] = {}
    for place, state in enumerate(drawn):
        first.setdefault(state.problem_id, place)
    known = {name: lives.get(name, Life()) for name in first}
    last = {name: max(life.replayed, begun.get(name, 0)) for name, life in known.items()}
    ready = [name for name in known if not last[name] or last[name] <= iteration - PAUSE]
    ready.sort(key=lambda name: (known[name].root_succeeds, last[name]))
    return [first[name] for name in ready[:count]]


def root_suffers(coverage: Coverage) -> bool:
    """Whether replay costs the root something. Each problem is compared with itself: its success from the root now
    minus that at first. It does where the mean over problems is below 0 by more than two standard errors, while most
    continuations of replayed states succeed."""
    change = np.array([life.root[1] - life.root[0] for life in coverage.lives.values() if len(life.root) > 1])
    if len(change) < LEAST or coverage.replayed_success <= MASTERED:
        return False
    return bool(change.mean() < -ERRORS * change.std(ddof=1) / len(change) ** 0.5)
