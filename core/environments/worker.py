"""A process of environments: it reads requests from its input and writes one answer per line, as JSON.

`workers.py` starts it as `python -m core.environments.worker PATH OPTIONS GIB`. Its first line is `ready {"ends": ...}`
or `cannot start: ...`. Then `[episode, method, argument]` comes in, and `[episode, answer]` goes out. Each episode has
a thread, so a slow step delays no other. What an environment prints goes to the error stream.

Invariant: every request gets an answer, whatever the environment raises or returns, unless it hangs or the process
ends. A process that uses more than GIB of memory ends itself.
"""

import asyncio
import base64
import inspect
import json
import math
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any

import psutil

from core.environments.protocol import FULL, load_environment
from core.errors import ConfigError
from core.records import World

MOST_TEXT = 300  # most characters of a reason
GLANCE = 0.1  # seconds between two looks at the memory
Request = tuple[str, Any]
Say = Callable[[dict[str, Any]], None]


class Episode:
    """The thread of one environment."""

    def __init__(self, make: Callable[[], Any], say: Say) -> None:
        self.requests: SimpleQueue[Request] = SimpleQueue()
        self._make, self._say = make, say
        self._runner = asyncio.Runner()  # it makes its loop when an async method is called first
        self._environment: Any = None
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        method = ""
        while method != "close":
            method, argument = self.requests.get()
            try:
                answer = self._answer(method, argument)
            except BaseException as error:  # whatever the user's code raises
                answer = {"error": f"{method} raised {_said(error)}"}
            self._say(answer)
        self._environment = None
        self._runner.close()

    def _answer(self, method: str, argument: Any) -> dict[str, Any]:
        if method == "close":
            self._call("close")
            return {"messages": []}
        if method == "restore":
            self._environment = self._make()
            self._call("restore", base64.b64decode(argument))
            return {"messages": []}
        if method == "reset":
            self._environment = self._make()
            answer: dict[str, Any] = {"messages": _messages(self._call("reset", World(*argument)), "reset")}
        else:
            answer = _checked(self._call("step", argument))
        if not answer.get("done") and hasattr(self._environment, "snapshot"):
            answer["snapshot"] = base64.b64encode(self._call("snapshot")).decode("ascii")
        return answer

    def _call(self, method: str, *arguments: Any) -> Any:
        found = getattr(self._environment, method, None)
        if found is None and method == "close":
            return None
        result = found(*arguments)  # type: ignore[misc]
        return self._runner.run(_awaited(result)) if inspect.isawaitable(result) else result


async def _awaited(result: Any) -> Any:
    return await result


def _checked(result: Any) -> dict[str, Any]:
    """What `step` returned, as an answer. Raises TypeError, ValueError."""
    if not isinstance(result, tuple | list) or len(result) != 4:
        raise TypeError(f"step returned {type(result).__name__}; return (messages, reward, done, info)")
    messages, reward, done, info = result
    if not math.isfinite(float(reward)):
        raise ValueError(f"step returned the reward {reward}")
    answer = {"messages": _messages(messages, "step"), "reward": float(reward), "done": bool(done)}
    if (info or {}).get("correct") is not None:
        answer["correct"] = bool(info["correct"])
    return answer | {"detail": str((info or {}).get("detail", ""))[:MOST_TEXT]}


def _messages(found: Any, method: str) -> list[dict[str, str]]:
    try:
        return [{"role": str(one["role"]), "content": str(one["content"])} for one in found or []]
    except (TypeError, KeyError):
        raise TypeError(f"{method} returned {found!r:.60}; return messages with role and content") from None


def _said(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:MOST_TEXT]
    except Exception:
        return type(error).__name__


def _watch_memory(most: int) -> None:
    process = psutil.Process()
    while process.memory_info().rss < most:
        time.sleep(GLANCE)
    os._exit(FULL)


def main() -> None:
    """Command line of the worker: serve episodes until the input ends."""
    path, options, gib = sys.argv[1], json.loads(sys.argv[2]), float(sys.argv[3])
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # an environment that reads or prints must not reach the protocol
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver handles Ctrl-C
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    try:
        make = load_environment(path)
    except ConfigError as error:
        sink.write(f"cannot start: {' '.join(str(error).split())}\n".encode())
        return
    threading.Thread(target=_watch_memory, args=(int(gib * 2**30),), daemon=True).start()
    writing = threading.Lock()
    ready = {"ends": str(getattr(make, "ends", ""))}
    sink.write(f"ready {json.dumps(ready)}\n".encode())

    def _say(episode_id: int, answer: dict[str, Any]) -> None:
        with writing:
            sink.write(json.dumps([episode_id, answer]).encode() + b"\n")

    episodes: dict[int, Episode] = {}
    for line in source:
        episode_id, method, argument = json.loads(line)
        if episode_id not in episodes:
            episodes[episode_id] = Episode(partial(make, **options), partial(_say, episode_id))
        episodes[episode_id].requests.put((method, argument))
        if method == "close":
            del episodes[episode_id]
    os._exit(0)  # threads may hang


if __name__ == "__main__":
    main()
