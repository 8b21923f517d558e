"""How many losses of rollout actors a run survives. Used by `actors/pool.py`; no Ray, no engine.

Invariant: repeated failures use the budget up, even when they are spread over several actors.
"""

import time
from collections.abc import Callable

from core.errors import ActorError

INCIDENT_SECONDS = 60.0
"""Seconds within which losses of different actors are one incident: a node is lost, or memory runs out."""


class RestartBudget:
    """At most `allowed` incidents within any `window` seconds.

    Losses of different actors within INCIDENT_SECONDS are one incident. A second loss of the same actor is a new incident, so that
    actors that die after every start use the budget up.
    """

    def __init__(self, allowed: int, window: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._allowed, self._window, self._clock = allowed, window, clock
        self._incidents: list[tuple[float, set[str]]] = []  # when it began, and which actors were lost

    @property
    def spent(self) -> int:
        """Incidents within the window that ends now."""
        self._incidents = [one for one in self._incidents if self._clock() - one[0] < self._window]
        return len(self._incidents)

    def charge(self, name: str, reason: str) -> None:
        """Count the loss of actor `name`. Raises ActorError, with the one-line `reason`, when it is one incident too many."""
        spent, now = self.spent, self._clock()
        if self._incidents and now - self._incidents[-1][0] < INCIDENT_SECONDS and name not in self._incidents[-1][1]:
            self._incidents[-1][1].add(name)
        elif spent < self._allowed:
            self._incidents.append((now, {name}))
        else:
            raise ActorError(
                f"{name}: {reason}; rollout.max_restarts = {self._allowed} within {self._window:g} s is used up: look into its log, "
                f"or allow more restarts"
            )
