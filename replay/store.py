"""The replay store as the trainer sees it: routes writes to shards, samples over all of them, saves and restores.

`ReplayStore` lives in the driver; each `replay.server.ReplayShard` runs as a Ray actor. Invariants: the number of shards
changes nothing but placement; every wait has a deadline and an error names the shard; a call that found its shard dead
is repeated until the deadline, and counts once.
"""

import itertools
import os
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeVar

import numpy as np
import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from core.config import ReplayConfig
from core.errors import StoreError, first_line
from core.records import Candidate, FloatArray, Outcome, ReplayedState
from core.seeds import derive, generator
from replay.batch import pack, pack_outcomes
from replay.draw import Draw
from replay.keys import GROUPS, group_of, shard_of_group
from replay.opening import Identity
from replay.ops import Evict, Operation, Trust
from replay.posterior import SHORTLIST, belief, critic_gate, thompson
from replay.ranking import RANKINGS, Ranking
from replay.records import Selected, joined
from replay.server import Extent, ReplayShard, claim
from replay.shard import Revaluation
from replay.stats import StoreStats, combine
from replay.storage import Folder, read_manifest, shown, write_manifest
from replay.wire import opened, sealed

MANIFEST = "store.json"
"""Names the files of a saved store."""
WINDOW = 2048
"""Newest outcomes that the critic's calibration is measured on."""
HANDED = 8 * WINDOW
"""Draws whose values are remembered until their outcomes come: more than are ever under way."""
R = TypeVar("R")


