"""A reward over HTTP, from a real server in the shape of OpenRLHF's."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from core.config import TaskConfig
from core.parts.judge import Case
from core.records import Verdict
from tasks.judging import start_judge

Answer = Callable[[dict[str, Any], int], tuple[int, Any]]


@contextmanager
def served(answer: Answer) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server on loopback that answers (request, its number) with (status, content); its URL and the requests so
    far."""
    asked: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            status, content = answer(asked[-1], len(asked))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(content).encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/get_reward", asked
    finally:
        server.shutdown()
        server.server_close()


def judged(url: str, cases: list[Case], **settings: Any) -> list[Verdict]:
    config = TaskConfig.model_validate({"name": "gsm8k", "reward": url} | settings)
    with closing(start_judge(config)) as judges:
        return judges.judge(cases)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.rewards.remote.PAUSE", 0.01)


def endings(request: dict[str, Any], _: int) -> tuple[int, Any]:
    pairs = zip(request["query"], request["labels"], strict=True)
    return 200, {"rewards": [float(query.endswith(label)) for query, label in pairs]}


def cases(count: int) -> list[Case]:
    return [
        Case(f"{n}", f"#### {n % 3}", f"r: row {n}", prompt="Q\nA:", query=f"Q\nA:#### {n % 3}") for n in range(count)
    ]


def test_a_server_gets_queries_prompts_and_labels() -> None:
    with served(endings) as (url, asked):
        found = judged(url, cases(4))
    assert [verdict.reward for verdict in found] == [1.0, 1.0, 1.0, 0.0]  # 0, 1, 2, and 0 for 3
    assert [verdict.correct for verdict in found] == [True, True, True, False]
    (request,) = asked
    assert request["query"] == ["Q\nA:#### 0", "Q\nA:#### 1", "Q\nA:#### 2", "Q\nA:#### 0"]
    assert (request["prompts"], request["labels"]) == (["Q\nA:"] * 4, ["0", "1", "2", "3"])


def test_many_responses_are_several_requests_in_order() -> None:
    with served(lambda request, _: (200, {"rewards": [float(label) for label in request["labels"]]})) as (url, asked):
        found = judged(url, cases(150), judge_workers=2)
    assert [verdict.reward for verdict in found] == [float(n) for n in range(150)]
    assert sorted(len(request["query"]) for request in asked) == [22, 64, 64]


def test_a_failed_request_is_repeated() -> None:
    def hesitant(request: dict[str, Any], number: int) -> tuple[int, Any]:
        return [(503, {}), (200, "not it"), (200, {"rewards": [1.0]}), endings(request, number)][number - 1]

    with served(hesitant) as (url, asked):
        found = judged(url, cases(2))
    assert [verdict.reward for verdict in found] == [1.0, 1.0]
    assert [request == asked[0] for request in asked] == [True] * 4


def test_no_answer_is_a_failed_verdict_that_names_server_and_row() -> None:
    with served(lambda *_: (404, {})) as (url, asked):
        found = judged(url, cases(2))
    assert len(asked) == 1  # the same request will not do better
    assert [verdict.judge_failed for verdict in found] == [True, True]
    assert found[1].detail == f"{url} gave no rewards in 1 tries (HTTP 404 Not Found), on r: row 1"
    with served(lambda *_: (200, {"rewards": [float("nan")]})) as (url, asked):
        (verdict,) = judged(url, cases(1))
    assert (len(asked), verdict.judge_failed) == (5, True)
    (gone,) = judged(url, cases(1))  # the server has ended
    assert "Connection refused" in gone.detail
    assert "in 5 tries" in gone.detail
