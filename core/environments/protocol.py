"""What an environment is (docs/environments.md): one instance is one episode, whose turns alternate with the policy's.
Invariant: it is deterministic, so that repeating its actions rebuilds its state."""

import hashlib
import json
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, Protocol

from core.errors import ConfigError
from core.records import World
from core.sections.registry import find

FIELD = "rollout.environment"
Messages = list[dict[str, str]]  # of objects with role and content
TOOLS = "tools"  # role of a message of `reset` that is for the chat template: definitions of functions, a list in JSON
FULL = 77  # exit status of a process of environments that has used too much memory
Step = tuple[Messages, float, bool, dict[str, Any]]  # messages, reward, done, info


class Environment(Protocol):
    """One episode. All methods may be async. An environment may also have `close()`, `snapshot() -> bytes` with
    `restore(bytes)`, and `ends`: characters that end an action, besides the end of sequence."""

    def reset(self, problem: World) -> Messages | Awaitable[Messages]:
        """Begin the episode. Returns the prompt that the policy reads; none: that of the problem."""

    def step(self, action: str) -> Step | Awaitable[Step]:
        """Answer an action: (messages, reward, done, info)."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What an environment answers to `reset` or an action; with `error` the episode is over and lost."""

    messages: Messages
    reward: float = 0.0
    done: bool = False
    correct: bool | None = None  # info["correct"]
    detail: str = ""  # info["detail"]
    snapshot: str = ""  # of the world after it, in base64
    error: str = ""


def load_environment(path: str) -> Any:
    """The class of an environment, by its name or import path. Raises ConfigError."""
    found = find(FIELD, path)
    if not all(callable(getattr(found, name, None)) for name in ("reset", "step")):
        raise ConfigError(
            f"{FIELD} {path!r}: it has no methods reset and step, and is no function; see docs/environments.md"
        )
    return found


def digest(messages: Messages) -> str:
    """Of messages, to compare them: 16 hex digits."""
    said = [[message["role"], message["content"]] for message in messages]
    return hashlib.blake2b(json.dumps(said).encode(), digest_size=8).hexdigest()
