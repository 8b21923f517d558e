"""Rewards of steps: from characters of a response to the tokens with which the steps end."""

from dataclasses import replace

import numpy as np
import pytest

from core.records import Finish, IntArray, Rollout, Start, Verdict
from tasks.judge_worker import judge_one
from tasks.task import step_rewards

WORDS = ["one ", "two\n", "three ", "four\n", ""]


def decode(tokens: IntArray) -> str:
    return "".join(WORDS[token] for token in tokens)


def trajectory(prefix: list[int], tokens: list[int]) -> Rollout:
    none = np.zeros(0, np.int32)
    start = Start("s", "p", none, np.array(prefix, np.int32), 1, 0, state_key=1 if prefix else None)
    size = len(tokens)
    return Rollout(
        start, 0, np.array(tokens, np.int32), np.zeros(size, np.float32), np.zeros(size, np.int32), Finish.STOP
    )


def rewards(one: Rollout, verdict: Verdict) -> list[float]:
    found = step_rewards(one, verdict, decode)
    assert found is not None
    return [float(reward) for reward in found]


def test_a_step_pays_the_token_that_ends_it() -> None:
    # "one two\nthree four\n": lines end after 8 and 19 characters
    verdict = Verdict(1.0, True, steps=((8, 0.5), (19, -1.0)))
    whole = trajectory([], [0, 1, 2, 3, 4])  # the last token (end of sequence) has no text
    assert rewards(whole, verdict) == [0.0, 0.5, 0.0, -1.0, 0.0]
    assert step_rewards(whole, Verdict(1.0, True), decode) is None


def test_steps_of_the_replayed_prefix_are_context() -> None:
    verdict = Verdict(1.0, True, steps=((8, 0.5), (19, -1.0)))
    assert rewards(trajectory([0, 1], [2, 3, 4]), verdict) == [0.0, -1.0, 0.0]


def test_a_step_within_a_token_or_beyond_the_end_pays_the_token_that_covers_it() -> None:
    verdict = Verdict(0.0, False, steps=((6, 0.25), (7, 0.25), (500, 2.0)))
    assert rewards(trajectory([], [0, 1, 2]), verdict) == [0.0, 0.5, 2.0]


@pytest.mark.parametrize(
    ("steps", "failed"), [(((3, 0.5),), False), (((3, float("nan")),), True), (((3,),), True), ((3,), True)]
)
def test_a_users_steps_are_checked(steps: tuple[tuple[int, float], ...], failed: bool) -> None:
    verdict = judge_one(lambda: Verdict(1.0, True, steps=steps), 0.0)
    assert verdict.judge_failed == failed
    assert failed or verdict.steps == ((3, 0.5),)


def test_a_step_that_ends_in_a_tools_answer_pays_the_call_before_it() -> None:
    verdict = Verdict(1.0, True, steps=((8, 0.5), (19, -1.0)))
    answered = replace(trajectory([], [0, 1, 2, 3, 4]), mask=np.array([True, False, True, True, True]))
    assert rewards(answered, verdict) == [0.5, 0.0, 0.0, -1.0, 0.0]
