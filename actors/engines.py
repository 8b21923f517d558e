"""What every engine does, and the engine that `rollout.engine` names.

Implemented by `actors/vllm_engine.py` and `actors/hf_engine.py`; made by `actors/actor.py` and `trainer/build.py`. Invariants of both:

- Weights change between two steps only.
- A token's log-probability is that of the distribution it was drawn from, and its version names the weights that drew it.
- Sample i of a start is drawn with `derive(start.seed, i)` from its context and the weights. With vLLM on CPU the other samples of a batch
  do not change it. Elsewhere they change the order of sums, so that a near tie may be decided differently.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from actors.hf_engine import HfEngine
from actors.jobs import Continuation, Job
from actors.vllm_engine import VllmEngine
from core.config import Device, RolloutConfig
from core.records import FloatArray, IntArray
from core.weights import Acknowledgement, Weights


class Engine(Protocol):
    """One model and the samples that it generates."""

    @property
    def unfinished(self) -> int:
        """Samples in flight."""

    def add(self, jobs: Iterable[Job]) -> None:
        """Queue the samples of `jobs`. A replayed prefix uses part of the response's token budget.

        Temperature 0 is greedy: the most likely tokens, with the model's log-probabilities at temperature 1.
        """

    def run(self, seconds: float, refill: int = 0) -> list[Continuation]:
        """Step for about `seconds`, at least once, or until only `refill` samples are in flight; returns what finished."""

    def abort(self) -> None:
        """Drop everything that is in flight."""

    def load_weights(self, weights: Weights) -> Acknowledgement:
        """Swap the weights between two steps; samples in flight continue with the new ones.

        Raises WeightError when a parameter is missing.
        """

    def sequence_logprobs(self, sequences: Sequence[IntArray]) -> list[FloatArray]:
        """[sequence][T - 1]: log-probability of tokens 1..T-1 at temperature 1, for T >= 2."""


def build_engine(model_path: str, config: RolloutConfig, *, dtype: str, device: Device, seed: int, name: str) -> Engine:
    """Load a model. `seed`: for random numbers that do not come from a sample's own seed. Raises ModelError."""
    if config.engine == "hf":
        return HfEngine(model_path, config, dtype=dtype, device=device, name=name)
    return VllmEngine(model_path, config, dtype=dtype, device=device, seed=seed, name=name)
