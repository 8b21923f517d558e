"""The replay store as the trainer sees it: it routes writes to shards, draws from all of them, saves and restores.

`ReplayStore` lives in the driver. Each `replay.server.ShardServer` is a Ray actor, or with `local` a plain object. Invariants:
the number of shards changes nothing but placement. An iteration makes at most one call per shard and kind of work. Every wait has
a deadline, and an error names the shard. A call to a dead shard is repeated until the deadline, and applied once.
"""

import itertools
import json
import math
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from core.config import ReplayConfig
from core.errors import StoreError, first_line
from core.records import Candidate, FloatArray, Outcome, Provenance, ReplayedState
from core.seeds import derive
from replay import writes
from replay.keys import Keys, Reals, shard_of
from replay.rankings.base import SuccessModel
from replay.rankings.registry import RANKINGS
from replay.records import Drawn, joined
from replay.server import ShardServer, ShardSize
from replay.shard import Shard
from replay.snapshot import FORMAT, MANIFEST, read_manifest
from replay.stats import StoreStats, combine, shard_stats
from replay.success import NOTHING, Evidence, fit, from_text, to_text

REMEMBERED = 8192
"""Number of drawn states whose features are kept until their outcomes arrive: more than are ever in flight."""
LEAST_SPREAD = 1e-6
"""Deviation of values below which they count as equal: an untrained critic gives one number for all states."""
R = TypeVar("R")


