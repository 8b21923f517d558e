"""Evaluation maths: pass@k, maj@k and bootstrap intervals from several responses per problem.

Called by evaluations; pure numpy. Invariant: every estimate is a mean over problems of one number per problem. Its interval
comes from resampling problems, because responses to the same problem are not independent.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over problems and its bootstrap percentile interval."""

    mean: float
    low: float
    high: float
    problems: int


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Probability that at least one of k responses, drawn without replacement from the n sampled ones, is right.

    1 - C(n - c, k) / C(n, k), the unbiased estimator of "Evaluating Large Language Models Trained on Code"
    (arXiv 2107.03374, equation 1), as a product that does not overflow. Raises ValueError unless 0 <= c <= n and
    1 <= k <= n.

    >>> round(pass_at_k(4, 1, 2), 3)  # 1 - C(3, 2) / C(4, 2) = 1 - 3/6
    0.5
    """
    if not (0 <= correct <= samples and 1 <= k <= samples):
        raise ValueError(
            f"pass@k needs 0 <= correct <= samples and 1 <= k <= samples, got n={samples} c={correct} k={k}"
        )
    if samples - correct < k:
        return 1.0
    return float(1.0 - np.prod(1.0 - k / np.arange(samples - correct + 1, samples + 1)))


def majority(answers: Sequence[str | None], correct: Sequence[bool]) -> float:
    """maj@n of one problem: 1 if the most frequent answer is right; for ties the share of right answers among the tied ones.

    Responses without an answer (None) do not vote. Without any vote the result is 0. Raises ValueError for unequal lengths.

    >>> majority(["3", "3", "4", None], [True, True, False, False]), majority(["3", "4"], [True, False])
    (1.0, 0.5)
    """
    right = {answer: good for answer, good in zip(answers, correct, strict=True) if answer is not None}
    votes = Counter(answer for answer in answers if answer is not None)
    if not votes:
        return 0.0
    most = max(votes.values())
    tied = [answer for answer, count in votes.items() if count == most]
    return sum(right[answer] for answer in tied) / len(tied)


def bootstrap(
    per_problem: Sequence[float], *, rng: np.random.Generator, level: float = 0.95, draws: int = 2000
) -> Estimate:
    """Mean of one number per problem with its percentile interval over resampled problems. Raises ValueError if empty.

    If all numbers are equal, the interval has no width: the bootstrap knows only the values in the sample.
    """
    values = np.asarray(per_problem, dtype=np.float64)
    if values.size == 0:
        raise ValueError("no problems to estimate from")
    means = np.array([rng.choice(values, values.size).mean() for _ in range(draws)])
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Estimate(float(values.mean()), float(low), float(high), int(values.size))


def paired_difference(
    first: Sequence[float], second: Sequence[float], *, rng: np.random.Generator, level: float = 0.95, draws: int = 2000
) -> Estimate:
    """Mean of second - first over the same problems, in the same order, with its interval. Raises ValueError."""
    if len(first) != len(second):
        raise ValueError(f"the two evaluations have {len(first)} and {len(second)} problems; compare the same ones")
    return bootstrap([b - a for a, b in zip(first, second, strict=True)], rng=rng, level=level, draws=draws)
