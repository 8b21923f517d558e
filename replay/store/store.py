"""The replay store as the trainer sees it: it routes writes to shards, reads all of them, saves and restores.

`ReplayStore` lives in the driver. Each `ShardServer` is a Ray actor, or with `local` a plain object. Invariants: the
number of shards changes nothing but placement. The calls of an iteration do not grow with its states. Every wait has
a deadline, and an error names the shard. A call to a dead shard is repeated until then, and applied once.
"""

import json
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from core.config import ReplayConfig
from core.errors import RetrospectError, StoreError, first_line
from core.records import ReplayedState, Rollout, Start
from replay.cutting import States
from replay.evidence import Evidence
from replay.rankings.base import SuccessModel
from replay.rankings.find import find_ranking
from replay.store import writes
from replay.store.keys import Keys, eviction_order, shard_of
from replay.store.records import Candidates, joined
from replay.store.server import ShardServer, ShardSize
from replay.store.shard import Shard
from replay.store.snapshot import FORMAT, MANIFEST, read_manifest
from replay.store.stats import StoreStats, combine, shard_stats
from replay.success import from_text, to_text

R = TypeVar("R")
DEADLINE = 120.0  # seconds that a shard may take to answer one call
MOST_BYTES = 4 << 30  # of the states and tokens over all shards; those of the lowest retention are evicted


