"""Environments of the package verifiers (`pip install --no-deps -r requirements/verifiers.txt`): the task `verifiers`.

`task.path` names an environment, `task.parameters` are its arguments. Its data sets give the problems and its rubric
the rewards. It asks the policy through an OpenAI client, as an agent does. Invariant: a problem's reference holds its
whole row, so that environments that are made in several processes agree."""

import asyncio
import json
import signal
import threading
from concurrent.futures import Future
from functools import lru_cache
from typing import Any

from core.config import TaskConfig
from core.environments.protocol import Step
from core.environments.served import Served
from core.errors import ConfigError, first_line
from core.imports import imported
from core.records import World
from tasks.kinds import TaskKind, read_prompt
from tasks.problems import prompt_digest
from tasks.sources import Row

_MAKING, _MADE = threading.Lock(), dict[tuple[str, str], Any]()
_LOOP = asyncio.new_event_loop()  # all episodes of a process share its environments, and so one loop


def verifiers_rows(config: TaskConfig, _: int, held_out: bool) -> list[Row]:
    """The rows of an environment's data set. Prompts that only differ in what an episode begins from are told apart by
    a digest. Raises ConfigError."""
    name, arguments = (config.eval_path if held_out else "") or config.path, json.dumps(config.parameters)
    environment = _environment(name, arguments)
    if environment.message_type != "chat":
        raise ConfigError(
            f"task.path = {name!r}: its message_type is {environment.message_type!r}; only chat is played"
        )
    try:
        data = environment.get_eval_dataset(n=config.eval_problems) if held_out else environment.get_dataset()
    except ValueError as error:
        raise ConfigError(
            f"task.path = {name!r}: {first_line(error)}; name an environment with training data"
        ) from None
    rows: list[Row] = []
    for row in data:
        mark = prompt_digest(json.dumps([row["prompt"], row.get("answer"), row.get("info")], default=str))[:6]
        reference = json.dumps({"environment": name, "arguments": arguments, "row": row}, default=str)
        rows.append({"prompt": f"{row['prompt'][-1]['content']} [{mark}]", "answer": reference})
    return rows


class Verifiers(Served):
    """The episode of a row. A reward of 1 or more is a success."""

    def __init__(self) -> None:
        super().__init__(self._rollout)
        self._future: Future[float] | None = None

    def step(self, action: str) -> Step:
        """See `Served.step`."""
        messages, reward, done, info = super().step(action)
        return messages, reward, done, {"correct": reward >= 1} if done else info

    def close(self) -> None:
        """End the rollout, which cleans up, and then the episode."""
        if self._future is not None:
            self._future.cancel()
        super().close()

    def _rollout(self, problem: World, base_url: str, api_key: str) -> float:
        made = json.loads(problem.reference)
        environment = _environment(made["environment"], made["arguments"])
        self._future = asyncio.run_coroutine_threadsafe(_scored(environment, made["row"], base_url, api_key), _LOOP)
        return self._future.result()


async def _scored(environment: Any, row: Row, base_url: str, api_key: str) -> float:
    """The reward of a rollout. Raises its error, unless the policy is to blame for it."""
    from verifiers.errors import InvalidModelResponseError

    state = await environment.rollout(row, _client(base_url).with_options(api_key=api_key), "policy", {})
    error = state["error"]
    if error is not None and not isinstance(error, InvalidModelResponseError):
        raise error.__cause__ or error
    await environment.rubric.score_rollout(state)
    return float(state["reward"])


@lru_cache
def _client(base_url: str) -> Any:
    from openai import AsyncOpenAI

    return AsyncOpenAI(base_url=base_url, api_key="of an episode", timeout=None, max_retries=0)


def _environment(name: str, arguments: str) -> Any:
    """An environment by its name; each is made once. Raises ConfigError."""
    with _MAKING:
        if (name, arguments) not in _MADE:
            environment = _made(name, json.loads(arguments))
            if not _MADE:
                threading.Thread(target=_LOOP.run_forever, daemon=True).start()
            _MADE[name, arguments] = environment
        return _MADE[name, arguments]


def _made(name: str, arguments: dict[str, Any]) -> Any:
    try:
        import verifiers as _  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"task verifiers needs the package verifiers ({first_line(error)}); run `pip install --no-deps -r "
            "requirements/verifiers.txt`"
        ) from None
    load = imported("task.path", f"{name.rpartition('/')[2].replace('-', '_')}:load_environment")
    set_handler, signal.signal = signal.signal, lambda *_: None  # they take the process's signals, which are the run's
    try:
        return load(**arguments)
    except Exception as error:  # whatever the user's code raises
        raise ConfigError(f"task.path = {name!r}: load_environment raised {type(error).__name__}: {error}") from error
    finally:
        signal.signal = set_handler


TASK = TaskKind("", read=read_prompt, rows=verifiers_rows, environment="verifiers", episodes=True)
