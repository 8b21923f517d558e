"""How much failure a pool bears before a run stops, and what does not count. Used by `actors/pool.py`; no Ray, no engine.

Invariant: what fails over and over uses a budget up, however the failures are spread over engines; what takes many engines at
one moment does not.
"""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from core.errors import ActorError
from core.records import Start

TOGETHER = 60.0
"""Seconds within which the losses of several engines are one incident: a lost node, memory that ran out."""
NODE_SECONDS = 90.0
"""How long the cluster may take to notice that a node is gone (Ray: five health checks, each of up to 13 s, fail)."""
GUEST_TRIES = 3
"""How often in a row the process of a guest may die or hang before it can serve: the run needs no guest, and others may load."""


@dataclass(slots=True)
class _Incident:
    begun: float
    names: list[str]


class Budget:
    """At most `allowed` incidents within any `window` seconds.

    Losses of different engines within `together` seconds are one incident. The same engine again is the next one: engines that
    die whenever they are started use the budget up.
    """

    def __init__(
        self, allowed: int, window: float, together: float = TOGETHER, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._allowed, self._window, self._together, self._clock = allowed, window, together, clock
        self._incidents: list[_Incident] = []

    @property
    def spent(self) -> int:
        """Incidents within the window that ends now."""
        now = self._clock()
        self._incidents = [one for one in self._incidents if now - one.begun < self._window]
        return len(self._incidents)

    def spend(self, name: str) -> bool:
        """Count a loss of `name`; False when it is one incident more than is allowed."""
        now, spent = self._clock(), self.spent
        last = self._incidents[-1] if self._incidents else None
        if last is not None and now - last.begun < self._together and name not in last.names:
            last.names.append(name)
            return True
        if spent >= self._allowed:
            return False
        self._incidents.append(_Incident(now, [name]))
        return True

    def charge(self, name: str, what: str) -> None:
        """Count the loss of the engine `name`. Raises ActorError when it is one too many."""
        if not self.spend(name):
            raise ActorError(
                f"{name}: {what}; rollout.max_restarts = {self._allowed} within {self._window:g} s is used up: look into its log, "
                f"or allow more restarts"
            )

    def forgive(self, names: Sequence[str]) -> None:
        """Take back the last loss that was counted of each of these engines: something else is to blame for them."""
        for name in names:
            for incident in reversed(self._incidents):
                if name in incident.names:
                    incident.names.remove(name)
                    break
        self._incidents = [incident for incident in self._incidents if incident.names]


class Quarantine:
    """The starts that engines cannot generate: `tell` is told each, with the reason.

    At most `allowed` may be to blame within any `window` seconds: more mean that the engines are at fault.
    """

    def __init__(self, allowed: int, window: float, tell: Callable[[Start, str], None]) -> None:
        self.count = 0
        self._blamed = Budget(allowed, window, together=0.0)
        self._tell = tell
        self._contexts: set[bytes] = set()

    def add(self, start: Start, reason: str) -> bool:
        """A start that has made engines raise is left out, now and whenever its context comes again; False if it is one too many."""
        if not self._blamed.spend(start.id):
            return False
        self._enter(start, reason)
        return True

    def again(self, starts: Sequence[Start]) -> list[Start]:
        """Those of `starts` whose contexts are here already; they are counted and told."""
        known = [start for start in starts if start.context_ids.tobytes() in self._contexts] if self._contexts else []
        for start in known:
            self._enter(start, "engines have raised on its context before")
        return known

    def _enter(self, start: Start, reason: str) -> None:
        self.count += 1
        self._contexts.add(start.context_ids.tobytes())
        self._tell(start, reason)


@dataclass(frozen=True, slots=True)
class Loss:
    """An engine that was lost, perhaps with its node."""

    name: str
    node: str
    what: str  # in one line
    since: float


class Doubts:
    """Losses that do not count if the node turns out to be lost as well, which the cluster notices later than the pool."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._losses: list[Loss] = []

    def add(self, name: str, node: str, what: str) -> None:
        """The engine `name` on `node` was lost just now."""
        self._losses.append(Loss(name, node, what, self._clock()))

    def settle(self, alive: Callable[[], Collection[str]]) -> list[Loss]:
        """The losses that count: their nodes are still `alive` (asked for only when needed) NODE_SECONDS later."""
        if not self._losses:
            return []
        nodes, now = alive(), self._clock()
        there = [loss for loss in self._losses if loss.node in nodes]
        self._losses = [loss for loss in there if now - loss.since < NODE_SECONDS]
        return [loss for loss in there if now - loss.since >= NODE_SECONDS]
