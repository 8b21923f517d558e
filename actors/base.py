"""What every engine promises: token in, token out, stepped by one thread.

Implemented by `actors/engine.py` (vLLM) and `actors/hf_engine.py` (plain transformers); driven by `actors/actor.py` and
`actors/local.py`. Invariants of all: nothing happens in the middle of a step, so weights change between steps only; a
token's log-probability is that of the distribution it was drawn from, and its version names the weights that drew it;
sample i of a start is drawn with `derive(start.seed, i)` from its context and the weights. Its company in a batch does not matter
to vLLM on CPU; elsewhere it decides the order of sums, so that a token at the very edge of two may come out as the other.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from actors.flat import FlatBatch, Job
from core.records import FloatArray, IntArray
from core.sampling import Sampling
from core.weights import Acknowledgement, Weights


class Engine(Protocol):
    """One model and what is in flight in it."""

    @property
    def unfinished(self) -> int:
        """Samples in flight."""

    @property
    def version(self) -> int:
        """Version of the weights in use; 0 for those of the model directory."""

    def add(self, jobs: Iterable[Job], sampling: Sampling) -> None:
        """Take up the samples of `jobs`; the budget of a sample is what its prefix leaves of the response's.

        Temperature 0 is greedy: the most likely tokens, with the model's own log-probabilities at temperature 1.
        """

    def run(self, seconds: float, refill: int = 0) -> FlatBatch:
        """Step for about `seconds`, or until only `refill` samples are left in flight; returns what finished."""

    def generate(self, jobs: Iterable[Job], sampling: Sampling) -> FlatBatch:
        """All samples of `jobs`, to their ends."""

    def abort(self) -> None:
        """Drop everything that is in flight."""

    def load_weights(self, weights: Weights) -> Acknowledgement:
        """Swap the weights between two steps; samples in flight go on with the new ones.

        Raises WeightError when a parameter is missing.
        """

    def sequence_logprobs(self, sequences: Sequence[IntArray]) -> list[FloatArray]:
        """[sequence][T - 1]: log-probability of tokens 1..T-1 at temperature 1, for T >= 2."""
