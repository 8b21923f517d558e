"""The books of one `RolloutPool.generate`: which samples wait, which are out with whom, which are done.

Used by `actors/pool.py`; no Ray, no engine. Invariant: every (start, sample) is somewhere - waiting, out, or
done - and once done it stays done: a second result for it, from an engine believed dead, changes nothing.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from actors.flat import Continuation, FlatBatch, Job, unpack
from core.errors import ConfigError
from core.records import Start, Trajectory
from core.sampling import Sampling

Key = tuple[str, int]
"""(start id, sample): what a result counts once for."""


class Ledger:
    """Starts of one call, from the first dispatch to the last result.

    Longest first: starts are handed out by the tokens they may still generate, descending, so that the long ones do not
    run alone at the end. Raises ConfigError when two starts have the same id.
    """

    def __init__(self, starts: Sequence[Start], max_response_tokens: int) -> None:
        self._starts = {start.id: start for start in starts}
        if len(self._starts) != len(starts):
            raise ConfigError("two rollout starts have the same id; a result counts once per (start id, sample)")
        budgets = {start.id: max_response_tokens - len(start.prefix_ids) for start in starts}
        longest = sorted(starts, key=lambda start: -budgets[start.id])
        self._waiting = deque(Job(start, tuple(range(start.samples))) for start in longest)
        self._out: dict[Key, str] = {}
        self._done: dict[Key, Continuation] = {}
        self.total = sum(start.samples for start in starts)

    @property
    def finished(self) -> bool:
        """Whether every sample of every start is done."""
        return len(self._done) == self.total

    @property
    def waiting(self) -> int:
        """Samples that no engine has."""
        return sum(len(job.samples) for job in self._waiting)

    def take(self, engine: str, room: int) -> list[Job]:
        """Jobs for `engine`: as many as fit into `room` samples; a start with more samples than `room` is divided."""
        jobs: list[Job] = []
        while self._waiting and room > 0:
            job = self._waiting.popleft()
            if len(job.samples) > room:
                self._waiting.appendleft(Job(job.start, job.samples[room:]))
                job = Job(job.start, job.samples[:room])
            room -= len(job.samples)
            self._out.update({(job.start.id, sample): engine for sample in job.samples})
            jobs.append(job)
        return jobs

    def accept(self, batch: FlatBatch) -> int:
        """Enter finished continuations; returns how many were new."""
        before = len(self._done)
        for one in unpack(batch):
            key = (one.start_id, one.sample)
            self._out.pop(key, None)
            self._done.setdefault(key, one)
        return len(self._done) - before

    def give_back(self, engine: str) -> int:
        """Put everything that is out with `engine` in front of the queue again; returns the number of samples."""
        lost: dict[str, list[int]] = {}
        for (start_id, sample), holder in self._out.items():
            if holder == engine:
                lost.setdefault(start_id, []).append(sample)
        jobs = [Job(self._starts[start_id], tuple(sorted(samples))) for start_id, samples in lost.items()]
        for job in jobs:
            for sample in job.samples:
                del self._out[job.start.id, sample]
        self._waiting.extendleft(reversed(jobs))
        return sum(len(job.samples) for job in jobs)

    def trajectories(self) -> list[Trajectory]:
        """All results, ordered by start (as given) and sample."""
        return [
            _trajectory(start, self._done[start.id, sample])
            for start in self._starts.values()
            for sample in range(start.samples)
        ]


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
