"""The newest own success of each problem that the root does not solve yet, to be imitated (`replay.imitated`).

It is kept in the driver: shards keep tokens up to the last state only. Its weight halves every `HALF_LIFE` weight
versions, because an old success is what another policy wrote. Invariant: all depends only on the rollouts from the root
that were added, in their order. Example, 8 rollouts of a problem in each visit: 2 succeed, and the last of them is
kept. None succeeds, and it stays. 5 succeed, and it is dropped: the root itself teaches more. A truncated or lucky
success counts, and is never kept.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from core.records import CutTrajectory, Flags, IntArray, Provenance, Success
from core.seeds import generator

MOST = 1024  # successes that are kept; the oldest goes first
SOLVED = 0.5  # a problem of which a larger share of a visit's rollouts succeeds is not imitated
HALF_LIFE = 32  # weight versions in which the weight of a success halves
FADED = 0.125  # weight below which it is dropped: after three half-lives


class _Kept(NamedTuple):
    response_ids: IntArray  # [R]
    version: int  # weight version that wrote it
    mask: Flags | None  # [R] as of the trajectory


class Successes:
    """One own success of each problem, the oldest first."""

    def __init__(self, kept: Sequence[tuple[str, Sequence[int], int, Sequence[bool] | None]] = ()) -> None:
        self._kept = {
            name: _Kept(np.array(tokens, np.int32), version, None if mask is None else np.array(mask, np.bool_))
            for name, tokens, version, mask in kept
        }

    def add(self, trajectories: Sequence[CutTrajectory]) -> None:
        """Keep the newest success of each problem; drop solved problems. A visit's rollouts come together."""
        visits: dict[str, list[CutTrajectory]] = {}
        for trajectory in trajectories:
            if trajectory.from_root:
                visits.setdefault(trajectory.problem_id, []).append(trajectory)
        for name, rollouts in visits.items():
            won = [rollout for rollout in rollouts if rollout.provenance == Provenance.OWN_SUCCESSFUL]
            whole = [rollout for rollout in won if not (rollout.truncated or rollout.lucky)]
            solved = len(won) > SOLVED * len(rollouts)
            if solved or whole:
                self._kept.pop(name, None)
            if whole and not solved:
                self._kept[name] = _Kept(whole[-1].response_ids, whole[-1].version, whole[-1].mask)
        for name in list(self._kept)[: max(0, len(self._kept) - MOST)]:
            del self._kept[name]

    def draw(self, count: int, seed: int, version: int) -> list[Success]:
        """At most `count` of the successes that have not faded by this weight version, drawn at random without
        replacement. Those that have are dropped."""
        weights = {name: 0.5 ** ((version - one.version) / HALF_LIFE) for name, one in self._kept.items()}
        self._kept = {name: one for name, one in self._kept.items() if weights[name] >= FADED}
        names = list(self._kept)
        chosen = [names[at] for at in generator(seed, "successes").permutation(len(names))[:count].tolist()]
        return [Success(name, self._kept[name].response_ids, weights[name], self._kept[name].mask) for name in chosen]

    def to_json(self) -> list[tuple[str, list[int], int, list[bool] | None]]:
        """What the constructor takes, for the manifest of a checkpoint."""
        return [
            (name, one.response_ids.tolist(), one.version, None if one.mask is None else one.mask.tolist())
            for name, one in self._kept.items()
        ]
