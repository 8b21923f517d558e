"""Which samples wait, which are in which engine, which are done. Invariant: each is one of these, and done once."""

import heapq
import logging
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from actors.jobs import Continuation, Job
from core.errors import ConfigError
from core.records import Rollout, Sampling, Start

logger = logging.getLogger("retrospect.actors")
Key = tuple[str, int]  # (start id, sample): a result counts once per key
URGENT = -1  # place in the queue of calls whose caller waits for the result: before all others
AHEAD = 0.25
"""Extra samples that an engine gets, as a share of those it decodes at once. They begin when others finish."""
REFILL = 8  # while samples wait, an engine returns for more when 1 / REFILL of its samples have finished


@dataclass(frozen=True, slots=True)
class Queues:
    """Where the samples are, and how long the engines have generated."""

    waiting: int  # samples that no engine has
    running: int  # samples in engines
    busy: float  # seconds of generation over all engines since the pool began
    actors: int  # engines that serve


@dataclass(slots=True)
class _Entry:
    start: Start
    sampling: Sampling
    place: tuple[int, int, int]  # in the queue: call, longest first, order of entry
    done: dict[int, Rollout | None] = field(default_factory=dict)  # None: dropped by its environment
    dropped: bool = False  # no engine can generate it: it is complete without samples


class Ledger:
    """Starts until their last result. Earlier calls come first, in one those of the largest token budgets (slow)."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._queue: list[tuple[tuple[int, int, int], str, tuple[int, ...]]] = []  # heap: place, start, samples
        self._engine_of: dict[Key, str] = {}
        self._keys_of: defaultdict[str, dict[Key, None]] = defaultdict(dict)  # by engine, oldest first
        self._complete: dict[str, None] = {}  # in the order of completion
        self._suspects: set[str] = set()  # starts that were in an engine when it raised
        self._calls = self._entered = 0
        self.open = 0  # samples that are not done

    @property
    def waiting(self) -> int:
        """Samples that no engine has."""
        return self.open - self.running

    @property
    def running(self) -> int:
        """Samples that engines have."""
        return len(self._engine_of)

    @property
    def complete(self) -> list[str]:
        """Starts that are done (or dropped) and have not been collected."""
        return list(self._complete)

    def in_flight(self, engine: str) -> int:
        """Samples that `engine` has."""
        return len(self._keys_of[engine])

    def finished(self, starts: Sequence[Start]) -> bool:
        """Whether all of these are complete."""
        return all(start.id in self._complete for start in starts)

    def add(self, starts: Sequence[Start], sampling: Sampling, urgent: bool = False) -> None:
        """Queue a call's starts, last or (`urgent`) first. Raises ConfigError, adding none, when an id occurs twice."""
        ids = {start.id for start in starts}
        if len(ids) != len(starts) or ids & self._entries.keys():
            raise ConfigError("two rollout starts have the same id; a result counts once per (start id, sample)")
        self._calls += 1
        for start in starts:
            self._entered += 1
            budget = sampling.max_response_tokens - len(start.prefix_ids)
            place = (URGENT if urgent else self._calls, -budget, self._entered)
            self._entries[start.id] = _Entry(start, sampling, place)
            self.open += start.samples
            heapq.heappush(self._queue, (place, start.id, tuple(range(start.samples))))

    def take(self, engine: str, samples: int) -> list[Job]:
        """Jobs for `engine`, at most `samples` samples; a start may be split. A suspect (see `requeue`) goes alone to
        an engine without samples, one at a time: if that engine raises, the suspect is the cause."""
        mine, jobs, kept = self._keys_of[engine], list[Job](), []
        if self._suspects and any(start_id in self._suspects for start_id, _ in mine):
            return []
        while self._queue and samples > 0:
            place, start_id, indices = heapq.heappop(self._queue)
            entry = self._entries.get(start_id)
            left = () if entry is None or entry.dropped else tuple(n for n in indices if n not in entry.done)
            if entry is None or not left:
                continue  # done meanwhile, by an engine that counted as lost
            suspect = start_id in self._suspects
            if suspect and (mine or any(other == start_id for other, _ in self._engine_of)):
                kept.append((place, start_id, left))
                continue
            fit = min(len(left), samples)
            if left[fit:]:
                kept.append((place, start_id, left[fit:]))
            jobs.append(Job(entry.start, entry.sampling, left[:fit]))
            for index in left[:fit]:
                self._engine_of[start_id, index] = engine
                mine[start_id, index] = None
            samples -= fit
            if suspect:
                break
        for item in kept:
            heapq.heappush(self._queue, item)
        return jobs

    def accept(self, finished: Iterable[Continuation]) -> list[tuple[Start, Continuation]]:
        """Enter finished continuations. Those of unknown or dropped starts, and second results, are ignored. Returns
        those that their environments dropped."""
        dropped = []
        for continuation in finished:
            entry = self._entries.get(continuation.start_id)
            if entry is None or entry.dropped:
                continue
            self._release((continuation.start_id, continuation.sample))
            if continuation.sample not in entry.done:
                entry.done[continuation.sample] = (
                    None if continuation.dropped else _trajectory(entry.start, continuation)
                )
                dropped += [(entry.start, continuation)] if continuation.dropped else []
                self.open -= 1
                if len(entry.done) == entry.start.samples:
                    self._complete[continuation.start_id] = None
        return dropped

    def requeue(self, engine: str, raised: bool = False) -> Start | None:
        """Queue the samples of a lost `engine` again. If the engine `raised` while it generated, one of its starts may
        be the cause. All of them become suspects and are tried one at a time (see `take`). A suspect whose engine
        raises again is dropped and returned, and the others are cleared. The death of a process makes no suspects."""
        lost = defaultdict[str, list[int]](list)
        for key in list(self._keys_of[engine]):
            lost[key[0]].append(key[1])
            self._release(key)
        if raised and len(lost) == 1 and lost.keys() <= self._suspects:
            (cause,) = lost
            self.drop(cause)
            self._suspects.clear()
            return self._entries[cause].start
        for start_id, indices in lost.items():
            heapq.heappush(self._queue, (self._entries[start_id].place, start_id, tuple(sorted(indices))))
        if raised:
            self._suspects |= lost.keys()
        return None

    def drop(self, start_id: str) -> None:
        """Complete a start without samples, whether they wait or are in flight."""
        entry = self._entries[start_id]
        for index in range(entry.start.samples):
            self._release((start_id, index))
        self.open -= entry.start.samples - len(entry.done)
        entry.dropped = True
        self._complete[start_id] = None

    def collect(self, start_id: str) -> list[Rollout]:
        """Remove a complete start and return its trajectories by sample, without dropped ones; none if it was dropped
        itself."""
        del self._complete[start_id]
        self._suspects.discard(start_id)
        entry = self._entries.pop(start_id)
        rollouts = [] if entry.dropped else [entry.done[index] for index in range(entry.start.samples)]
        return [rollout for rollout in rollouts if rollout is not None]

    def clear(self) -> None:
        """Drop everything; later results are ignored."""
        for collection in (self._entries, self._queue, self._engine_of, self._keys_of, self._complete, self._suspects):
            collection.clear()
        self.open = 0

    def _release(self, key: Key) -> None:
        engine = self._engine_of.pop(key, None)
        if engine is not None:
            del self._keys_of[engine][key]


