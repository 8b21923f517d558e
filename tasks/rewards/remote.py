"""A reward that a server gives over HTTP, as OpenRLHF asks one (`--reward.remote_url`).

Request: `{"query": [prompt and response], "prompts": [...], "labels": [...]}`, texts as the model reads them; answer:
`{"rewards": [...]}`. Invariant: a request without a usable answer is repeated, and gives failed verdicts in the end.
"""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from threading import Event
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from core.errors import first_line
from core.parts.judge import Asks, Case
from core.records import Verdict
from tasks.judge_worker import MOST_REWARD

TRIES = 5
PAUSE = 1.0
"""Seconds before the second try; the pause doubles with every further one."""
MOST = 64
"""Responses per request."""


class RemoteReward:
    """Asks the server at `url`, `concurrency` requests at a time."""

    asks = Asks(query=True, shape="a server")

    def __init__(self, url: str, *, timeout: float, concurrency: int) -> None:
        """`timeout`: seconds of one try."""
        self._url, self._timeout = url, timeout
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="remote reward")
        self._concurrency, self._closed = concurrency, Event()

    def judge(self, cases: Sequence[Case]) -> list[Verdict]:
        """See `core.parts.judge.Judge`."""
        size = min(MOST, max(1, -(-len(cases) // self._concurrency)))
        requests = [cases[begin : begin + size] for begin in range(0, len(cases), size)]
        return [verdict for verdicts in self._threads.map(self._ask, requests) for verdict in verdicts]

    def _ask(self, cases: Sequence[Case]) -> list[Verdict]:
        data = {
            "query": [case.query for case in cases],
            "prompts": [case.prompt for case in cases],
            "labels": [case.reference for case in cases],
        }
        request = Request(self._url, json.dumps(data).encode(), {"Content-Type": "application/json"})
        why = ""
        for repeats in range(TRIES):
            if self._closed.wait(PAUSE * 2 ** (repeats - 1) if repeats else 0):
                break
            try:
                with urlopen(request, timeout=self._timeout) as reply:
                    rewards = [float(reward) for reward in json.loads(reply.read())["rewards"]]
                if len(rewards) == len(cases) and all(abs(reward) <= MOST_REWARD for reward in rewards):  # no NaN
                    return [Verdict(reward, reward > 0) for reward in rewards]
                why = f"it answered {len(cases)} queries with {rewards[:4]}"
            except HTTPError as error:
                why = f"HTTP {error.code} {error.reason}"
                if error.code < 500 and error.code not in (408, 429):
                    break  # the same request will not do better
            except (OSError, HTTPException, ValueError, KeyError, TypeError) as error:
                why = f"{type(error).__name__}: {first_line(error)}"
        failed = Verdict(0.0, False, f"{self._url} gave no rewards in {repeats + 1} tries ({why})", judge_failed=True)
        return [failed] * len(cases)

    def close(self) -> None:
        """Wait for the tries under way."""
        self._closed.set()
        self._threads.shutdown(wait=True, cancel_futures=True)
