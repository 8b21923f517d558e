"""The learner's state apart from its models, and the learning rate as a pure function of its steps. Invariant: what
changes the next update is here or in the engines."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from core.config import Schedule
from core.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class CheckpointLayout:
    """What a checkpoint's files depend on, apart from the number of ranks; named as in the configuration."""

    model: str  # class and number of trained parameters
    zero_stage: int
    value_model: str
    lora_rank: int
    lora_alpha: int


@dataclass(slots=True)
class LearnerState:
    """Counters of a run. Only the learner changes it; `credit` reads it."""

    kl_configured: float  # `algorithm.kl_coefficient` of the run so far
    kl_coefficient: float  # the same as adapted so far
    version: int = 0  # of the weights, grows with every broadcast
    updates: int = 0
    steps: int = 0  # optimizer steps that the policy could have taken, skipped ones included
    policy_steps: int = 0  # of these, those in which it was trained: its learning-rate schedule begins with the first
    skipped_in_row: int = 0
    skipped_problems: list[str] = field(default_factory=list)  # ids, of these skipped steps
    policy_trains: bool = False  # whether an update was made after the warm-up of the critic

    def continue_with(self, kl_configured: float) -> None:
        """Continue after a restore. Another configured KL coefficient replaces the adapted one."""
        if kl_configured != self.kl_configured:
            self.kl_configured = self.kl_coefficient = kl_configured

    def warms_up(self, warmup: int) -> bool:
        """Whether the critic learns alone in the next update, one of the first `warmup`. A warm-up that is over stays
        so: a resumed run with a longer one has none."""
        return not self.policy_trains and self.updates < warmup

    def note_steps(
        self, skipped: list[bool], problems: Sequence[str], *, steps: int, policy_steps: int, warmup: int
    ) -> None:
        """Count an update. `problems`: of its last skipped steps; `steps`: possible ones; `policy_steps`: trained."""
        self.policy_trains = not self.warms_up(warmup)
        for flag in skipped:
            self.skipped_in_row = self.skipped_in_row + 1 if flag else 0
        before = self.skipped_problems if all(skipped) else []
        self.skipped_problems = sorted({*before, *problems})
        self.steps += steps
        self.policy_steps += policy_steps
        self.updates += 1

    def save(self, path: Path, ranks: int, layout: CheckpointLayout) -> None:
        """Write as JSON, with the number of ranks and the layout of the checkpoint that it is part of."""
        path.write_text(json.dumps({"ranks": ranks, "layout": asdict(layout), **asdict(self)}), encoding="utf-8")


def read_state(path: Path, layout: CheckpointLayout) -> tuple[LearnerState, int]:
    """What `save` wrote, and from how many ranks. Raises CheckpointError when it is unreadable or has another layout,
    naming each difference."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        ranks, saved = int(data.pop("ranks")), asdict(CheckpointLayout(**data.pop("layout")))
        state = LearnerState(**data)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{path}: no complete learner checkpoint ({error})") from error
    now = asdict(layout)
    pairs = ((name, old, now[name]) for name, old in saved.items())
    different = [f"{name} {old} in the checkpoint, {new} now" for name, old, new in pairs if old != new]
    if different:
        raise CheckpointError(
            f"{path}: written by another learner ({'; '.join(different)}); resume with the settings of the checkpoint"
        )
    return state, ranks


def learning_rate(peak: float, step: int, warmup: int, total: int, schedule: Schedule) -> float:
    """Rate of optimizer step `step` (from 0) of `total`: linear warm-up over `warmup` steps to `peak`, then the
    schedule. `linear` and `cosine` fall towards 0 at the end of the run; a run that continues beyond `total` keeps the
    last rate.

    >>> [learning_rate(1.0, step, 4, 8, "constant") for step in range(6)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    >>> [learning_rate(1.0, step, 0, 4, "linear") for step in range(6)]
    [1.0, 0.75, 0.5, 0.25, 0.25, 0.25]
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    if schedule == "constant":
        return peak
    length = max(1, total - warmup)
    done = min(step - warmup, length - 1) / length
    return peak * (1.0 - done) if schedule == "linear" else peak * 0.5 * (1.0 + math.cos(math.pi * done))
