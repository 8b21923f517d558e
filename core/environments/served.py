"""An agent written against the OpenAI interface, as an environment (docs/environments.md). It runs in a thread, and
the policy answers its requests.

    agent        request 1          -> completion 1, request 2    -> completion 2, return reward
    environment  reset() -> messages   step(action 1) -> messages    step(action 2) -> done

Invariant: an episode is one conversation: a request begins with all messages so far, and sampled tokens stay."""

import asyncio
import inspect
import json
import os
import re
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import SimpleQueue
from typing import Any, cast

from core.environments.protocol import TOOLS, Messages, Step
from core.errors import ConfigError
from core.imports import imported
from core.records import World

FIELD = "rollout.environment"
HOST = "127.0.0.1"
Json = dict[str, Any]
OVER = "the episode is over"
OTHER = "a second conversation needs an episode of its own (another sample or row)"
FIXED = {"n": 1, "stream": False, "logprobs": False, "response_format": {"type": "text"}, "tool_choice": "auto"}
"""Fields of a request that say what form its answer has: their only values."""
_CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)


def load_agent(path: str) -> Callable[..., Any]:
    """The function of an agent by its import path. Raises ConfigError."""
    agent: Callable[..., Any] = imported(FIELD, path)
    try:
        inspect.signature(agent).bind(None, base_url="", api_key="")
    except (TypeError, ValueError) as error:
        call = f"{path.rpartition(':')[2]}(problem, base_url=..., api_key=...)"
        raise ConfigError(f"{FIELD} {path!r}: {error}; it is called as {call}") from None
    return agent


class Served:
    """The episode of an agent: a function, or its import path."""

    def __init__(self, agent: Callable[..., Any] | str) -> None:
        self._agent, self._key = load_agent(agent) if isinstance(agent, str) else agent, secrets.token_hex(16)
        self._thread: threading.Thread | None = None
        self._events: SimpleQueue[Messages | float | BaseException] = SimpleQueue()  # requests, or how the agent ended
        self._lock = threading.Lock()  # of what follows
        self._reply: SimpleQueue[Json | None] | None = None  # of the request that waits; None is put: it is refused
        self._said, self._tools, self._turns, self._over = Messages(), "", 0, False

    def reset(self, problem: World) -> Messages:
        """The messages of the agent's first request, and its tools."""
        endpoint = _endpoint()
        endpoint.episodes[self._key] = self
        self._thread = threading.Thread(target=self._play, args=(problem, endpoint.url), daemon=True)
        self._thread.start()
        messages, _, done, _ = self._next()
        if done:
            raise ValueError("the agent has ended without a request")
        return [*messages, {"role": TOOLS, "content": self._tools}] if self._tools else messages

    def step(self, action: str) -> Step:
        """Answer the request; then the messages that the next one adds, or what the agent has returned."""
        with self._lock:
            message = _message(action, self._turns, bool(self._tools))
            self._said, self._turns = [*self._said, _read(message)], self._turns + 1
            reply, self._reply = self._reply, None
        assert reply is not None
        reply.put(message)
        return self._next()

    def close(self) -> None:
        """Refuse what the agent asks from now on, and wait for its end."""
        with self._lock:
            self._over = True
            if self._reply is not None:
                self._reply.put(None)
        if self._thread is not None:
            self._thread.join()  # one that does not end is ended with its process, after a minute
            _endpoint().episodes.pop(self._key, None)

    def complete(self, body: Json) -> Json:
        """The completion of a request, when the policy has written it. Raises ValueError when it is refused."""
        for name, value in FIXED.items():
            if body.get(name, value) not in (value, None):
                why = f"{name} = {json.dumps(body[name])} is not served; leave it out"
                raise ValueError(f"{why}: a request has one answer, whole and unconstrained (more: rollout.samples)")
        with self._lock:
            if self._over:
                raise ValueError(OVER)
            if self._reply is not None:
                error = ValueError(f"the agent asks again before it is answered (or after a timeout); {OTHER}")
                self._events.put(error)
                raise error
            self._events.put(self._added(body))
            reply = self._reply = SimpleQueue()
        if (message := reply.get()) is None:
            raise ValueError(OVER)
        reason = "tool_calls" if "tool_calls" in message else "stop"
        return {
            "id": f"chatcmpl-{secrets.token_hex(12)}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": body.get("model", ""),
            "choices": [{"index": 0, "message": message, "finish_reason": reason, "logprobs": None}],
            "usage": dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), 0),
        }

    def _added(self, body: Json) -> Messages:
        """The messages of a request after the conversation so far, which become part of it. Raises ValueError."""
        try:
            messages = [_read(message) for message in body["messages"]]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            why = f"messages cannot be read ({type(error).__name__}: {error}); send texts with role and content"
            raise ValueError(why) from None
        tools = json.dumps(body["tools"]) if body.get("tools") else ""
        at = next((at for at, said in enumerate(self._said) if messages[at : at + 1] != [said]), None)
        if at is not None or not messages:
            raise ValueError(f"message {at or 0} is missing or not as before; send all so far, unchanged: {OTHER}")
        if self._turns and tools != self._tools:
            raise ValueError(f"tools are not those of the first request; send them unchanged: {OTHER}")
        new, self._said, self._tools = messages[len(self._said) :], messages, tools
        return new

    def _play(self, problem: World, url: str) -> None:
        try:
            result = self._agent(problem, base_url=url, api_key=self._key)
            result = asyncio.run(result) if inspect.iscoroutine(result) else result
            self._events.put(float(result or 0.0))
        except BaseException as error:  # whatever the user's code raises
            self._events.put(error)

    def _next(self) -> Step:
        event = self._events.get()
        if isinstance(event, BaseException):
            raise event
        return ([], event, True, {}) if isinstance(event, float) else (event, 0.0, False, {})


