"""What the learner must remember between updates, beside its models: counters and what they decide. Pure.

Kept by `learner.group`, saved with every checkpoint. Invariant: everything that changes the next update is in here or in the
engines, so that a resumed run goes on exactly.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from core.errors import CheckpointError

SETTLED_OVER = 3
"""Updates over which the critic's explained variance must hold still to count as settled."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What the files of a learner checkpoint rest on, beside the number of ranks. Named as the fields that set them."""

    model: str  # class and number of trained parameters
    zero_stage: int
    value_model: str
    lora_rank: int
    lora_alpha: int


@dataclass(slots=True)
class Progress:
    """Counters of a run."""

    ranks: int
    layout: Layout
    kl_configured: float  # `algorithm.kl_coefficient` of the run so far
    kl_coefficient: float  # what the controller has made of it
    version: int = 0  # of the weights, grows with every broadcast
    updates: int = 0
    steps: int = 0  # optimizer steps, skipped ones included
    policy_steps: int = 0  # of these, those in which the policy learns: its learning rate begins with the first
    skipped_in_row: int = 0
    blamed: list[str] = field(default_factory=list)  # problems of these skipped steps
    policy_trains: bool = False  # False until the critic's warm-up is over
    variances: list[float] = field(default_factory=list)  # explained variance of the last updates

    def go_on(self, ranks: int, kl_configured: float) -> None:
        """Continue with so many ranks. Another `kl_configured` is a new start of the coefficient, the same one keeps it."""
        self.ranks = ranks
        if kl_configured != self.kl_configured:
            self.kl_configured = self.kl_coefficient = kl_configured

    def begin(self, warmup: int) -> bool:
        """Whether the policy learns in the update that begins now."""
        self.policy_trains = self.policy_trains or self.updates >= warmup
        return self.policy_trains

    def note_critic(self, explained_variance: float, returns_vary: bool, settled: float) -> None:
        """End the warm-up when the explained variance has stayed within `settled`, above that (0: never ends early).

        Near 0 it stands still, too: before the critic has learnt anything, as long as its learning rate warms up. A batch whose returns do not vary says nothing of the critic and is passed over.
        """
        if not returns_vary:
            return
        self.variances = [*self.variances, explained_variance][-SETTLED_OVER:]
        low, high = min(self.variances), max(self.variances)
        still = len(self.variances) == SETTLED_OVER and low > settled and high - low < settled
        self.policy_trains = self.policy_trains or still

    def note_steps(self, skipped: list[bool], blamed: Sequence[str] = ()) -> None:
        """Count optimizer steps and the latest row of skipped ones, with the ids of the problems `blamed` for its end."""
        for flag in skipped:
            self.skipped_in_row = self.skipped_in_row + 1 if flag else 0
        before = self.blamed if all(skipped) else []
        self.blamed = sorted({*before, *blamed})
        self.steps += len(skipped)
        self.policy_steps += len(skipped) * self.policy_trains
        self.updates += 1

    def save(self, path: Path) -> None:
        """Write as JSON."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")


def read_progress(path: Path, layout: Layout) -> Progress:
    """What `save` wrote.

    Raises:
        CheckpointError: unreadable, or of another layout (each difference is named).
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        progress = Progress(**data | {"layout": Layout(**data["layout"])})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{path}: no complete learner checkpoint ({error})") from error
    pairs = (
        (field.name, getattr(progress.layout, field.name), getattr(layout, field.name)) for field in fields(Layout)
    )
    different = [f"{name} {old} in the checkpoint, {new} now" for name, old, new in pairs if old != new]
    if different:
        raise CheckpointError(
            f"{path}: written by another learner ({'; '.join(different)}); resume with the settings of the checkpoint"
        )
    return progress
