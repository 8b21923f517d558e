"""Evaluation maths: pass@k, maj@k and intervals from several responses per problem. Invariant: every estimate is a mean
over problems of one number per problem, and problems, not responses, are what its interval takes to be independent:
shares by Wilson's score, other numbers by the bootstrap."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import NormalDist

import numpy as np


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over problems and its interval."""

    mean: float
    low: float
    high: float
    problems: int


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Probability that at least one of k responses, drawn without replacement from the n sampled ones, is right: 1 -
    C(n - c, k) / C(n, k), the unbiased estimator of arXiv 2107.03374, equation 1, as a product without overflow.

    >>> round(pass_at_k(4, 1, 2), 3)  # 1 - C(3, 2) / C(4, 2) = 1 - 3/6
    0.5
    """
    if samples - correct < k:
        return 1.0
    return float(1.0 - np.prod(1.0 - k / np.arange(samples - correct + 1, samples + 1)))


def majority(answers: Sequence[str | None], correct: Sequence[bool]) -> float:
    """maj@n of one problem: 1 if the most frequent answer is right; for ties the share of right ones among the tied.
    Responses without an answer (None) do not vote. Without any vote the result is 0.

    >>> majority(["3", "3", "4", None], [True, True, False, False]), majority(["3", "4"], [True, False])
    (1.0, 0.5)
    """
    judged: dict[str, list[bool]] = {}  # one answer may be right in one response and wrong in another, by its form
    for answer, good in zip(answers, correct, strict=True):
        if answer is not None:
            judged.setdefault(answer, []).append(good)
    votes = Counter(answer for answer in answers if answer is not None)
    if not votes:
        return 0.0
    most = max(votes.values())
    tied = [answer for answer, count in votes.items() if count == most]
    return sum(sum(judged[answer]) / len(judged[answer]) for answer in tied) / len(tied)


def merge_answers(
    answers: Sequence[str | None], correct: Sequence[bool], same: Callable[[list[tuple[int, int]]], Sequence[bool]]
) -> list[str | None]:
    """The answers of one problem, with one text for the right ones, and for wrong ones that `same` joins. `same` gets
    pairs of positions. It is not asked where joining wrong answers cannot change the majority.

    >>> merge_answers(["a", "b", "1", "2"], [False, False, True, True], lambda pairs: [True] * len(pairs))
    ['a', 'a', '1', '1']
    """
    merged = list(answers)
    right = [place for place, good in enumerate(correct) if good and answers[place] is not None]
    for place in right:
        merged[place] = answers[right[0]]
    votes = Counter(answer for answer, good in zip(answers, correct, strict=True) if answer is not None and not good)
    if not right or not max(votes.values(), default=0) <= len(right) <= votes.total():
        return merged
    first = {
        answer: place for place, answer in reversed(list(enumerate(answers))) if answer in votes and not correct[place]
    }
    pairs = list(combinations(sorted(first.values()), 2))
    for (earlier, later), joined in zip(pairs, same(pairs) if pairs else [], strict=True):
        if joined and merged[later] == answers[later]:
            merged = [merged[earlier] if answer == answers[later] else answer for answer in merged]
    return merged


def share(per_problem: Sequence[float], *, level: float = 0.95) -> Estimate:
    """Mean of numbers between 0 and 1 with Wilson's score interval (Wilson, 1927). It covers rare successes, where the
    bootstrap is too short, and is never without width. Numbers other than 0 and 1 scatter less than m (1 - m): they
    count as n m (1 - m) / variance problems, the effective sample size of surveys.

    >>> # z = 1.96: centre (1/4 + z^2/8) / (1 + z^2/4), half width z sqrt(3/64 + z^2/64) / (1 + z^2/4)
    >>> found = share([1.0, 0.0, 0.0, 0.0])
    >>> round(found.low, 3), round(found.high, 3)
    (0.046, 0.699)
    """
    values = np.asarray(per_problem, dtype=np.float64)
    mean, size = float(values.mean()), float(values.size)
    variance = float(values.var(ddof=1)) if values.size > 1 else 0.0
    if variance > 0:
        size *= max(1.0, mean * (1 - mean) / variance)
    z2 = NormalDist().inv_cdf((1 + level) / 2) ** 2
    centre = (mean + z2 / (2 * size)) / (1 + z2 / size)
    half = math.sqrt(z2 * (mean * (1 - mean) / size + z2 / (4 * size**2))) / (1 + z2 / size)
    return Estimate(mean, max(0.0, centre - half), min(1.0, centre + half), int(values.size))


def bootstrap(
    per_problem: Sequence[float], *, rng: np.random.Generator, level: float = 0.95, draws: int = 2000
) -> Estimate:
    """Mean of one number per problem with its percentile interval over resampled problems."""
    values = np.asarray(per_problem, dtype=np.float64)
    means = np.array([rng.choice(values, values.size).mean() for _ in range(draws)])
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Estimate(float(values.mean()), float(low), float(high), int(values.size))
