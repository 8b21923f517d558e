"""Synchronous engines: they wait for the learner, and nothing is ever in flight."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from core.errors import ConfigError
from core.parts.sources import Progress
from core.records import Rollout, Sampling, Start

if TYPE_CHECKING:
    from actors.local import LocalPool
    from actors.pool import RolloutPool


@dataclass(frozen=True, slots=True)
class SynchronousEngines:
    """Engines that generate the starts of an iteration while the learner waits (`core.parts.engines.Engines`)."""

    pool: "RolloutPool | LocalPool"
    sampling: Sampling
    starts: int  # per iteration

    @property
    def finished(self) -> int:
        """No start waits."""
        return 0

    def room(self, at: Progress) -> int:  # noqa: ARG002
        """As many starts in every iteration."""
        return self.starts

    def generate(self, starts: Sequence[Start]) -> list[Rollout]:
        """All samples of these starts."""
        return self.pool.generate(starts, self.sampling)

    def save(self) -> dict[str, Any] | None:
        """Nothing is in flight."""
        return None

    def restore(self, saved: Mapping[str, Any] | None, at: Progress) -> None:  # noqa: ARG002
        """Raises ConfigError when the saved run has starts in flight."""
        if saved and (count := len(saved["in_flight"])):
            raise ConfigError(
                f"rollout.max_staleness = 0: the checkpoint has {count} starts of asynchronous mode in flight; do not "
                "change rollout.max_staleness"
            )
