"""Agents written against the OpenAI interface, as environments: with the client of that interface."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from openai import BadRequestError, OpenAI

from core.config import Config
from core.environments.served import Served, _endpoint
from core.environments.workers import Workers
from core.errors import ConfigError
from core.load import override
from core.records import World
from tasks.kinds import rollout_settings
from tests.agents import ADD
from tests.core.environments.test_workers import answers
from trainer.build import check_methods

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'
TOOLS = {"role": "tools", "content": json.dumps([ADD])}


@contextmanager
def served(agent: str, reference: Any = "") -> Iterator[Served]:
    """An episode whose agent has made its first request."""
    episode = Served(f"tests.agents:{agent}")
    with closing(episode):
        text = reference if isinstance(reference, str) else json.dumps(reference)
        assert episode.reset(World("p", "2+3?", text))[0]["content"] in ("2+3?", "a")
        yield episode


def test_a_conversation_with_calls_of_a_tool() -> None:
    """What the engine writes between the calls stays in the conversation, and a call that is no JSON is text."""
    episode = Served("tests.agents:adder")
    with closing(episode):
        assert episode.reset(World("p", "2+3?", "5")) == [{"role": "user", "content": "2+3?"}, TOOLS]
        five, nine = {"role": "tool", "content": "5"}, {"role": "tool", "content": "9"}
        assert episode.step(CALL) == ([five], 0.0, False, {})
        both = f"First.\n{CALL}\n{CALL.replace('3', '7')}"
        assert episode.step(both) == ([five, nine], 0.0, False, {})
        assert episode.step("5") == ([], 1.0, True, {})
    with served("adder", "5") as episode:
        assert episode.step(CALL.replace("}}", "}")) == ([], 0.0, True, {})


def test_a_request_without_tools_has_no_calls_and_none_is_no_reward() -> None:
    with served("twice") as episode:
        assert episode.step(f" {CALL}\n") == ([{"role": "user", "content": f" {CALL}\n?"}], 0.0, False, {})
        assert episode.step("good") == ([], 0.0, True, {})


@pytest.mark.parametrize(
    ("request_", "wrong"),
    [
        ({"n": 2}, r"n = 2 is not served; leave it out: .* \(more: rollout\.samples\)"),
        ({"stream": True}, "stream = true is not served"),
        ({"response_format": {"type": "json_object"}}, "response_format = .* is not served"),
        ({"messages": []}, "message 0 is missing"),
        ({"messages": [{"role": "user", "content": "a"}]}, "message 1 is missing or not as before; send all so far"),
        ({"messages": [{"role": "user", "content": "b"}]}, "message 0 is missing or not as before.*another sample or"),
        ({"messages": [{"role": "user"}, {"content": "b"}]}, r"cannot be read \(KeyError: 'role'\)"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "send texts with role and content"),
        (
            {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "x"}], "tools": [ADD]},
            "tools are not",
        ),
    ],
)
def test_a_request_that_is_refused_names_the_remedy(request_: Any, wrong: str) -> None:
    with served("scripted", [{}, request_]) as episode, pytest.raises(BadRequestError, match=wrong):
        episode.step("x")


def test_requests_of_the_form_that_is_served_pass() -> None:
    """With sampling parameters, which change nothing, and a prompt whose white space stays."""
    said = [{"role": "user", "content": " a\n"}, {"role": "assistant", "content": "x"}]
    plain = {"n": 1, "stream": False, "temperature": 0.0, "max_tokens": 1, "tool_choice": "auto"}
    episode = Served("tests.agents:scripted")
    with closing(episode):
        requests = [
            {"messages": said[:1], **plain},
            {"messages": [*said, said[0]], "response_format": {"type": "text"}},
        ]
        assert episode.reset(World("p", "", json.dumps(requests))) == said[:1]
        assert episode.step("x") == (said[:1], 0.0, False, {})
        assert episode.step("y") == ([], 1.0, True, {})


def test_the_endpoint_lists_one_model_and_answers_the_keys_of_open_episodes() -> None:
    with served("adder") as episode:
        client = OpenAI(base_url=_endpoint().url, api_key=episode._key)
        assert [model.id for model in client.models.list()] == ["policy"]
        with pytest.raises(BadRequestError, match=r"/v1/embeddings.*/v1/chat/completions"):
            client.embeddings.create(model="any", input="a")
        with pytest.raises(BadRequestError, match="key"):
            client.with_options(api_key="other").models.list()
    with pytest.raises(BadRequestError, match="key"):
        client.models.list()


def test_an_agent_ends_with_its_episode() -> None:
    before = threading.active_count()
    with served("adder") as episode:
        assert threading.active_count() > before
        agent = episode._thread
    assert agent is not None
    assert not agent.is_alive()
    assert isinstance(episode._events.get(), BadRequestError)  # "the episode is over"


def test_two_requests_at_once_end_the_episode() -> None:
    with served("bad", "both") as episode:
        episode.step("x")
        end = time.monotonic() + 60
        while episode._events.empty():
            assert time.monotonic() < end
            time.sleep(0.01)
        with pytest.raises(ValueError, match="episode"):
            episode.step("y")


@contextmanager
def workers(agent: str, **fields: Any) -> Iterator[Workers]:
    config = override(
        Config(), ["--rollout.environment", f"tests.agents:{agent}", "--rollout.environment_workers", "1"]
    )
    with closing(Workers(rollout_settings(config.rollout, config.task))) as found:
        yield found


def test_agents_run_at_the_same_time() -> None:
    with workers("adder") as found:
        numbers = [found.open(World(f"p{index}", f"{index}", "7")) for index in range(24)]
        first = answers(found, 24)
        assert [first[number].messages[0]["content"] for number in numbers] == [str(index) for index in range(24)]
        for number in numbers:
            found.step(number, CALL.replace("3", str(number)))
        second = answers(found, 24)
        assert [second[number].messages[0]["content"] for number in numbers] == [str(2 + number) for number in numbers]
        for number in numbers:
            found.step(number, str(number))
        assert [number for number, last in answers(found, 24).items() if last.reward] == [7]
        for number in numbers:
            found.end(number)
        end = time.monotonic() + 60
        while found._open:
            assert time.monotonic() < end
            found.poll(0.1)


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("silent", "reset raised ValueError: the agent has ended without a request"),
        ("raise", "step raised KeyError: 'no such tool'"),
        ("hang", "step took longer than 8 s"),
        ("text", "step raised ValueError: could not convert string to float: 'good'"),
    ],
)
def test_what_an_agent_does_wrong_costs_its_episode_alone(
    what: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("core.environments.workers.STEP_SECONDS", 8.0 if what == "hang" else 60.0)
    with workers("bad") as found:
        odd, good = found.open(World("p", "", what)), found.open(World("q", "", ""))
        heard = answers(found, 2)
        if what != "silent":
            found.step(odd, "x")
            heard = answers(found, 1)
        assert reason in heard[odd].error
        found.step(good, "x")
        assert answers(found, 1)[good].reward == 1.0
        assert found.replaced == (what == "hang")


def test_what_is_wrong_with_an_agent_is_named_before_a_run() -> None:
    for path, wrong in (
        ("tests.agents:nothing", r"rollout\.environment 'tests\.agents:nothing': AttributeError"),
        ("nowhere:agent", r"rollout\.environment 'nowhere:agent': ModuleNotFoundError"),
        ("tests.agents:wrong", r"it is called as wrong\(problem, base_url=\.\.\., api_key=\.\.\.\)"),
        ("tests.agents:ADD", "reset and step"),
    ):
        with pytest.raises(ConfigError, match=wrong):
            check_methods(override(Config(), ["--rollout.environment", path]))
