"""What a run of `bench.learning` counts, by hand. Its training is `--quick`."""

import math
from dataclasses import replace

import numpy as np
import pytest

from bench.learning.run import Progress, outcomes
from core.records import Imitated, Scored
from tests.trainer.examples import iteration
from tests.trainer.test_starts import PROBLEM, STATE, ids, judged
from trainer.evaluation.scores import score_responses
from trainer.starts import fresh_starts, replayed_starts

NONE = np.zeros(0, np.float32)


def batch(root: tuple[bool, bool], replayed: tuple[bool, bool]) -> list[Scored]:
    """Two rollouts from the root (2 + 1 tokens), and two continuations (1 token) of a state of 2 + 3 tokens."""
    fresh = fresh_starts([PROBLEM], 2, seed=0, iteration=1)[0]
    again = replayed_starts([STATE], {"p": PROBLEM}, 2, seed=0, iteration=1)[0]
    both = ((fresh, root), (again, replayed))
    return [Scored(judged(start, ids(8), right), NONE, NONE, NONE) for start, each in both for right in each]


def test_outcomes_are_counted_by_start() -> None:
    scored = batch((True, False), (False, False))
    assert outcomes(scored, None) == [(2, 1), (2, 0)]
    assert (outcomes(scored, True), outcomes(scored, False)) == ([(2, 0)], [(2, 1)])


def test_progress_counts_tokens_first_successes_and_means() -> None:
    progress = Progress()
    first = replace(iteration(1), total_tokens=100, kl=0.01, replay_success=math.nan)
    progress.add(batch((False, False), (True, False)), [], first)
    assert progress.first == {"root": None, "any": 100}
    earlier = judged(fresh_starts([PROBLEM], 1, 0, 1)[0], ids(8, 9), True)
    second = replace(first, total_tokens=200, kl=0.03, replay_success=0.25)
    zeros = np.zeros(2, np.float32)
    imitated = [Imitated(Scored(earlier, zeros, zeros, zeros), 0.5)]
    progress.add(batch((True, False), (False, False)), imitated, second)
    assert progress.first == {"root": 200, "any": 100}
    right = judged(fresh_starts([PROBLEM], 1, 0, 1)[0], ids(8), True)
    evaluation = score_responses([PROBLEM], [right], [right, right], {}, 0)
    row = progress.row(evaluation)
    assert (row["iterations"], row["generated"], row["trained"], row["greedy"]) == (
        2,
        200,
        2 * (3 + 3 + 6 + 6) + 4,
        1.0,
    )
    assert row["kl"] == pytest.approx(0.02)
    assert (row["largest_kl"], row["replay_success"]) == (0.03, 0.25)  # a mean leaves out what has no value
    assert row["learnability"] == pytest.approx(1.0)  # 4 x 2/1 x 1/4 = 2 of one start and 0 of the other, in both
    assert progress.row(evaluation).keys().isdisjoint({"kl", "largest_kl"})  # no iteration since