class ReplayStore:
    """States over all shards. Not thread-safe: one driver calls it."""

    def __init__(
        self,
        config: ReplayConfig,
        *,
        vocabulary: int,
        directory: str,
        fingerprint: str,
        salvage: bool = False,
        local: bool = False,
    ) -> None:
        """Start the shards on the connected Ray cluster.

        `vocabulary`: token ids are in [0, vocabulary). `directory`: where the store lives, a path or a `pyarrow.fs` URI;
        what is there already is served again. `fingerprint`: of task and tokenizer; files of another one are refused.
        `salvage`: go on from a damaged log with what can be read; `dropped` says what was lost. `local`: keep the shards
        in this process instead of Ray actors (tools, tests, benchmarks).
        """
        if not 1 <= config.shards <= GROUPS:
            raise StoreError(f"replay.shards is {config.shards}; at most {GROUPS} are possible")
        self._shards, self._capacity, self._deadline = config.shards, config.capacity, config.deadline
        self._vocabulary, self._fingerprint = vocabulary, fingerprint
        claimed = claim(Folder(directory).make(), config.shards, vocabulary, fingerprint, salvage=salvage)
        self.dropped: list[str] = claimed  # what salvage could not read, one line each
        self._owner = shard_of_group(config.shards)
        self._ranking: Ranking = RANKINGS[config.ranking]
        self._top, self._explore = config.draw == "top", config.explore
        self._max_bytes = int(config.max_gib * 2**30)
        self._requested, self._sampled = 0, 0  # states asked for by `sample`, and handed out
        self._gate = 0.0  # trust in the critic
        self._window: list[tuple[float, bool, str]] = []  # value when drawn, outcome, problem: the newest WINDOW
        self._handed: dict[int, float] = {}  # the states drawn last and their values then, for the outcomes to come
        self._local = local
        start = _here if local else _start
        self._actors = [
            start(Identity(index, config.shards, vocabulary, fingerprint), config, directory)
            for index in range(config.shards)
        ]
        if salvage:
            self.dropped += [line for lines in self._all(ReplayShard.salvage) for line in lines]
        self._extents: list[Extent] = self._all(ReplayShard.extent)

    def __len__(self) -> int:
        """States in the store."""
        return sum(extent.states for extent in self._extents)

    def add(self, candidates: Sequence[Candidate]) -> None:
        """Store the states of trajectories; returns when every shard has accepted its part."""
        parts = self._split(candidates, [c.problem_id for c in candidates])
        self._write({shard: pack(part, self._vocabulary) for shard, part in parts.items()})
        self._keep_bounds()

    def record(self, outcomes: Sequence[Outcome]) -> None:
        """Tell what became of continuations of replayed states."""
        parts = self._split(outcomes, [o.problem_id for o in outcomes])
        self._write({shard: pack_outcomes(part) for shard, part in parts.items()})
        self._judge_critic(outcomes)

    def sample(self, n: int, seed: int) -> list[ReplayedState]:
        """Draw n distinct states without replacement, each with probability ~ exp(promise / temperature) of the rest.

        The same writes and seed give the same states for any number of shards. Fewer than n when fewer are replayable.
        With `draw: top` the n most promising instead. Ranking `frontier`: at most the share `explore` of n, rounded up or
        down by the seed, comes from own failures of unsolved problems. Ranking `posterior`: the n best Thompson draws
        of 4 n states so drawn.
        """
        self._requested += n
        if self._top:
            drawn = _best(self._all(ReplayShard.top, n, None), n)
        elif self._ranking.thompson:
            drawn = self._thompson(self._draw((SHORTLIST * n, seed)), n, seed)
        elif self._ranking.explores:
            share = int(self._explore * n + generator(seed, "share").random())  # right on average for any n
            exploring = min(share, self._replayable(1))
            drawn = self._draw((n - exploring, seed), (exploring, derive(seed, "explore")))
        else:
            drawn = self._draw((n, seed))
        self._sampled += len(drawn.keys)
        if self._ranking.uses_gate:
            self._remember(drawn)
        return drawn.states()

    def top(self, n: int, older_than: int | None = None) -> list[ReplayedState]:
        """The n most promising replayable states, best first; of those valued before version `older_than`, if given.

        With `older_than` they are the states whose stale values matter most: have the critic value them, `revalue`.
        """
        return _best(self._all(ReplayShard.top, n, older_than), n).states()

    def revalue(self, states: Sequence[ReplayedState], values: FloatArray, version: int) -> None:
        """New values [S] of states from a critic of this weight version."""
        if len(values) != len(states) or not np.isfinite(values).all():
            raise StoreError(f"revalue: {len(states)} states need as many finite values, got {len(values)}")
        numbered = list(zip(states, np.asarray(values).tolist(), strict=True))
        parts = self._split(numbered, [state.problem_id for state in states])
        self._write(
            {
                shard: Revaluation(
                    [state.problem_id for state, _ in part],
                    np.array([state.key for state, _ in part], np.uint64),
                    np.array([value for _, value in part], np.float32),
                    np.full(len(part), version, np.int32),
                )
                for shard, part in parts.items()
            }
        )

    def stats(self) -> StoreStats:
        """Counts over all shards."""
        return combine(self._all(ReplayShard.stats), self._requested, self._sampled)

    def save(self, uri: str) -> None:
        """Write a snapshot of all shards into a folder; it replaces an older one there when it is complete."""
        folder = Folder(uri).make()
        tag = f"{time.time_ns():x}"
        parts = self._all(ReplayShard.save, folder.uri, tag)
        window = {"window": self._window, "handed": list(self._handed.items())}
        driver = {"requested": self._requested, "sampled": self._sampled, **window}
        meta = {"fingerprint": self._fingerprint, "vocabulary": self._vocabulary, "gate": self._gate}
        write_manifest(folder, MANIFEST, {"format": 1, "parts": parts, **meta, **driver})
        folder.remove([name for name in folder.names() if name.endswith(".parquet") and not name.startswith(tag)])

    def restore(self, uri: str) -> None:
        """Replace the content by that of `save`, of a store with any number of shards."""
        folder = Folder(uri)
        manifest = read_manifest(folder, MANIFEST)
        for field, mine in (("fingerprint", self._fingerprint), ("vocabulary", self._vocabulary)):
            if manifest[field] != mine:
                raise StoreError(
                    f"{shown(uri)}: written for {field} {manifest[field]!r}, but this run has {mine!r}; states are only valid for"
                    " the tokenizer and task that made them"
                )
        self._requested, self._sampled = manifest["requested"], manifest["sampled"]
        self._gate = manifest["gate"]
        self._window = [(value, correct, problem) for value, correct, problem in manifest["window"]]
        self._handed = dict(manifest["handed"])
        self._extents = self._all(ReplayShard.restore, folder.uri, manifest["parts"])

    def clear(self) -> None:
        """Forget everything, as if the store had just been made."""
        self._requested, self._sampled, self._gate = 0, 0, 0.0
        self._window, self._handed = [], {}
        self._extents = self._all(ReplayShard.restore, "", [])

    def close(self) -> None:
        """Stop the shards; a second call does nothing."""
        if not self._actors:
            return
        if self._local:
            actors, self._actors = self._actors, []
            with ExitStack() as stack:  # all are closed, also when one has something to say
                for actor in actors:
                    stack.callback(actor.close)
            return
        try:
            self._all(ReplayShard.close)
        finally:
            for actor in self._actors:
                ray.kill(actor)
        end = time.monotonic() + self._deadline
        while any(_taken(f"replay-shard-{i}") for i in range(len(self._actors))) and time.monotonic() < end:
            time.sleep(0.01)  # the names are free when this returns
        self._actors = []

    # -- inside

    def _split(self, items: Sequence[Any], problem_ids: list[str]) -> dict[int, list[Any]]:
        parts: dict[int, list[Any]] = {}
        shards: dict[str, int] = {}
        for item, problem_id in zip(items, problem_ids, strict=True):
            if problem_id not in shards:
                shards[problem_id] = int(self._owner[group_of(problem_id)])
            parts.setdefault(shards[problem_id], []).append(item)
        return parts

    def _write(self, operations: Mapping[int, Operation]) -> None:
        """Send each shard its write; the sequence number makes a repeated call harmless."""
        calls = {shard: (self._extents[shard].sequence + 1, operation) for shard, operation in operations.items()}
        failed: list[StoreError] = []
        for shard, answer in self._ask(ReplayShard.write, calls).items():
            try:
                self._extents[shard] = answer()  # also beside a shard that failed: this one counts the write as done
            except StoreError as error:
                failed.append(error)
        if failed:
            raise failed[0]

    def _keep_bounds(self) -> None:
        """Evict down to the bounds on count and bytes, and a 64th further so that full scans stay rare."""
        for _ in range(8):  # bytes of a state are an average, so a byte bound may take more than one pass
            states, nbytes = len(self), sum(extent.nbytes for extent in self._extents)
            excess = states - self._capacity + self._capacity // 64 if states > self._capacity else 0
            if nbytes > self._max_bytes:
                excess = max(excess, 1, int(states * (1.0 - 63 / 64 * self._max_bytes / nbytes)))
            if excess == 0 or states == 0:
                return
            self._evict(min(excess, states))

    def _evict(self, excess: int) -> None:
        ranked = self._all(ReplayShard.least, excess)
        shard = np.repeat(np.arange(self._shards), [len(keys) for _, keys in ranked])
        standings = np.concatenate([standing for standing, _ in ranked])
        keys = np.concatenate([keys for _, keys in ranked])
        doomed = np.lexsort((keys, standings))[:excess]
        bar = Evict(int(standings[doomed[-1]]), int(keys[doomed[-1]]))
        self._write(dict.fromkeys(np.unique(shard[doomed]).tolist(), bar))

    def _remember(self, drawn: Selected) -> None:
        """Note the values of drawn states. Kept beyond an outcome: a state may be drawn again before the first one comes."""
        for key, value in zip(drawn.keys.tolist(), drawn.values.tolist(), strict=True):
            self._handed.pop(key, None)  # one that is drawn again is a new one, not the first to be forgotten
            self._handed[key] = value
        for key in list(itertools.islice(self._handed, max(0, len(self._handed) - HANDED))):
            del self._handed[key]

    def _judge_critic(self, outcomes: Sequence[Outcome]) -> None:
        """Measure on a sliding window how well the values of replayed states foretold their outcomes; set the gate."""
        if not self._ranking.uses_gate:
            return
        fresh = [(self._handed[o.state_key], o.correct, o.problem_id) for o in outcomes if o.state_key in self._handed]
        self._window = [*self._window, *fresh][-WINDOW:]
        if not self._window:
            return
        values, correct, problems = zip(*self._window, strict=True)
        groups = np.unique(np.array(problems), return_inverse=True)[1]
        gate = critic_gate(np.array(values, np.float64), np.array(correct, np.bool_), groups)
        if gate != self._gate:
            self._write(dict.fromkeys(range(self._shards), Trust(gate)))
            self._gate = gate

    def _thompson(self, drawn: Selected, n: int, seed: int) -> Selected:
        """The n of the drawn states whose Thompson draws are the most learnable."""
        beliefs = belief(drawn.rows["wins"], drawn.rows["losses"], drawn.values, self._gate)
        scores = thompson(drawn.keys, *beliefs, derive(seed, "thompson"))
        return drawn.take(np.lexsort((drawn.keys, scores))[::-1][:n])

    def _replayable(self, pool: int) -> int:
        return sum(int(extent.replayable[pool]) for extent in self._extents)

    def _draw(self, *wishes: tuple[int, int]) -> Selected:
        """Of pool i so many distinct states, with this seed: (wanted, seed) = wishes[i]. One round of calls as a rule."""
        draws = []
        for pool, (wanted, seed) in enumerate(wishes):
            masses = np.sum([extent.masses[pool] for extent in self._extents], axis=0)
            draws.append(Draw(pool, wanted, self._replayable(pool), masses, seed))
        while unfinished := [draw for draw in draws if draw.missing]:
            found = self._all(ReplayShard.grant, [draw.wish() for draw in unfinished])
            for number, draw in enumerate(unfinished):
                draw.take([granted[number] for granted in found])
        return joined([draw.chosen for draw in draws])

    def _all(self, method: Callable[..., R], *arguments: Any) -> list[R]:
        """Call a method of every shard at once; the answers in their order."""
        return list(self._call(method, dict.fromkeys(range(self._shards), arguments)).values())

    def _call(self, method: Callable[..., R], arguments: dict[int, tuple[Any, ...]]) -> dict[int, R]:
        """Call a method of several shards at once; the answers by shard."""
        return {shard: answer() for shard, answer in self._ask(method, arguments).items()}

    def _ask(self, method: Callable[..., R], arguments: dict[int, tuple[Any, ...]]) -> dict[int, Callable[[], R]]:
        """Begin a call of several shards at once; for each what waits for its answer."""
        if self._local:
            return {shard: partial(method, self._actors[shard], *given) for shard, given in arguments.items()}
        end = time.monotonic() + self._deadline
        calls = {shard: sealed((method, given)) for shard, given in arguments.items()}
        begin = {shard: partial(self._actors[shard].call.remote, *parts) for shard, parts in calls.items()}
        asked = {shard: begin[shard]() for shard in arguments}  # all at once
        name = method.__name__
        return {shard: partial(self._answer, shard, name, begin[shard], call, end) for shard, call in asked.items()}

    def _answer(self, shard: int, method: str, begin: Callable[[], Any], reference: Any, end: float) -> Any:
        """Wait for an answer; where the actor died, ask the restarted one."""
        name = f"replay-shard-{shard}"
        while True:
            try:
                return opened([ray.get(reference, timeout=max(end - time.monotonic(), 0.001))])
            except GetTimeoutError as error:
                raise StoreError(
                    f"{name}: no answer to {method} within {self._deadline:g} s; see its log on the dashboard or raise"
                    " replay.deadline"
                ) from error
            except RayTaskError as error:
                if isinstance(error.cause, StoreError):
                    raise StoreError(str(error.cause)) from error
                raise
            except RayActorError as error:
                if time.monotonic() > end:
                    raise StoreError(
                        f"{name}: died during {method} and did not come back: {first_line(error)}"
                    ) from error
                time.sleep(0.1)
                reference = begin()


