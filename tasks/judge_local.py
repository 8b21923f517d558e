"""Judging in the driver's own process (`task.judge_workers: 0`): for breakpoints in a verifier.

Called by `tasks/task.py`. Verdicts are those of `tasks/judge.py`, but nothing bounds the time or memory of one.
"""

import os
import sys
from collections.abc import Sequence

from core.records import Verdict
from tasks.judge_worker import judge_one, load_verifier


class LocalJudge:
    """One verifier, named by its import path 'module:function'. Raises ConfigError when it cannot be imported.

    `failed_reward` and `settings`: as for `tasks.judge.JudgePool`.
    """

    def __init__(self, verifier: str, failed_reward: float = 0.0, settings: str | None = None) -> None:
        if os.getcwd() not in sys.path:  # a reward of the user's own lies in the folder that the run is started from
            sys.path.append(os.getcwd())
        self._verify = load_verifier(verifier, settings)
        self._failed_reward = failed_reward

    def judge(self, items: Sequence[tuple[str, str]]) -> list[Verdict]:
        """Verdicts of (reference, response) pairs, in order."""
        return [judge_one(self._verify, reference, response, self._failed_reward) for reference, response in items]

    def wait_until_ready(self) -> None:
        """It is."""

    def close(self) -> None:
        """Nothing to end."""
