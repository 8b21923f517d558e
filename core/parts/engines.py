"""The engines as the loop sees them. The synchronous ones wait for the learner, the asynchronous ones do not; the loop
knows no difference."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from core.parts.sources import Progress
from core.records import Rollout, Start


class Engines(Protocol):
    """Continues the starts of a training iteration."""

    @property
    def finished(self) -> int:
        """Starts that are complete and wait for the learner."""

    def room(self, at: Progress) -> int:
        """How many starts they take in the iteration `at`."""

    def generate(self, starts: Sequence[Start]) -> list[Rollout]:
        """All samples of a batch of starts: of these, or of the oldest complete ones that were given before."""

    def save(self) -> dict[str, Any] | None:
        """For a checkpoint, as JSON: the starts that are in flight; None: nothing ever is."""

    def restore(self, saved: Mapping[str, Any] | None, at: Progress) -> None:
        """Submit the starts of `save` again, for the current weights; `at`: the iteration that was saved. Raises
        ConfigError when the settings do not allow them."""