class ShardActor:
    """A shard in a process of its own."""

    def __init__(self, identity: Identity, config: ReplayConfig, directory: str) -> None:
        self._shard = ReplayShard(identity, config, directory)

    def call(self, *parts: bytes) -> bytes:
        """Call a method of `ReplayShard`: parts of (method, arguments) in, what it returns out; see `replay.wire`."""
        method, arguments = opened(parts)
        return pickle.dumps(method(self._shard, *arguments), pickle.HIGHEST_PROTOCOL)


def _start(identity: Identity, config: ReplayConfig, directory: str) -> Any:
    """Start one shard's actor."""
    name = f"replay-shard-{identity.index}"
    if _taken(name):
        raise StoreError(
            f"an actor {name} runs already in this Ray namespace; wait for the other run to end or give this one its own"
        )
    environment = {"env_vars": {"CUDA_VISIBLE_DEVICES": ""}}
    options = {"name": name, "num_cpus": 0, "max_restarts": -1, "runtime_env": environment}
    uri = directory if "://" in directory else os.path.abspath(directory)
    return ray.remote(ShardActor).options(**options).remote(identity, config, uri)


def _here(identity: Identity, config: ReplayConfig, directory: str) -> Any:
    """One shard in this process."""
    return ReplayShard(identity, config, directory)


def _taken(name: str) -> bool:
    try:
        ray.get_actor(name)
    except ValueError:
        return False
    return True


def _best(found: list[tuple[Selected, Any]], count: int) -> Selected:
    """The states of the highest scores over all shards, best first; ties by key."""
    states = joined([selected for selected, _ in found])
    scores = np.concatenate([scores for _, scores in found])
    return states.take(np.lexsort((states.keys, scores))[::-1][:count])
