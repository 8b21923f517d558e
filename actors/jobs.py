"""What travels between the driver and a rollout actor, and what an engine does with it (see `actors/engines.py`)."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from core.records import Episode, Finish, FloatArray, IntArray, Sampling, Start
from core.seeds import derive
from core.weights import Acknowledgement, Weights


@dataclass(frozen=True, slots=True)
class Job:
    """Samples of one start that an engine has to generate: all of them, or the rest."""

    start: Start
    sampling: Sampling
    samples: tuple[int, ...]
    calls: frozenset[int] = frozenset()  # tokens that end the sample, beside the model's end of sequence
    written: tuple[int, ...] = ()  # of the continuation so far, where an environment has answered (one sample)

    @property
    def budget(self) -> int:
        """Tokens that may still be generated: the response's budget less the prefix and what is written."""
        return self.sampling.max_response_tokens - len(self.start.prefix_ids) - len(self.written)

    @property
    def context(self) -> list[int]:
        """All tokens before the first one to generate."""
        return [*self.start.context_ids.tolist(), *self.written]

    def seed(self, sample: int) -> int:
        """The seed of a sample, its own for every turn."""
        return derive(self.start.seed, sample, *([len(self.written)] if self.written else []))


@dataclass(frozen=True, slots=True)
class Continuation:
    """One finished sample, as `core.records.Rollout`. Lists: Ray would send each array as a buffer of its own."""

    start_id: str
    sample: int
    tokens: list[int]  # [C]
    logprobs: list[float]  # [C]
    versions: list[int]  # [C]
    finish: Finish
    mask: list[bool] | None = None  # [C]
    episode: Episode | None = None
    dropped: str = ""  # why its environment gave no episode; such a sample has no tokens
    state_lost: bool = False  # because the state that it starts from could not be rebuilt


class Engine(Protocol):
    """One model and the samples that it generates."""

    _done: list[Continuation]  # finished, and not yet returned by `run`
    waited: float = 0.0  # seconds so far in which it had nothing to do, because environments had to answer

    @property
    def unfinished(self) -> int:
        """Samples in flight."""

    def add(self, jobs: Iterable[Job]) -> None:
        """Queue the samples of `jobs`. Temperature 0 is greedy, with the model's log-probabilities at temperature 1."""

    def step(self) -> None:
        """Take one step, and add the samples that it finishes to `_done`."""

    def rest(self) -> None:
        """If nothing is in flight, forget the cached prefixes, and free the memory that others may need meanwhile."""

    def run(self, seconds: float, refill: int = 0) -> list[Continuation]:
        """Step for about `seconds`, at least once, or until `refill` samples are in flight; returns what finished."""
        end = time.monotonic() + seconds
        while self.unfinished > refill:
            self.step()
            if time.monotonic() >= end:
                break
        self.rest()
        return self.take()

    def take(self) -> list[Continuation]:
        """What has finished since the last call."""
        finished, self._done = self._done, []
        return finished

    def abort(self) -> None:
        """Drop everything that is in flight."""

    def load_weights(self, weights: Weights) -> Acknowledgement:
        """Swap the weights between two steps. Raises WeightError when a parameter is missing."""

    def sequence_logprobs(self, sequences: Sequence[IntArray]) -> list[FloatArray]:
        """[sequence][T - 1]: log-probability of tokens 1..T-1 at temperature 1, for T >= 2."""

    def close(self) -> None:
        """End the processes that it has started."""
