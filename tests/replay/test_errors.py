"""Shares of wrong texts, by hand."""

import math
from dataclasses import replace

import numpy as np

from core.parts.sources import Progress
from core.records import EMPTY, IntArray, Rollout, Start, Use, Verdict
from replay.errors import Errors, erroneous_share, erroneous_states
from tests.replay.made import rollout

START, OTHER = Start("1.f0", "p", EMPTY, EMPTY, 2, 0), Start("1.f1", "q", EMPTY, EMPTY, 2, 0)


def ids(*tokens: int) -> IntArray:
    return np.array(tokens, np.int32)


def wrong_from_9(problem: str, response: IntArray) -> bool | None:
    """What contains a 9 is wrong; nothing is known of problem q."""
    return None if problem == "q" else 9 in response.tolist()


def every(response: IntArray) -> IntArray:
    return np.arange(1, len(response), dtype=np.int32)


def made(start: Start, *tokens: int, correct: bool = True) -> Rollout:
    return rollout(start, tokens, Verdict(float(correct), correct))


def test_shares_of_an_iteration() -> None:
    """Nothing is replayed. Of the states after every token but the last one of three has a 9."""
    rows = [made(START, 1, 2), made(START, 1, 9, 2), made(START, 9, correct=False)]
    errors = Errors(every, wrong_from_9)
    assert errors.metrics() == {}
    errors.observe([*rows, *(replace(row, use=Use.IMITATE) for row in rows[:2])], Progress(0, 1, 10, 2))
    found = errors.metrics()
    assert (found["erroneous_states"], found["erroneous_imitated"], found["lucky_share"]) == (1 / 3, 1 / 2, 1 / 2)
    assert math.isnan(found["erroneous_share"])


def test_only_what_can_be_told_counts() -> None:
    texts = [("p", ids(9)), ("p", ids(1)), ("p", ids(2)), ("p", ids(3)), ("q", ids(9))]
    assert erroneous_share(texts, wrong_from_9) == 0.25  # 1 of 4
    assert math.isnan(erroneous_share(texts[4:], wrong_from_9))
    rollouts = [made(START, 7, 8, 9, 10, 11), made(START, 7, 8), made(OTHER, 9, 9)]
    # States after every token but the last: 4 + 1. Those of lengths 3 and 4 contain the 9.
    assert erroneous_states(rollouts, every, wrong_from_9) == 2 / 5
    assert math.isnan(erroneous_states(rollouts[2:], every, wrong_from_9))
