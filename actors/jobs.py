"""What travels between the driver and a rollout actor: jobs one way, finished continuations the other. No Ray, no engine."""

from dataclasses import dataclass

from core.records import Finish, Start
from core.sampling import Sampling


@dataclass(frozen=True, slots=True)
class Job:
    """Samples of one start that an engine has to generate: all of them, or the rest."""

    start: Start
    sampling: Sampling
    samples: tuple[int, ...]

    @property
    def budget(self) -> int:
        """Tokens that a continuation may have: the response's budget less the prefix."""
        return self.sampling.max_response_tokens - len(self.start.prefix_ids)


@dataclass(frozen=True, slots=True)
class Continuation:
    """One finished sample of the start `start_id`; fields as in `core.records.Trajectory`.

    Lists and not arrays: Ray would send each array as a buffer of its own.
    """

    start_id: str
    sample: int
    tokens: list[int]  # [C]
    logprobs: list[float]  # [C]
    versions: list[int]  # [C]
    finish: Finish
