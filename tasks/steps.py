"""Rewards of steps: from places in a response's text, where judges see them, to the tokens that the learner trains on. Pure.

Called by `tasks/task.py` for verdicts with `steps`.
"""

from bisect import bisect_left
from collections.abc import Callable

import numpy as np

from core.records import FloatArray, IntArray, Judged, Trajectory, Verdict


def judged_of(trajectory: Trajectory, verdict: Verdict, decode: Callable[[IntArray], str]) -> Judged:
    """A trajectory with its verdict; the rewards of steps are given to the tokens with which the steps end."""
    steps = step_rewards(trajectory, verdict, decode) if verdict.steps else None
    return Judged(trajectory, verdict, step_rewards=steps)


def step_rewards(trajectory: Trajectory, verdict: Verdict, decode: Callable[[IntArray], str]) -> FloatArray:
    """[C] reward of each continuation token; steps that end in the replayed prefix are context and give none.

    A step that ends after `end` characters belongs to the first token with which the decoded response has so many, at the latest to
    the last token. If a tool wrote that token, it belongs to the call before it.
    """
    response, context = trajectory.response_ids, trajectory.start.prefix_ids.size
    rewards = np.zeros(trajectory.tokens.size, np.float32)
    for end, reward in verdict.steps:
        length = bisect_left(range(1, response.size), end, key=lambda count: len(decode(response[:count]))) + 1
        if length > context:
            rewards[np.flatnonzero(trajectory.generated[: length - context])[-1]] += reward
    return rewards