class ReplayStore:
    """The states of all shards. Not thread-safe: one driver calls it."""

    _model: SuccessModel
    _evidence: Evidence
    _roots: list[int]  # wins and losses of rollouts from the root since the last fit
    _root_record: list[float]  # decayed wins and number of rollouts from the root
    _values: Reals  # decayed count, sum, and sum of squares of the critic's values
    _drawn: dict[int, list[float]]  # key of a drawn state -> its chance and features then

    def __init__(
        self, config: ReplayConfig, *, vocabulary: int, directory: Path, fingerprint: str, local: bool = False
    ) -> None:
        """Start empty shards on the connected Ray cluster.

        `vocabulary`: token ids are in [0, vocabulary). `directory`: for the shards' journals; files of an earlier store there are
        replaced. `fingerprint`: of task and tokenizer; `restore` refuses a store with another one. `local`: keep the shards in this
        process, without journals.
        """
        self._shards, self._capacity, self._deadline = config.shards, config.capacity, config.deadline
        self._vocabulary, self._fingerprint = vocabulary, fingerprint
        self._ranking = RANKINGS[config.ranking]
        self._max_bytes, self._decay = int(config.max_gib * 2**30), config.decay
        self._forget()
        self._sequence = [0] * config.shards  # number of each shard's last write
        self._sizes = [ShardSize(0, 0)] * config.shards
        self._local = local
        if local:
            self._actors: list[Any] = [ShardServer(i, config, vocabulary) for i in range(config.shards)]
        else:
            start = partial(_start, config, vocabulary, Path(os.path.abspath(directory)), secrets.token_hex(8))
            self._actors = [start(index) for index in range(config.shards)]
        # An empty write waits for the shards, finds a folder that cannot be written, and has pyarrow import pandas (0.3 s) now.
        self._write({shard: writes.pack_outcomes([], self._model) for shard in range(config.shards)})

    @property
    def root_success(self) -> float:
        """Share of correct rollouts from the root, decayed per iteration; NaN before there are any."""
        wins, tried = self._root_record
        return wins / tried if tried else math.nan

    def __len__(self) -> int:
        """States in the store."""
        return sum(size.states for size in self._sizes)

    def add(self, candidates: Sequence[Candidate]) -> None:
        """Store the states of trajectories, then evict down to the bounds on count and bytes."""
        parts = self._split(candidates, [c.problem_id for c in candidates])
        self._write({shard: writes.pack_candidates(part, self._vocabulary) for shard, part in parts.items()})
        roots = [c.provenance for c in candidates if c.parent is None and c.provenance != Provenance.CANONICAL]
        self._roots[0] += roots.count(Provenance.OWN_SUCCESSFUL)
        self._roots[1] += roots.count(Provenance.OWN_FAILED)
        values = np.concatenate([np.zeros(0), *(c.values for c in candidates)])
        self._values += [len(values), values.sum(), (values * values).sum()]
        self._keep_bounds()

    def record(self, outcomes: Sequence[Outcome]) -> None:
        """Record the outcomes of continuations of replayed states, and refit the success model."""
        wins, losses = self._roots
        won, tried = (self._decay * number for number in self._root_record)
        self._root_record = [won + wins, tried + wins + losses]
        ranking = self._ranking
        model = self._refitted(outcomes) if ranking.uses_model or ranking.uses_spread else self._model
        parts = self._split(outcomes, [o.problem_id for o in outcomes])
        if model != self._model:
            parts = {shard: parts.get(shard, []) for shard in range(self._shards)}
        self._model = model
        self._roots = [0, 0]
        self._write({shard: writes.pack_outcomes(part, model) for shard, part in parts.items()})

    def sample(self, n: int, seed: int) -> list[ReplayedState]:
        """Draw n distinct states without replacement, weighted by exp(priority / temperature).

        The same writes and seed give the same states for any number of shards. Returns fewer than n when fewer are replayable.
        """
        self._requested += n
        ranking = self._ranking
        wanted = n * ranking.shortlist
        drawn = joined(self._all(Shard.draw, wanted, derive(seed, "replay")), wanted)
        if ranking.choose is not None:
            drawn = drawn.take(ranking.choose(drawn.keys, drawn.wins, drawn.losses, seed)[:n])
        self._sampled += len(drawn.keys)
        if ranking.uses_model:
            self._remember(drawn)
        return drawn.states()

    def top(self, n: int, older_than: int) -> list[ReplayedState]:
        """The n states of highest priority whose value is older than weight version `older_than`, best first.

        Their stale values matter most: compute new ones with the critic, then call `revalue`.
        """
        return joined(self._all(Shard.top, n, older_than), n).states()

    def revalue(self, states: Sequence[ReplayedState], values: FloatArray, version: int) -> None:
        """Store new values [S] of states, from a critic of this weight version. Raises StoreError unless all are finite."""
        if len(values) != len(states) or not np.isfinite(values).all():
            raise StoreError(f"revalue: {len(states)} states need as many finite values, got {len(values)}")
        numbered = list(zip(states, np.asarray(values).tolist(), strict=True))
        parts = self._split(numbered, [state.problem_id for state in states])
        packed = {
            shard: writes.pack_values([s for s, _ in part], np.array([v for _, v in part], np.float32), version)
            for shard, part in parts.items()
        }
        self._write(packed)

    def stats(self) -> StoreStats:
        """Counts over all shards."""
        return combine(self._all(shard_stats), self._requested, self._sampled)

    def save(self, folder: Path) -> None:
        """Write a snapshot of every shard, and the driver's own state, into a folder."""
        names = [f"shard-{index}.parquet" for index in range(self._shards)]
        folder = Path(os.path.abspath(folder))
        folder.mkdir(parents=True, exist_ok=True)
        self._call(ShardServer.save, {i: (self._sequence[i], folder / name) for i, name in enumerate(names)})
        manifest = {
            "format": FORMAT,
            "snapshots": names,
            "fingerprint": self._fingerprint,
            "vocabulary": self._vocabulary,
            "requested": self._requested,
            "sampled": self._sampled,
            "model": to_text(self._model),
            "evidence": [self._evidence.rows.tolist(), self._evidence.expected, self._evidence.differing],
            "roots": self._roots,
            "root_record": self._root_record,
            "values": self._values.tolist(),
            "drawn": list(self._drawn.items()),
        }
        (folder / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")

    def restore(self, folder: Path) -> None:
        """Replace the content by what `save` wrote, from any number of shards. Raises StoreError for another task or tokenizer."""
        manifest = read_manifest(folder)
        for field, mine in (("fingerprint", self._fingerprint), ("vocabulary", self._vocabulary)):
            if manifest[field] != mine:
                raise StoreError(
                    f"{folder}: written for {field} {manifest[field]!r}, but this run has {mine!r}; states are only valid"
                    " for the tokenizer and task that made them"
                )
        self._requested, self._sampled = manifest["requested"], manifest["sampled"]
        self._model, self._roots, self._drawn = from_text(manifest["model"]), manifest["roots"], dict(manifest["drawn"])
        self._values, self._root_record = np.array(manifest["values"]), manifest["root_record"]
        rows, expected, differing = manifest["evidence"]
        self._evidence = Evidence(np.array(rows).reshape(-1, NOTHING.rows.shape[1]), expected, differing)
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
        end = time.monotonic() + self._deadline
        while any(_taken(f"replay-shard-{i}") for i in range(len(actors))) and time.monotonic() < end:
            time.sleep(0.01)  # the names are free when this returns

    # -- inside

    def _forget(self) -> None:
        """Set what the driver knows to what a new store knows."""
        self._requested, self._sampled = 0, 0  # states requested from `sample`, and returned
        self._model, self._evidence = SuccessModel(), NOTHING
        self._roots, self._root_record, self._values, self._drawn = [0, 0], [0.0, 0.0], np.zeros(3), {}

    def _split(self, items: Sequence[Any], problem_ids: list[str]) -> dict[int, list[Any]]:
        parts: dict[int, list[Any]] = {}
        owners = {name: shard_of(name, self._shards) for name in set(problem_ids)}
        for item, problem_id in zip(items, problem_ids, strict=True):
            parts.setdefault(owners[problem_id], []).append(item)
        return parts

    def _write(self, parts: Mapping[int, pa.RecordBatch]) -> None:
        """Send each shard its write. A shard ignores a repeated sequence number."""
        calls = {shard: (self._sequence[shard] + 1, write) for shard, write in parts.items()}
        failed: list[StoreError] = []
        for shard, answer in self._ask(ShardServer.write, calls).items():
            try:
                self._sizes[shard] = answer()
                self._sequence[shard] += 1
            except StoreError as error:  # the other shards have applied their writes
                failed.append(error)
        if failed:
            raise failed[0]

    def _load(self, paths: list[Path]) -> None:
        calls = {shard: (self._sequence[shard], paths, self._shards) for shard in range(self._shards)}
        self._sizes = list(self._call(ShardServer.restore, calls).values())

    def _keep_bounds(self) -> None:
        """Evict down to the bounds on count and bytes, and 1/64 further so that evictions stay rare."""
        for _ in range(8):  # bytes per state are an average, so a bound on bytes may take more than one pass
            states, nbytes = len(self), sum(size.nbytes for size in self._sizes)
            excess = states - self._capacity + self._capacity // 64 if states > self._capacity else 0
            if nbytes > self._max_bytes:
                excess = max(excess, 1, int(states * (1.0 - 63 / 64 * self._max_bytes / nbytes)))
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

    def _remember(self, drawn: Drawn) -> None:
        """Keep what the model knew of drawn states. It outlives the first outcome: a state may be drawn again before it arrives."""
        for key, row in zip(
            drawn.keys.tolist(), np.column_stack([drawn.chances, drawn.features]).tolist(), strict=True
        ):
            self._drawn.pop(key, None)  # a state that is drawn again becomes the newest
            self._drawn[key] = row
        for key in list(itertools.islice(self._drawn, max(0, len(self._drawn) - REMEMBERED))):
            del self._drawn[key]

    def _refitted(self, outcomes: Sequence[Outcome]) -> SuccessModel:
        """The success model with the outcomes since the last fit: of replayed states, and of rollouts from the root."""
        number, total, squares = self._values.tolist()
        centre = total / number if number else 0.0
        spread = max(squares / number - centre**2, 0.0) ** 0.5 if number else 0.0
        spread = spread if spread > LEAST_SPREAD else 1.0
        self._values = self._decay * self._values
        if not self._ranking.uses_model:
            return SuccessModel(centre=centre, spread=spread)
        counts: dict[int, list[int]] = {}
        for outcome in outcomes:
            if outcome.state_key in self._drawn:
                counts.setdefault(outcome.state_key, [0, 0])[not outcome.correct] += 1
        width = 1 + NOTHING.rows.shape[1]
        rows = np.array([[*self._drawn[key], *count] for key, count in counts.items()]).reshape(-1, width)
        self._evidence = self._evidence.joined(rows[:, 0], rows[:, 1:], self._decay).with_roots(*self._roots)
        return fit(self._evidence, centre, spread)

    def _all(self, method: Callable[..., R], *arguments: Any) -> list[R]:
        """Call a function of every shard concurrently. Answers by shard."""
        calls = {shard: (self._sequence[shard], method, *arguments) for shard in range(self._shards)}
        return list(self._call(ShardServer.read, calls).values())

    def _call(self, method: Callable[..., R], arguments: dict[int, tuple[Any, ...]]) -> dict[int, R]:
        return {shard: answer() for shard, answer in self._ask(method, arguments).items()}

    def _ask(self, method: Callable[..., R], arguments: dict[int, tuple[Any, ...]]) -> dict[int, Callable[[], R]]:
        """Start calls to several shards concurrently. Returns for each shard a function that waits for its answer."""
        if self._local:
            return {shard: partial(method, self._actors[shard], *given) for shard, given in arguments.items()}
        end = time.monotonic() + self._deadline
        begin = {shard: partial(self._actors[shard].call.remote, method, given) for shard, given in arguments.items()}
        asked = {shard: begin[shard]() for shard in arguments}
        name = method.__name__
        return {shard: partial(self._answer, shard, name, begin[shard], call, end) for shard, call in asked.items()}

    def _answer(self, shard: int, method: str, begin: Callable[[], Any], reference: Any, end: float) -> Any:
        """Wait for an answer. If the actor died, call the restarted one. Raises StoreError after the deadline `end`."""
        name = f"replay-shard-{shard}"
        while True:
            try:
                return ray.get(reference, timeout=max(end - time.monotonic(), 0.001))
            except GetTimeoutError as error:
                raise StoreError(
                    f"{name}: no answer to {method} within {self._deadline:g} s; see its log on the dashboard or raise"
                    " replay.deadline"
                ) from error
            except RayTaskError as error:
                if isinstance(error.cause, StoreError):
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
    """A shard in its own Ray actor."""

    def __init__(self, *arguments: Any) -> None:
        self._server = ShardServer(*arguments)

    def call(self, method: Callable[..., R], arguments: tuple[Any, ...]) -> R:
        """Call a method of `ShardServer`."""
        return method(self._server, *arguments)


def _start(config: ReplayConfig, vocabulary: int, directory: Path, store_id: str, index: int) -> Any:
    """Start one shard's actor."""
    name = f"replay-shard-{index}"
    if _taken(name):
        raise StoreError(
            f"an actor {name} is already running in this Ray namespace; wait for the other run to end or use another one"
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