def tell_dropped(start: Start, continuation: Continuation, reported: set[bool]) -> None:
    """Say why an episode was dropped: once for episodes, and once for states that cannot be rebuilt. `reported`: which
    of the two were said."""
    if continuation.state_lost in reported:
        return
    reported.add(continuation.state_lost)
    what = f"state of {start.prefix_ids.size} tokens" if continuation.state_lost else "episode"
    message = f"{what} of problem {start.problem_id} is dropped: {continuation.dropped}; dropped_episodes counts them"
    logger.warning(message)
    print(message, flush=True)


def _trajectory(start: Start, continuation: Continuation) -> Rollout:
    tokens, versions = np.array(continuation.tokens, np.int32), np.array(continuation.versions, np.int32)
    logprobs = np.array(continuation.logprobs, np.float32)
    mask = None if continuation.mask is None or all(continuation.mask) else np.array(continuation.mask, np.bool_)
    return Rollout(
        start, continuation.sample, tokens, logprobs, versions, continuation.finish, mask, continuation.episode
    )


def sample_limit(in_flight: int, ledger: Ledger, engines: int, decoded: int) -> int:
    """Most samples that an engine with `in_flight` may have: its share of the open ones, at most the `decoded` at once,
    and AHEAD more while that many wait for each of the `engines`: samples cannot go from one to another."""
    ahead = math.ceil(decoded * AHEAD)
    plenty = ledger.waiting - max(0, decoded - in_flight) >= ahead * engines
    return min(math.ceil(ledger.open / engines), decoded + ahead if plenty else decoded)


def refill_at(in_flight: int, decoded: int) -> int:
    """Samples in flight at which an engine that has `in_flight` returns for more; used while others wait."""
    return min(decoded, in_flight - math.ceil(in_flight / REFILL))


def check_room(starts: Iterable[Start], sampling: Sampling, max_prompt_tokens: int, max_response_tokens: int) -> None:
    """Raises ConfigError when a start does not fit the engine, or leaves no room for a token."""
    if sampling.max_response_tokens > max_response_tokens:
        raise ConfigError(
            f"rollout.max_response_tokens = {max_response_tokens}: responses of {sampling.max_response_tokens} tokens "
            f"are asked for; raise it"
        )
    for start in starts:
        prompt, prefix = len(start.prompt_ids), len(start.prefix_ids)
        if not 0 < prompt <= max_prompt_tokens:
            raise ConfigError(
                f"rollout.max_prompt_tokens = {max_prompt_tokens}: the prompt of {start.problem_id} has {prompt} "
                f"tokens; raise it or leave the problem out"
            )
        if prefix >= sampling.max_response_tokens:
            raise ConfigError(
                f"rollout.max_response_tokens = {sampling.max_response_tokens}: the replayed prefix of {start.id} has "
                f"{prefix} tokens and leaves no room for a continuation; raise it or drop the state"
            )
