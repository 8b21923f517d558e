"""The replay store against the prioritised buffers of PyPI: `python -m bench.store [--quick]` (see requirements/bench.txt).

The same candidates go to every store in turns, batch by batch as the loop makes them; figures are medians over batches.
What is timed is what the loop would do with that store:

- add: from a list of 512 `Candidate` records (10 states each) to stored with priorities. For the peers that includes
  making fixed-size rows (`bench/store_peers.py`), for ours packing and checking; "rows ready" is without either.
- sample: from a seed to 64 starts, each with its problem's id and its prefix as an int32 array.
- update: from the 256 outcomes of 64 starts (4 continuations each) to new priorities. The peers get the share of correct
  continuations; ours, with ranking `posterior`, keeps decayed counts and ranks all states of the starts' problems anew. With
  ranking `value` outcomes change no priority, and counting them is all: a figure beside it.
- refresh: 256 new values of drawn states, ready as an array, to new priorities.

The peers keep nothing on disk, find nothing equal, have no quota per problem and cannot say by which text a state is found;
so our shard is measured in memory as they are, and also durably (log and fsync), through Ray, and while it writes a snapshot.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from bench.report import RESULTS, Check, check, median, write
from bench.store_peers import Peer, Rows, found, installed, rows_of
from bench.store_size import Setting, disk, memory, occupied
from core.config import ReplayConfig
from core.records import Candidate, Outcome, Provenance
from replay.batch import pack, pack_outcomes
from replay.draw import Draw
from replay.opening import Identity
from replay.records import Selected, joined
from replay.server import Extent, ReplayShard
from replay.shard import Revaluation, Shard
from replay.store import ReplayStore

VOCABULARY, WIDTH, STATES = 32_000, 512, 10  # states per trajectory
BATCH = 512  # trajectories of one iteration: 128 starts x 4 samples
DRAWN = 64  # replayed starts of one iteration
CONTINUED = 4  # continuations of each
REFRESHED = 256  # stale values renewed in one iteration
CONFIG = ReplayConfig(shards=1, capacity=100_000_000, per_problem=32, ranking="value", max_gib=1000)
IDENTITY = Identity(0, 1, VOCABULARY, "bench")
Timings = dict[str, list[float]]


def batches(trajectories: int) -> Iterator[list[Candidate]]:
    """Trajectories of 64 to 512 random tokens with 10 states each, 3 per problem."""
    rng = np.random.default_rng(0)
    for first in range(0, trajectories, BATCH):
        made = []
        for i in range(first, min(first + BATCH, trajectories)):
            tokens = rng.integers(0, VOCABULARY, rng.integers(64, WIDTH + 1), dtype=np.int32)
            lengths = (np.arange(1, STATES + 1) * (len(tokens) - 1) // (STATES + 1)).astype(np.int32)
            values = rng.random(STATES).astype(np.float32)
            made.append(Candidate(f"problem-{i // 3}", tokens, lengths, values, Provenance.OWN_FAILED, 0.0, 1))
        yield made


def timed(timings: Timings, name: str, units: int, action: Callable[[], Any]) -> Any:
    """Run and note the seconds per unit."""
    start = time.perf_counter()
    result = action()
    timings.setdefault(name, []).append((time.perf_counter() - start) / units)
    return result


def draw(shard: Shard, seed: int) -> Selected:
    """One batch of a shard in memory, as the driver has it drawn."""
    drawing = Draw(0, DRAWN, shard.states, shard.masses()[0], seed)
    while drawing.missing:
        drawing.take([shard.grant(drawing.wish())])
    return drawing.chosen


def sample(shard: Shard, seed: int) -> Selected:
    """A batch with its prefixes at hand."""
    drawn = draw(shard, seed)
    drawn.prefixes()
    return drawn


def ours(shard: Shard, judged: Shard, candidates: list[Candidate], seed: int, timings: Timings) -> None:
    """One turn of our store; `judged` holds the same states, ranked by their outcomes."""
    size = STATES * len(candidates)
    batch = timed(timings, "pack", size, lambda: pack(candidates, VOCABULARY))
    timed(timings, "ours add, rows ready", size, lambda: shard.add(batch))
    timings.setdefault("ours add", []).append(timings["pack"][-1] + timings["ours add, rows ready"][-1])
    drawn = timed(timings, "ours sample", DRAWN, lambda: sample(shard, seed))
    became = outcomes(drawn)
    timed(timings, "ours, ranking value, update", len(became), lambda: shard.record(pack_outcomes(became)))
    judged.add(batch)
    became = outcomes(draw(judged, seed))
    timed(timings, "ours update", len(became), lambda: judged.record(pack_outcomes(became)))
    many = joined([draw(shard, seed + 10**6 * (i + 1)) for i in range(REFRESHED // DRAWN)])
    values = np.random.default_rng(seed).random(len(many.keys)).astype(np.float32)
    news = Revaluation(many.problem_ids, many.keys, values, np.full(len(values), 1, np.int32))
    timed(timings, "ours refresh", len(values), lambda: shard.revalue(news))


def outcomes(drawn: Selected) -> list[Outcome]:
    """What became of the continuations of drawn states."""
    states = zip(drawn.keys.tolist(), drawn.problem_ids, strict=True)
    return [Outcome(key, problem, bool(i % 3), 1) for key, problem in states for i in range(CONTINUED)]


def theirs(peer: Peer, name: str, rows: Rows, names: list[str], made: float, timings: Timings) -> None:
    """One turn of a peer; `made`: seconds per state that its rows took."""
    timed(timings, f"{name} add, rows ready", len(rows.values), lambda: peer.add(rows))
    timings.setdefault(f"{name} add", []).append(made + timings[f"{name} add, rows ready"][-1])
    drawn = timed(timings, f"{name} sample", DRAWN, lambda: found(*_named(peer.sample(DRAWN), names)))
    became = [Outcome(0, problem, bool(i % 3), 1) for problem in drawn.problem_ids for i in range(CONTINUED)]

    def update() -> None:
        correct = np.fromiter((o.correct for o in became), np.float32, len(became))
        peer.update(drawn.handle, correct.reshape(DRAWN, CONTINUED).mean(axis=1) + np.float32(1e-3))

    timed(timings, f"{name} update", len(became), update)
    _, handle = peer.sample(REFRESHED)
    values = np.random.default_rng(1).random(REFRESHED).astype(np.float32) + np.float32(1e-3)
    timed(timings, f"{name} refresh", REFRESHED, lambda: peer.update(handle, values))


def _named(drawn: tuple[Rows, Any], names: list[str]) -> tuple[Rows, list[str], Any]:
    return drawn[0], names, drawn[1]


def compare(trajectories: int, peers: dict[str, Peer]) -> Timings:
    """Give everything to every store in turns."""
    timings: Timings = {}
    shard, numbers = Shard(CONFIG, VOCABULARY, "shard"), dict[str, int]()
    judged = Shard(CONFIG.model_copy(update={"ranking": "posterior"}), VOCABULARY, "judged")
    for turn, candidates in enumerate(batches(trajectories)):
        ours(shard, judged, candidates, turn, timings)
        if not peers:
            continue
        start = time.perf_counter()
        rows = rows_of(candidates, numbers, WIDTH)
        made = (time.perf_counter() - start) / len(rows.values)
        for name, peer in peers.items():
            if (
                name != "rllib" or turn % 8 == 0
            ):  # it takes its rows one by one in Python; every eighth batch says enough
                theirs(peer, name, rows, list(numbers), made, timings)
    return timings


def against_peers(timings: Timings, peers: dict[str, Peer]) -> list[Check]:
    """Throughput of each operation, ours against the best peer."""
    alone = {"pack: ours (part of add)": "pack", "update, ranking value: ours": "ours, ranking value, update"}
    checks = [check(name, 1 / median(timings[key]), "states/s") for name, key in alone.items()]
    for action in ("add", "add, rows ready", "sample", "update", "refresh"):
        rates = {name: 1 / median(timings[f"{name} {action}"]) for name in ["ours", *peers]}
        checks += [check(f"{action}: {name}", rate, "states/s") for name, rate in rates.items()]
        if peers and action != "add, rows ready":
            best = max(rates[name] for name in peers)
            checks.append(check(f"{action}: ours / best peer", rates["ours"] / best, "x", ">=", 5.0, best))
    return checks


class Uncompacted(ReplayShard):
    """A shard whose log is compacted when it is asked for, and only then."""

    def _compact_when_due(self, shard: Shard) -> None:
        """Never."""


def serve(connection: Connection, folder: str) -> None:
    """A shard with its log in a process of its own, as the loop has it: writes what it is sent, says how long it took."""
    shard = Uncompacted(IDENTITY, CONFIG, folder)

    def snapping() -> bool:
        return shard._compaction is not None and shard._compaction.is_alive()

    while (asked := connection.recv()) is not None:
        sequence, operation, snapshot = asked
        start = time.perf_counter()
        if snapshot and not snapping():
            shard.compact()
        shard.write(sequence, operation)
        connection.send((time.perf_counter() - start, snapping()))
    shard.compact()
    shard.close()


def adds(trajectories: int, plain: str, snapped: str) -> tuple[Timings, int]:
    """Two shards given the same batches in turns, who is first alternating; one of them writes snapshots during the
    second half. Seconds per state of the batches that met a snapshot under way, on both; bytes of all tokens."""
    context = get_context("spawn")
    ends: dict[str, Connection] = {}
    processes = []
    for name, folder in (("plain", plain), ("snapped", snapped)):
        ends[name], theirs = context.Pipe()
        processes.append(context.Process(target=serve, args=(theirs, folder), daemon=True))
        processes[-1].start()
        theirs.close()  # so that the end of the process is the end of the pipe
    timings: Timings = {"plain": [], "snapped": []}
    raw, half = 0, -(-trajectories // BATCH) // 2
    for turn, candidates in enumerate(batches(trajectories)):
        operation = pack(candidates, VOCABULARY)
        raw += operation.tokens.nbytes
        found = {}
        for name in ("plain", "snapped")[:: 1 if turn % 2 else -1]:
            ends[name].send((turn + 1, operation, turn >= half and name == "snapped"))
            found[name] = ends[name].recv()
        if found["snapped"][1]:
            for name, (seconds, _) in found.items():
                timings[name].append(seconds / (STATES * len(candidates)))
    for end in ends.values():
        end.send(None)
    for process in processes:
        process.join()
    return timings, raw


def durable(trajectories: int, folder: str) -> list[Check]:
    """One shard with its log: adds, adds while a snapshot is written, disk, recovery."""
    snapped = f"{folder}/snapped"
    timings, raw = adds(trajectories, f"{folder}/plain", snapped)
    used = occupied(Path(snapped))
    extent, seconds = reopened(snapped)
    raw //= extent.states
    rate, during = (1 / median(timings[name]) for name in ("plain", "snapped"))
    batch = 1e3 * STATES * BATCH
    return [
        check("add with log and fsync", rate, "states/s"),
        check("disk per state, a snapshot alone", used / extent.states, "bytes", None, 0.0, raw),
        check(f"recovery of {extent.states:,} states, from a snapshot", seconds, "s", "<=", 10.0),
        check("adds during a snapshot / without", during / rate, "x", ">=", 0.9, rate),
        check("longest add of a batch, without a snapshot", batch * max(timings["plain"]), "ms"),
        check("longest add of a batch, starts of snapshots included", batch * max(timings["snapped"]), "ms"),
    ]


def reopened(folder: str) -> tuple[Extent, float]:
    """A shard that is read from its files, and the seconds that took."""
    start = time.perf_counter()
    extent = ReplayShard(IDENTITY, CONFIG, folder).extent()
    return extent, time.perf_counter() - start


def log_alone(trajectories: int, folder: str) -> Check:
    """Recovery of a shard that never came to a snapshot."""
    shard = Uncompacted(IDENTITY, CONFIG, folder)
    for turn, candidates in enumerate(batches(trajectories)):
        shard.write(turn + 1, pack(candidates, VOCABULARY))
    shard.close()
    del shard
    assert not list(Path(folder).rglob("snapshot-*"))
    extent, seconds = reopened(folder)
    return check(f"recovery of {extent.states:,} states, from the log alone", seconds, "s", "<=", 10.0)


def over_ray(trajectories: int) -> list[Check]:
    """The whole store through Ray actors, with log and fsync, on 1, 2 and 4 shards."""
    import ray

    checks: list[Check] = []
    calls: Timings = {}
    ray.init(address="local", num_cpus=2, include_dashboard=False, namespace="retrospect", log_to_driver=False)
    for shards in (1, 2, 4):
        with tempfile.TemporaryDirectory() as folder:
            config = CONFIG.model_copy(update={"shards": shards})
            store = ReplayStore(config, vocabulary=VOCABULARY, directory=folder, fingerprint="bench")
            timings: Timings = {}
            made = batches(trajectories)
            store.add(next(made))  # not timed: the actors load what they need
            for turn, candidates in enumerate(made):
                timed(timings, "add", STATES * len(candidates), partial(store.add, candidates))
                drawn = timed(timings, "sample", DRAWN, partial(store.sample, DRAWN, turn))
                became = [Outcome(s.key, s.problem_id, bool(i % 3), 1) for s in drawn for i in range(CONTINUED)]
                timed(timings, "update", len(became), partial(store.record, became))
            for _ in range(20):
                timed(calls, "call", 1, partial(store._call, ReplayShard.extent, {0: ()}))
            store.close()
        checks += [check(f"Ray, {shards} shards: {a}", 1 / median(t), "states/s") for a, t in timings.items()]
    ray.shutdown()
    return [check("Ray: one call of one actor, nothing to do", 1e3 * median(calls["call"]), "ms"), *checks]


def growth(sizes: list[int], picture: Path) -> list[Check]:
    """Milliseconds of one sample of 64 states against the number of states held, by stores of all sizes in turns."""
    checks, costs, timings = [], [], Timings()
    shards = {size: Shard(CONFIG, VOCABULARY, "shard") for size in sizes}
    for candidates in batches(max(sizes) // STATES):
        batch = pack(candidates, VOCABULARY)
        for size, shard in shards.items():
            if shard.states < size:
                shard.add(batch)
    for seed in range(300):
        for size, shard in shards.items():
            timed(timings, f"{size}", 1, partial(sample, shard, seed))
    for size in sizes:
        costs.append(1e3 * median(timings[f"{size}"]))
        checks.append(check(f"sample of {DRAWN} from {size:,} states", costs[-1], "ms"))
    plot(sizes, costs, picture)
    allowed = np.log(sizes[-1]) / np.log(sizes[0])
    name = f"growth of a sample's cost from {sizes[0]:,} to {sizes[-1]:,} states (log n: {allowed:.2f})"
    return [*checks, check(name, costs[-1] / costs[0], "x", "<=", float(allowed))]


def plot(sizes: list[int], costs: list[float], picture: Path) -> None:
    """Measured cost of a sample, and log n through its first point."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4))
    axes.plot(sizes, costs, "o-", label=f"sample of {DRAWN}")
    axes.plot(sizes, [costs[0] * np.log(n) / np.log(sizes[0]) for n in sizes], "--", label="log n")
    axes.set(xscale="log", xlabel="states held", ylabel="milliseconds", ylim=(0, None))
    axes.legend()
    figure.tight_layout()
    figure.savefig(picture, dpi=120)


def main(quick: bool) -> None:
    """Run and write the results."""
    trajectories = 4_000 if quick else 100_000
    peers, left_out = installed(STATES * trajectories, WIDTH)
    timings = compare(trajectories, peers)
    checks = against_peers(timings, peers)
    del timings, peers
    setting = Setting(batches, trajectories, CONFIG, IDENTITY)
    checks += memory(setting)
    with tempfile.TemporaryDirectory() as folder:
        checks += disk(setting, Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        checks += durable(trajectories, folder)
    with tempfile.TemporaryDirectory() as folder:
        checks.append(log_alone(trajectories, folder))
    checks += over_ray(trajectories // 4)
    sizes = [10_000, 40_000] if quick else [10_000, 100_000, 1_000_000, 10_000_000]
    checks += growth(sizes, RESULTS / ("store.quick.png" if quick else "store.png"))
    settings: dict[str, str | int | float] = {
        "trajectories": trajectories,
        "states": STATES * trajectories,
        "batch": BATCH * STATES,
        "drawn": DRAWN,
    }
    settings |= {f"left out: {name}": f"({reason})" for name, reason in left_out.items()}
    write("store", checks, settings, quick=quick)


if __name__ == "__main__":
    main("--quick" in sys.argv)
