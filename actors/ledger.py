"""The books of a `RolloutPool`: which samples wait, which are out with whom, which are done, and which starts are at fault.

Used by `actors/pool.py`; no Ray, no engine. Invariant: every (start, sample) that was entered is somewhere - waiting, out, or
done - and once done it stays done: a second result for it, from an engine believed dead, changes nothing.
"""

import heapq
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from actors.flat import Continuation, FlatBatch, Job, unpack
from core.errors import ConfigError
from core.records import Start, Trajectory
from core.sampling import Sampling

Key = tuple[str, int]
"""(start id, sample): what a result counts once for."""
URGENT = -1
"""The place in the queue of those that somebody waits for: before all others."""
UNBOUNDED = sys.maxsize
AHEAD = 0.25
"""Samples in an engine beyond those it decodes at once, as a share of these: the next ones are there when others finish."""
REFILL = 8
"""A turn with work waiting ends when one of so many samples has finished."""
TURN_SECONDS, CALL_SECONDS = 0.1, 0.5
"""Longest stretch of engine steps between two looks at the driver: new weights may have to wait for two of them. As long as nothing
is submitted, nobody comes during a call, and fewer looks cost less."""
LOOKS = 2000
"""Turns of all engines together that a driver bears per second."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """Jobs for one turn of an engine, all drawn alike."""

    jobs: list[Job]
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Queues:
    """Where the samples are, and how much the engines have worked."""

    waiting: int  # samples that no engine has
    running: int  # samples in engines
    busy: float  # seconds of turns over all engines since the pool began
    actors: int  # engines that serve


@dataclass(slots=True)
class Held:
    """What an engine has now."""

    tokens: int = 0  # at most: prompt and whole response of each sample
    keys: dict[Key, None] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        """Samples in flight."""
        return len(self.keys)


@dataclass(slots=True)
class Call:
    """The starts of one `Ledger.add`."""

    left: int  # that are not complete


@dataclass(frozen=True, slots=True)
class Guilty:
    """A start that has made engines raise."""

    start: Start
    before: list[str]  # the engines that raised while they had it, without the last


@dataclass(slots=True)
class _Entry:
    """A start in the books."""

    start: Start
    sampling: Sampling
    call: Call
    place: tuple[int, int, int]  # in the queue: call, longest first, order of entry
    done: dict[int, Continuation] = field(default_factory=dict)
    dropped: bool = False  # quarantined: it will have no samples

    @property
    def tokens(self) -> int:
        """Most tokens that one sample can occupy: prompt and the whole response."""
        return len(self.start.prompt_ids) + self.sampling.max_response_tokens


class Ledger:
    """Starts from the first dispatch to the last result.

    Calls are served in order, within a call longest first: by the tokens that a start may still generate, so that the long ones
    do not run alone at the end.
    """

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._queue: list[tuple[tuple[int, int, int], str, tuple[int, ...]]] = []  # heap: place, start, samples
        self._out: dict[Key, str] = {}
        self._held: defaultdict[str, Held] = defaultdict(Held)
        self._complete: dict[str, None] = {}  # in the order of completion
        self._suspects = defaultdict[str, list[str]](list)  # starts that were in engines that raised: in which
        self._calls = self._entered = 0
        self.open = 0  # samples that are not done

    @property
    def waiting(self) -> int:
        """Samples that no engine has."""
        return self.open - len(self._out)

    @property
    def running(self) -> int:
        """Samples that engines have."""
        return len(self._out)

    @property
    def complete(self) -> list[str]:
        """Starts that have all their samples (or were quarantined) and have not been collected."""
        return list(self._complete)

    def held(self, engine: str) -> Held:
        """What `engine` has now."""
        return self._held[engine]

    def add(self, starts: Sequence[Start], sampling: Sampling, urgent: bool = False) -> Call:
        """Enter a call: behind all earlier ones, or (`urgent`) before them.

        Raises ConfigError when two starts have the same id, and enters none then.
        """
        ids = {start.id for start in starts}
        if len(ids) != len(starts) or ids & self._entries.keys():
            raise ConfigError("two rollout starts have the same id; a result counts once per (start id, sample)")
        self._calls += 1
        call = Call(len(starts))
        for start in starts:
            budget = sampling.max_response_tokens - len(start.prefix_ids)
            self._entered += 1
            place = (URGENT if urgent else self._calls, -budget, self._entered)
            self._entries[start.id] = _Entry(start, sampling, call, place)
            self.open += start.samples
            heapq.heappush(self._queue, (place, start.id, tuple(range(start.samples))))
        return call

    def take(self, engine: str, samples: int, tokens: int = UNBOUNDED) -> Assignment | None:
        """Jobs for `engine`, as many as fit into `samples` more samples and `tokens` tokens in all; None if there are none.

        A start with more samples than fit is divided. An engine that has nothing gets one sample however long it is. A suspect
        goes to an engine that has nothing, and nothing joins it there: if that engine raises, it is known why. It goes to one
        engine at a time, so that it costs no second one.
        """
        held, jobs, kept = self._held[engine], list[Job](), []
        sampling: Sampling | None = None
        if self._suspects and any(start_id in self._suspects for start_id, _ in held.keys):
            return None
        while self._queue and samples > 0:
            place, start_id, numbers = heapq.heappop(self._queue)
            entry = self._entries.get(start_id)
            left = () if entry is None or entry.dropped else tuple(n for n in numbers if n not in entry.done)
            if entry is None or not left:
                continue  # done meanwhile: by an engine believed dead
            suspect = start_id in self._suspects
            if suspect and (held.keys or any(other == start_id for other, _ in self._out)):
                kept.append((place, start_id, left))
                continue
            fit = min(len(left), samples, max((tokens - held.tokens) // entry.tokens, 0 if held.keys else 1))
            if fit <= 0 or (sampling is not None and entry.sampling != sampling):
                kept.append((place, start_id, left))
                break
            sampling = entry.sampling
            jobs.append(Job(entry.start, left[:fit]))
            for number in left[:fit]:
                self._out[start_id, number] = engine
                held.keys[start_id, number] = None
            samples, held.tokens = samples - fit, held.tokens + fit * entry.tokens
            if left[fit:]:
                kept.append((place, start_id, left[fit:]))
            if suspect:
                break
        for item in kept:
            heapq.heappush(self._queue, item)
        return None if sampling is None else Assignment(jobs, sampling)

    def accept(self, batch: FlatBatch) -> int:
        """Enter finished continuations; returns how many were new. Those of starts that are not in the books are ignored."""
        before = self.open
        for one in unpack(batch):
            entry = self._entries.get(one.start_id)
            if entry is None or entry.dropped:
                continue
            self._recall(one.start_id, one.sample)
            if one.sample not in entry.done:
                entry.done[one.sample] = one
                self.open -= 1
                if len(entry.done) == entry.start.samples:
                    self._finish(entry)
        return before - self.open

    def give_back(self, engine: str, raised: bool = False) -> Guilty | None:
        """Put everything that is out with a lost `engine` into the queue again, where it was.

        `raised`: the engine raised in a step, so that a start that it had may be to blame. All of them become suspects, which
        travel alone; the one that makes an engine raise again is quarantined, and the others are cleared. A process that died
        proves nothing. Returns the quarantined start with the engines that it has cost before.
        """
        lost = defaultdict[str, list[int]](list)
        for start_id, number in list(self._held[engine].keys):
            lost[start_id].append(number)
            self._recall(start_id, number)
        if raised and len(lost) == 1 and lost.keys() <= self._suspects.keys():
            (guilty,) = lost
            before = self._suspects[guilty]
            self.drop(guilty)
            self._suspects.clear()
            return Guilty(self._entries[guilty].start, before)
        for start_id, numbers in lost.items():
            heapq.heappush(self._queue, (self._entries[start_id].place, start_id, tuple(sorted(numbers))))
            if raised:
                self._suspects[start_id].append(engine)
        return None

    def drop(self, start_id: str) -> None:
        """Quarantine a start, also where it is out with other engines: it is complete, without samples."""
        entry = self._entries[start_id]
        for number in range(entry.start.samples):
            self._recall(start_id, number)
        self.open -= entry.start.samples - len(entry.done)
        entry.dropped = True
        self._finish(entry)

    def collect(self, start_id: str) -> list[Trajectory]:
        """Take a complete start out of the books: its trajectories by sample; none if it was quarantined."""
        del self._complete[start_id]
        entry = self._entries.pop(start_id)
        self._suspects.pop(start_id, None)
        if entry.dropped:
            return []
        return [_trajectory(entry.start, entry.done[number]) for number in range(entry.start.samples)]

    def clear(self) -> None:
        """Forget everything; results that still come are ignored."""
        for collection in (self._entries, self._queue, self._out, self._held, self._complete, self._suspects):
            collection.clear()
        self.open = 0

    def _recall(self, start_id: str, number: int) -> None:
        """A sample is no longer out."""
        engine = self._out.pop((start_id, number), None)
        if engine is not None:
            held = self._held[engine]
            del held.keys[start_id, number]
            held.tokens -= self._entries[start_id].tokens

    def _finish(self, entry: _Entry) -> None:
        """A start is complete."""
        self._complete[entry.start.id] = None
        entry.call.left -= 1


def share(held: int, ledger: Ledger, engines: int, decoded: int) -> int:
    """Samples that an engine with `held` may hold: its share of what is open, within what it decodes at once.

    A bit more as long as there is that much for each of the `engines`: what waits in one does not go to another that is idle.
    """
    ahead = math.ceil(decoded * AHEAD)
    plenty = ledger.waiting - max(0, decoded - held) >= ahead * engines
    return min(math.ceil(ledger.open / engines), decoded + ahead if plenty else decoded)


def stretch(engines: int) -> float:
    """Seconds of a turn where new weights or work may come at any time."""
    return min(CALL_SECONDS, max(TURN_SECONDS, engines / LOOKS))


def refill_at(held: int, decoded: int) -> int:
    """Samples in flight at which the turn of an engine with `held` ends early, because others wait."""
    return min(decoded, held - math.ceil(held / REFILL))


def check_room(starts: Iterable[Start], sampling: Sampling, max_prompt_tokens: int, max_response_tokens: int) -> None:
    """Every start must fit the engine and leave room for at least one token. Raises ConfigError naming the start."""
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


def _trajectory(start: Start, one: Continuation) -> Trajectory:
    return Trajectory(start, one.sample, one.tokens, one.logprobs, one.versions, one.finish)
