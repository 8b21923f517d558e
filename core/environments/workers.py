"""The processes of one engine's environments, seen from the engine: requests go out, answers come in, in any order.

Invariants: nothing waits without a deadline. Every request of an open episode gets one answer. An episode is lost when
its environment raises, hangs or ends its process; the others of that process are repeated in a new one, and if an
environment then answers differently, it is lost, too. Of several that wait when a process ends nobody knows which one
has ended it: they are lost.
"""

import json
import select
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from core.child import PythonProcess
from core.config import RolloutConfig
from core.environments.protocol import FULL, Answer
from core.errors import ActorError, ConfigError
from core.records import World

START_SECONDS = 120.0  # in which a process must import the environment
MEMORY_GIB = 4.0  # of one process; one that uses more is replaced
STEP_SECONDS = 60.0  # longest time of one step of an environment
EPISODE_SECONDS = 1800.0  # longest time of a whole episode, with its generation
SEND_SECONDS = 10.0  # in which it must read a request: its first thread does nothing else


@dataclass(slots=True)
class _Open:
    """An episode that has not ended."""

    worker: int
    begun: float
    requests: list[tuple[str, Any]] = field(default_factory=list)  # all that were made
    answers: list[str] = field(default_factory=list)  # all that were passed on
    answered: int = 0  # of the requests, in the current process
    deadline: float = 0.0  # of the first request that is not answered

    @property
    def waits(self) -> bool:
        """Whether a request is not answered."""
        return self.answered < len(self.requests)

    @property
    def closing(self) -> bool:
        """Whether only its end is awaited."""
        return self.requests[-1][0] == "close"


class _Process(PythonProcess):
    def __init__(self, config: RolloutConfig) -> None:
        options = json.dumps(config.environment_options)
        super().__init__("core.environments.worker", [config.environment, options, str(MEMORY_GIB)])
        self.serves, self.started = False, time.monotonic()

    def begin(self, seconds: float = START_SECONDS) -> Any:
        """What it tells when it is ready. Raises ConfigError when it cannot start."""
        told, self.serves = self.ready("an environment", seconds), True
        return told


