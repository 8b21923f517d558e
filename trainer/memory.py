"""What an iteration keeps: evidence about states and problems, new states, own successes; and new values of old states.

Invariant: results depend only on the arguments and the state of the parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from core.records import Imitated, Provenance, Scored
from core.seeds import derive
from trainer.metrics import PhaseClock
from trainer.records import Batch, Components, IterationSettings, ValueRefresh
from trainer.starts import NO_VALUES, canonical_rollouts, cut_trajectories, imitated_rollouts, outcomes, value_queries


@dataclass(slots=True)
class Memory:
    """The replay store, the own successes, and the values that the critic computes anew, in one iteration."""

    parts: Components
    settings: IterationSettings
    clock: PhaseClock
    _refresh: ValueRefresh | None = field(default=None, init=False)

    def begin_refresh(self) -> None:
        """Start to compute new values of the highest-priority states whose value is from an earlier critic."""
        with self.clock.phase("replay"):
            self._refresh = begun_refresh(self.parts, self.settings)

    def remember(self, batch: Batch, scored: Sequence[Scored], number: int) -> list[Imitated]:
        """Store the new values, the outcomes of the batch and the states in it. Returns the earlier own successes that
        the update of iteration `number` imitates. Raises LearnerError."""
        parts, settings = self.parts, self.settings
        with self.clock.phase("score"):
            canonical = canonical_rollouts(batch.starts, parts.by_id) if settings.canonical else []
            canonical_values = parts.learner.values(canonical) if canonical else []
        if self._refresh is not None:
            finish_refresh(parts, self._refresh, self.clock)
        with self.clock.phase("replay"):
            parts.problems.record(batch.all_judged)
            parts.replay.record(outcomes(batch.all_judged))
            successes = parts.replay.successes(derive(settings.seed, "imitated", number), parts.learner.version)
            cut = partial(
                cut_trajectories,
                boundaries=parts.boundaries,
                version=parts.learner.version,
                budget=settings.sampling.max_response_tokens,
                is_wrong=parts.task.prefix_is_wrong if settings.exclude_wrong else None,
            )
            values = [item.values if settings.replayed else NO_VALUES for item in scored]
            parts.replay.add(
                [
                    *cut(batch.judged, values),
                    *cut(batch.dropped, [NO_VALUES] * len(batch.dropped)),  # their outcomes count
                    *cut(canonical, canonical_values, provenance=lambda _: Provenance.CANONICAL),
                ]
            )
            parts.replay.remove(parts.actors.take_lost())  # last: the batch may have one of them
        with self.clock.phase("score"):
            rollouts = imitated_rollouts(successes, parts.by_id)
            found = parts.learner.score(rollouts) if rollouts else []
        return [Imitated(item, each.weight) for item, each in zip(found, successes, strict=True)]


def begun_refresh(parts: Components, settings: IterationSettings) -> ValueRefresh | None:
    """Start to compute new values of the highest-priority states whose value is from an earlier critic. None: no such
    state."""
    version = parts.learner.version
    states = parts.replay.top(settings.refresh_states, older_than=version) if settings.refresh_states else []
    if not states:
        return None
    queries = value_queries(states, parts.by_id)
    if settings.refresh_while_generating:
        return ValueRefresh(states, version, parts.learner.begin_values(queries))
    values = parts.learner.values(queries)
    return ValueRefresh(states, version, lambda: values)


def finish_refresh(parts: Components, refresh: ValueRefresh, clock: PhaseClock) -> None:
    """Store the values from `begin_refresh`. A state whose new value is not finite keeps its old one."""
    with clock.phase("score"):
        values = np.array([of_state[0] for of_state in refresh.values()], np.float32)
    finite = np.flatnonzero(np.isfinite(values))
    with clock.phase("replay"):
        parts.replay.revalue([refresh.states[at] for at in finite], values[finite], refresh.version)