def _read(message: Json) -> dict[str, str]:
    """A message as text. Calls of tools are written as Hermes models write them."""
    role, content = str(message["role"]).replace("developer", "system"), message.get("content") or ""
    if not isinstance(content, str):
        content = "".join(part["text"] for part in content)
    for call in message.get("tool_calls") or []:
        function = call["function"]
        called = {"name": function["name"], "arguments": json.loads(function["arguments"])}
        content += f"\n<tool_call>\n{json.dumps(called)}\n</tool_call>"
    return {"role": role, "content": content.strip() if role == "assistant" else content}


def _message(action: str, turn: int, tools: bool) -> Json:
    """An action as the assistant's message. Calls of tools that cannot be read stay text."""
    try:
        called = [json.loads(text) for text in _CALL.findall(action)] if tools else []
        functions = [{"name": str(one["name"]), "arguments": json.dumps(one.get("arguments", {}))} for one in called]
    except (AttributeError, KeyError, TypeError, ValueError):
        functions = []
    if not functions:
        return {"role": "assistant", "content": action}
    calls = [{"id": f"call_{turn}_{at}", "type": "function", "function": one} for at, one in enumerate(functions)]
    return {"role": "assistant", "content": _CALL.sub("", action).strip() or None, "tool_calls": calls}


class _Endpoint(ThreadingHTTPServer):
    """The server of a process, with a thread for each connection. A request's key says of which episode it is."""

    daemon_threads, request_queue_size = True, 512

    def __init__(self) -> None:
        super().__init__((HOST, 0), _Handler)
        self.episodes: dict[str, Served] = {}
        self.url = f"http://{HOST}:{self.server_port}/v1"
        threading.Thread(target=self.serve_forever, daemon=True).start()
        for name in ("NO_PROXY", "no_proxy"):  # a client must not look for this host behind a proxy
            os.environ[name] = ",".join(filter(None, (os.environ.get(name), HOST)))


_STARTING, _STARTED = threading.Lock(), list[_Endpoint]()


def _endpoint() -> _Endpoint:
    with _STARTING:
        if not _STARTED:
            _STARTED.append(_Endpoint())
        return _STARTED[0]


class _Handler(BaseHTTPRequestHandler):
    protocol_version, disable_nagle_algorithm = "HTTP/1.1", True

    def do_POST(self) -> None:
        """Answer a request."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        key = self.headers.get("Authorization", "").removeprefix("Bearer ")
        try:
            if (episode := cast(_Endpoint, self.server).episodes.get(key)) is None:
                raise ValueError("no open episode has this key; use the api_key that the agent is called with")
            if self.path == "/v1/models":
                told: Json = {"object": "list", "data": [{"id": "policy", "object": "model", "owned_by": ""}]}
            elif self.path == "/v1/chat/completions":
                told = episode.complete(json.loads(body))
            else:
                raise ValueError(f"{self.path}: only /v1/chat/completions and /v1/models are served")
            status = 200
        except (AttributeError, ValueError) as error:  # a client tries other statuses again
            status, told = (
                400,
                {"error": {"message": str(error), "type": "invalid_request_error", "param": None, "code": None}},
            )
        data = json.dumps(told).encode()
        with suppress(OSError):  # the client may be gone
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    do_GET = do_POST

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""