class Workers:
    """The environments of one engine, in `rollout.environment_workers` processes."""

    def __init__(self, config: RolloutConfig) -> None:
        """Start the processes and wait until they are ready. Raises ConfigError when the environment cannot be
        imported."""
        self._config = config
        self._processes: list[_Process] = []
        self._open: dict[int, _Open] = {}
        self._next = self.replaced = 0  # number of the next episode; processes that were lost
        self._found: list[tuple[int, Answer]] = []
        self.ends = ""
        try:
            self._processes += [_Process(config) for _ in range(config.environment_workers)]
            (self.ends,) = {process.begin()["ends"] for process in self._processes}
        except ConfigError:
            self.close()
            raise

    def __len__(self) -> int:
        return sum(not episode.closing for episode in self._open.values())

    def open(self, world: World, snapshot: str = "") -> int:
        """Begin an episode, from a snapshot if one is given. Returns its id; the answer tells of `reset`."""
        counts = Counter(episode.worker for episode in self._open.values())
        episode_id, self._next = self._next, self._next + 1
        self._open[episode_id] = _Open(min(range(len(self._processes)), key=counts.__getitem__), time.monotonic())
        begin = ("restore", snapshot) if snapshot else ("reset", [world.id, world.prompt, world.reference])
        self._ask(episode_id, begin)
        return episode_id

    def step(self, episode_id: int, action: str) -> None:
        """Send an action to an open episode."""
        self._ask(episode_id, ("step", action))

    def end(self, episode_id: int) -> None:
        """Close an episode; it gives no more answers."""
        if episode_id in self._open and not self._open[episode_id].closing:
            self._ask(episode_id, ("close", None))

    def poll(self, seconds: float) -> list[tuple[int, Answer]]:
        """Answers (episode, answer) that have come; waits up to `seconds` for the first. An episode whose answer is an
        error is over. Raises ActorError when a lost process cannot be replaced."""
        end = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            until = min([end, *(episode.deadline for episode in self._open.values() if episode.waits)])
            for index in self._readable(max(0.0, until - now)):
                self._read(index)
            self._give_up_late()
            if self._found or time.monotonic() >= end or not self._open:
                found, self._found = self._found, []
                return found

    def close(self) -> None:
        """End all processes."""
        self._open.clear()
        for process in self._processes:
            process.kill()
        self._processes = []

    def _readable(self, seconds: float) -> list[int]:
        poller = select.poll()
        index_of = {process.output: index for index, process in enumerate(self._processes)}
        for descriptor in index_of:
            poller.register(descriptor, select.POLLIN)
        return sorted(index_of[descriptor] for descriptor, _ in poller.poll(1000 * seconds))

    def _read(self, index: int) -> None:
        """Take all complete lines of a process."""
        process = self._processes[index]
        mine = {episode_id: episode for episode_id, episode in self._open.items() if episode.worker == index}
        try:
            if not process.serves:
                process.begin(SEND_SECONDS)
                for episode_id, episode in mine.items():
                    episode.deadline = self._deadline(episode)
                    for request in episode.requests:
                        self._send(episode_id, request)
            while True:
                self._accept(*json.loads(process.line(0.0)))
        except ConfigError as error:
            raise ActorError(f"a process of environments was lost and cannot be replaced: {error}") from None
        except TimeoutError:
            return
        except EOFError:
            left = [episode_id for episode_id in mine if episode_id in self._open]
            unanswered = [
                episode_id for episode_id in left if len(mine[episode_id].answers) < len(mine[episode_id].requests)
            ]
            self._replace(index, unanswered or left, _why(process.ending()))

    def _accept(self, episode_id: int, reply: dict[str, Any]) -> None:
        episode = self._open.get(episode_id)
        if episode is None:
            return
        said = json.dumps([reply.get(name) for name in ("messages", "reward", "done")])
        method, episode.answered = episode.requests[episode.answered][0], episode.answered + 1
        episode.deadline = self._deadline(episode)
        answer = Answer(**reply) if "error" not in reply else Answer([], error=reply["error"])
        if method == "close":
            del self._open[episode_id]
        elif episode.closing:
            pass  # it is over already
        elif answer.error:
            self._give_up(episode_id, answer.error)
        elif episode.answered > len(episode.answers):
            episode.answers.append(said)
            self._found.append((episode_id, answer))
        elif episode.answers[episode.answered - 1] != said:
            self._give_up(episode_id, "its environment was repeated in another process and answered differently")

    def _give_up(self, episode_id: int, reason: str) -> None:
        """Report an episode as lost, and close it: its process goes on."""
        self._found.append((episode_id, Answer([], error=reason)))
        self._ask(episode_id, ("close", None))

    def _give_up_late(self) -> None:
        """Replace the processes whose environments are over their time."""
        now = time.monotonic()
        late: dict[int, list[int]] = {}  # by process
        for episode_id, episode in self._open.items():
            if episode.waits and episode.deadline <= now:
                late.setdefault(episode.worker, []).append(episode_id)
        for index, mine in sorted(late.items()):
            first = self._open[mine[0]]
            method = first.requests[first.answered][0]
            limits = f"{STEP_SECONDS:g} s, or its episode longer than {EPISODE_SECONDS:g} s"
            self._replace(index, mine, f"{method} took longer than {limits}")

    def _replace(self, index: int, lost: Sequence[int], reason: str) -> None:
        """Start a process for one that has ended, and repeat in it the episodes that are not lost with it."""
        self._processes[index].kill()
        self._processes[index] = _Process(self._config)
        self.replaced += 1
        for episode_id, episode in list(self._open.items()):
            if episode.worker != index:
                continue
            if episode_id not in lost and not episode.closing:
                episode.answered = 0  # its requests are sent once the process serves
                episode.deadline = self._deadline(episode)
                continue
            if not episode.closing:
                # it is over, whatever it has said
                self._found = [answer for answer in self._found if answer[0] != episode_id]
                self._found.append((episode_id, Answer([], error=reason)))
            del self._open[episode_id]

    def _ask(self, episode_id: int, request: tuple[str, Any]) -> None:
        episode = self._open[episode_id]
        episode.requests.append(request)
        if episode.answered == len(episode.requests) - 1:
            episode.deadline = self._deadline(episode)
        if self._processes[episode.worker].serves:
            self._send(episode_id, request)

    def _deadline(self, episode: _Open) -> float:
        process = self._processes[episode.worker]
        if not process.serves:
            return process.started + START_SECONDS
        limit = time.monotonic() + STEP_SECONDS
        return limit if episode.closing else min(limit, episode.begun + EPISODE_SECONDS)

    def _send(self, episode_id: int, request: tuple[str, Any]) -> None:
        process = self._processes[self._open[episode_id].worker]
        try:
            process.send(json.dumps([episode_id, *request]).encode() + b"\n", time.monotonic() + SEND_SECONDS)
        except TimeoutError:
            process.stop()  # `poll` finds its end
        except EOFError:
            pass  # so it does here


def _why(ending: str) -> str:
    if ending == f"exit status {FULL}":
        return f"its process used more than {MEMORY_GIB:g} GiB"
    return f"its process ended ({ending or 'it used up its processor time'})"
