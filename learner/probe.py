"""Whether engines and learner compute the same model: their log-probabilities of the same tokens. A digest proves that
weights arrived; a wrong kernel, a layer that kept old weights or another tokenizer shows here. bfloat16 alone makes
single tokens differ by 0.4 nats, so mean and a high quantile are compared with those before training."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from core.errors import WeightError
from core.records import FloatArray

LEAST_MEAN, LEAST_HIGH = 1e-3, 1e-2
"""Nats per token that are no reason to stop, however small the noise was: a policy that has changed has another."""
WRONG_MEAN = {"float32": 0.01, "bfloat16": 0.25}
"""Mean difference in nats per token at which two sides do not compute the same model. SmolLM2 has 5e-6 and 0.065."""
TOLERANCE = 4.0
"""How many times the noise before training the gap may become; measured with SmolLM2 in bfloat16."""
CAUSES = "the weights in the engine, its attention kernel, model.dtype, or the tokenizer"


@dataclass(frozen=True, slots=True)
class Gap:
    """How far the furthest engine and the learner are apart: |log pi_learner - log pi_engine| in nats."""

    mean: float
    high: float  # 99 % quantile over tokens

    def __str__(self) -> str:
        return f"{self.mean:.2g} nats per token (1 % of tokens: more than {self.high:.2g})"

    def beyond(self, noise: "Gap") -> bool:
        """Whether the gap is more than `TOLERANCE` times the `noise`; NaN is."""
        inside = self.mean <= max(LEAST_MEAN, TOLERANCE * noise.mean)
        return not (inside and self.high <= max(LEAST_HIGH, TOLERANCE * noise.high))


def gap_between(engines: Sequence[Sequence[FloatArray]], own: Sequence[FloatArray]) -> Gap:
    """The gap of log-probabilities, per engine and sequence [T - 1]. Without engines it is 0."""
    ours = np.concatenate(own)
    apart = [np.abs(np.concatenate(theirs) - ours) for theirs in engines]
    means = [float(np.mean(one)) for one in apart]
    highs = [float(np.quantile(one, 0.99)) for one in apart]
    return Gap(float(np.max(means, initial=0.0)), float(np.max(highs, initial=0.0)))  # NaN stays NaN


def check_noise(noise: Gap, dtype: str) -> None:
    """Raises WeightError when the two sides differ by more than rounding although they have loaded the same weights."""
    if not noise.mean <= WRONG_MEAN[dtype]:
        raise WeightError(
            f"before training, engine and learner differ by {noise}: they do not compute the same model; look at "
            f"{CAUSES}"
        )


def check_gap(gap: Gap, noise: Gap, version: int) -> None:
    """Raises WeightError when the gap after a broadcast leaves the noise."""
    if gap.beyond(noise):
        raise WeightError(
            f"weight version {version}: engine and learner differ by {gap}, before training by {noise} with the same "
            f"weights; look at {CAUSES}"
        )