class ReplayStore:
    """The states of all shards. Not thread-safe: one driver calls it."""

    _model: SuccessModel
    _evidence: Evidence

    def __init__(
        self, config: ReplayConfig, *, vocabulary: int, directory: Path, fingerprint: str, local: bool = False
    ) -> None:
        """Start empty shards on the connected Ray cluster. `vocabulary`: token ids are below it. `directory`: for the
        shards' journals; replaces files of an earlier store. `fingerprint`: of task and tokenizer, for `restore`.
        `local`: keep the shards in this process, without journals."""
        self._shards, self._capacity = config.shards, config.capacity
        self._vocabulary, self._fingerprint = vocabulary, fingerprint
        self.ranking = find_ranking(config)
        self._forget()
        self._sequence = [0] * config.shards  # number of each shard's last write
        self._sizes = [ShardSize(0, 0)] * config.shards
        self._local = local
        if local:
            self._actors: list[Any] = [ShardServer(i, config, vocabulary) for i in range(config.shards)]
        else:
            start = partial(_start, config, vocabulary, Path(os.path.abspath(directory)), secrets.token_hex(8))
            self._actors = [start(index) for index in range(config.shards)]
        # An empty write waits for the shards, finds a folder that cannot be written, and imports pandas (0.3 s) now.
        self._write({shard: writes.pack_outcomes([], self._model) for shard in range(config.shards)})

    @property
    def decayed_unsolved_share(self) -> float:
        """Share of fresh problems whose rollouts from the root all failed, decayed; 1 before there are any."""
        return self._evidence.decayed_unsolved_share

    def __len__(self) -> int:
        """States in the store."""
        return sum(size.states for size in self._sizes)

    def add(self, found: Sequence[States], version: int) -> None:
        """Store the states of rollouts, with the values of the critic of this weight version, then evict down to the
        bounds on count and bytes. A rollout without states counts for its problem."""
        parts = self._split(found, [states.problem_id for states in found])
        packed = {shard: writes.pack_states(part, version, self._vocabulary) for shard, part in parts.items()}
        self._write(packed)
        self._evidence.add(found)
        self._keep_bounds()

    def record(self, outcomes: Sequence[Rollout]) -> None:
        """Record the outcomes of continuations of replayed states, and fit the success model anew if the ranking reads
        it."""
        self._evidence.record(outcomes)
        model = self._model
        if self.ranking.model != "unused":
            model = self._evidence.model(of_success=self.ranking.model == "success")
        parts = self._split(outcomes, [rollout.start.problem_id for rollout in outcomes])
        if model != self._model:
            parts = {shard: parts.get(shard, []) for shard in range(self._shards)}
        self._model = model
        self._write({shard: writes.pack_outcomes(part, model) for shard, part in parts.items()})

    def candidates(self) -> Candidates:
        """The states that may be drawn, in no order."""
        return joined(self._all(Shard.candidates))

    def draw(self, states: Candidates, places: Sequence[int]) -> list[ReplayedState]:
        """The candidates at these places, in this order, as drawn: what the success model knows of them now is kept for
        their outcomes."""
        if self.ranking.model == "success":
            keys = states.keys[list(places)].tolist()
            self._evidence.remember(dict(zip(keys, self._of_each(Shard.known, states, places), strict=True)))
        return self._of_each(Shard.fetch, states, places)

    def count_draws(self, requested: int, drawn: int) -> None:
        """Count the states that were requested for an iteration, and those that were there."""
        self._requested += requested
        self._sampled += drawn

    def top(self, n: int, older_than: int) -> list[ReplayedState]:
        """The n candidates of highest priority with a value older than weight version `older_than`, for `revalue`."""
        states = self.candidates()
        old = np.flatnonzero(states.version < older_than)
        order = eviction_order(states.priority[old], states.version[old], states.keys[old])
        best = old[np.lexsort((states.keys[old], order))[::-1][:n]]
        return self._of_each(Shard.fetch, states, best.tolist())

    def revalue(self, valued: Sequence[Rollout], version: int) -> None:
        """Store the first value of rollouts that continue states, all finite, from a critic of this weight version."""
        parts = self._split(valued, [rollout.start.problem_id for rollout in valued])
        self._write({shard: writes.pack_values(part, version) for shard, part in parts.items()})

    def remove(self, starts: Sequence[Start]) -> None:
        """Remove the states of replayed starts: nothing can be generated from them. They count as evicted."""
        parts = self._split(starts, [start.problem_id for start in starts])
        self._write({shard: writes.pack_removed(part) for shard, part in parts.items()})

    def stats(self) -> StoreStats:
        """Counts over all shards."""
        return combine(self._all(shard_stats), self._requested, self._sampled)

    def save(self, folder: Path) -> None:
        """Write a snapshot of every shard, and what the driver knows, into a folder."""
        names = [f"shard-{index}.parquet" for index in range(self._shards)]
        folder = Path(os.path.abspath(folder))
        folder.mkdir(parents=True, exist_ok=True)
        dict(self._call(ShardServer.save, {shard: (folder / name,) for shard, name in enumerate(names)}))
        manifest = {
            "format": FORMAT,
            "snapshots": names,
            "fingerprint": self._fingerprint,
            "vocabulary": self._vocabulary,
            "requested": self._requested,
            "sampled": self._sampled,
            "model": to_text(self._model),
            "evidence": self._evidence.to_json(),
        }
        (folder / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")

    def restore(self, folder: Path) -> None:
        """Replace the content by a save of any number of shards. StoreError for another task or tokenizer."""
        manifest = read_manifest(folder)
        for field, mine in (("fingerprint", self._fingerprint), ("vocabulary", self._vocabulary)):
            if manifest[field] != mine:
                raise StoreError(
                    f"{folder}: written for {field} {manifest[field]!r}, but this run has {mine!r}; states are only"
                    " valid for the tokenizer and task that made them"
                )
        self._requested, self._sampled = manifest["requested"], manifest["sampled"]
        self._model, self._evidence = from_text(manifest["model"]), Evidence.from_json(manifest["evidence"])
        self._load([Path(os.path.abspath(folder)) / name for name in manifest["snapshots"]])

    def clear(self) -> None:
        """Make the store empty, as a new one is."""
        self._forget()
        self._load([])

    def close(self) -> None:
        """Stop the shards; a second call does nothing. Their journals stay, for `launch.py replay`."""
        actors, self._actors = self._actors, []
        if self._local:
            return
        for actor in actors:
            ray.kill(actor)
        end = time.monotonic() + DEADLINE
        while any(_taken(f"replay-shard-{i}") for i in range(len(actors))) and time.monotonic() < end:
            time.sleep(0.01)  # the names are free when this returns

    # -- inside

    def _forget(self) -> None:
        """Set what the driver knows to what a new store knows."""
        self._requested, self._sampled = 0, 0
        self._model, self._evidence = SuccessModel(), Evidence()

    def _split(self, items: Sequence[Any], problem_ids: list[str]) -> dict[int, list[Any]]:
        parts: dict[int, list[Any]] = {}
        owners = {name: shard_of(name, self._shards) for name in set(problem_ids)}
        for item, problem_id in zip(items, problem_ids, strict=True):
            parts.setdefault(owners[problem_id], []).append(item)
        return parts

    def _write(self, parts: Mapping[int, bytes]) -> None:
        calls = {shard: (write,) for shard, write in parts.items()}
        for shard, size in self._call(ShardServer.write, calls):
            self._sizes[shard] = size
            self._sequence[shard] += 1

    def _load(self, paths: list[Path]) -> None:
        calls = dict.fromkeys(range(self._shards), (paths, self._shards))
        self._sizes = list(dict(self._call(ShardServer.restore, calls)).values())

    def _keep_bounds(self) -> None:
        """Evict down to the bounds on count and bytes, and 1/64 further so that evictions stay rare."""
        for _ in range(8):  # bytes per state are an average, so a bound on bytes may take more than one pass
            states, nbytes = len(self), sum(size.nbytes for size in self._sizes)
            excess = states - self._capacity + self._capacity // 64 if states > self._capacity else 0
            if nbytes > MOST_BYTES:
                excess = max(excess, 1, int(states * (1.0 - 63 / 64 * MOST_BYTES / nbytes)))
            if excess == 0 or states == 0:
                return
            self._evict(min(excess, states))

    def _evict(self, excess: int) -> None:
        ranked: list[tuple[Keys, Keys]] = self._all(Shard.least, excess)
        shard = np.repeat(np.arange(self._shards), [len(keys) for _, keys in ranked])
        orders, keys = (np.concatenate(column) for column in zip(*ranked, strict=True))
        chosen = np.lexsort((keys, orders))[:excess]
        last = writes.pack_eviction(int(orders[chosen[-1]]), int(keys[chosen[-1]]))
        self._write(dict.fromkeys(np.unique(shard[chosen]).tolist(), last))

    def _of_each(
        self, method: Callable[[Shard, list[str], list[int]], list[R]], states: Candidates, places: Sequence[int]
    ) -> list[R]:
        """What a function of the shards, given problem ids and keys, says of each candidate at these places."""
        names, keys = states.problem_ids(places), states.keys[list(places)].tolist()
        parts = self._split(range(len(places)), names)
        calls = {shard: (method, [names[i] for i in part], [keys[i] for i in part]) for shard, part in parts.items()}
        found: dict[int, R] = {}
        for shard, answers in self._call(ShardServer.read, calls):
            found |= zip(parts[shard], answers, strict=True)
        return [found[number] for number in range(len(places))]

    def _all(self, method: Callable[..., R], *arguments: Any) -> list[R]:
        """Call a function of every shard concurrently. Answers by shard."""
        calls = dict.fromkeys(range(self._shards), (method, *arguments))
        return list(dict(self._call(ShardServer.read, calls)).values())

    def _call(self, method: Callable[..., R], calls: Mapping[int, tuple[Any, ...]]) -> Iterator[tuple[int, R]]:
        """Call a method of several shards concurrently. Yields (shard, answer); then raises the first error."""
        end = time.monotonic() + DEADLINE
        waits = {shard: self._begin(shard, end, method, *given) for shard, given in calls.items()}
        failed: list[StoreError] = []
        for shard, wait in waits.items():
            try:
                answer = wait()
            except StoreError as error:
                failed.append(error)
            else:
                yield shard, answer
        if failed:
            raise failed[0]

    def _begin(self, shard: int, end: float, method: Callable[..., R], *given: Any) -> Callable[[], R]:
        """Start a call. Returns a function that waits for the answer, until `end`."""
        actor, sequence = self._actors[shard], self._sequence[shard]
        if self._local:
            return partial(method, actor, sequence, *given)
        begin = partial(actor.call.remote, method, sequence, *given)
        return partial(self._answer, shard, method.__name__, begin, begin(), end)

    def _answer(self, shard: int, method: str, begin: Callable[[], Any], reference: Any, end: float) -> Any:
        """Wait for an answer. If the actor died, call the restarted one. Raises StoreError after `end`."""
        name = f"replay-shard-{shard}"
        while True:
            try:
                return ray.get(reference, timeout=max(end - time.monotonic(), 0.001))
            except GetTimeoutError as error:
                raise StoreError(
                    f"{name}: no answer to {method} within {DEADLINE:g} s; see its log on the dashboard"
                ) from error
            except RayTaskError as error:
                if isinstance(error.cause, RetrospectError):
                    raise type(error.cause)(str(error.cause)) from error
                raise
            except RayActorError as error:
                if time.monotonic() > end:
                    raise StoreError(
                        f"{name}: died during {method} and did not restart: {first_line(error)}"
                    ) from error
                time.sleep(0.1)
                reference = begin()


class ShardActor:
    """A shard in its own Ray actor. It opens its files at the first call: Ray hides what a constructor raises."""

    def __init__(self, *arguments: Any) -> None:
        self._arguments = arguments
        self._server: ShardServer | None = None

    def call(self, method: Callable[..., R], *arguments: Any) -> R:
        """Call a method of `ShardServer`."""
        if self._server is None:
            self._server = ShardServer(*self._arguments)
        return method(self._server, *arguments)


def _start(config: ReplayConfig, vocabulary: int, directory: Path, store_id: str, index: int) -> Any:
    name = f"replay-shard-{index}"
    if _taken(name):
        raise StoreError(
            f"an actor {name} is already running in this Ray namespace; wait for the other run to end or use another"
        )
    environment = {"env_vars": {"CUDA_VISIBLE_DEVICES": ""}}
    options = {"name": name, "num_cpus": 0, "max_restarts": -1, "runtime_env": environment}
    return ray.remote(ShardActor).options(**options).remote(index, config, vocabulary, directory, store_id)


def _taken(name: str) -> bool:
    try:
        ray.get_actor(name)
    except ValueError:
        return False
    return True
