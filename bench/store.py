"""The replay store against the prioritised buffers of PyPI: `python -m bench.store [--quick]` (see requirements/bench.txt).

The same states go to every store in turns, batch by batch as the loop makes them; figures are medians over batches. The
peers keep nothing on disk, so our shard is measured in memory as they are, and also durably (log and fsync), through Ray,
and while it writes a snapshot.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.report import RESULTS, Check, check, median, write
from bench.store_peers import Padded, Peer, installed
from core.config import ReplayConfig
from core.records import Candidate, Outcome, Provenance
from replay.batch import pack, pack_outcomes
from replay.server import Identity, ReplayShard
from replay.shard import Shard
from replay.store import ReplayStore

VOCABULARY, WIDTH, STATES = 32_000, 512, 10  # states per trajectory
BATCH = 512  # trajectories of one iteration: 128 starts x 4 samples
DRAWN = 64  # replayed starts of one iteration
CONFIG = ReplayConfig(shards=1, capacity=100_000_000, per_problem=32, ranking="value", max_gib=1000)
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


def padded(candidates: list[Candidate]) -> tuple[Padded, Any, Any]:
    """The states as the peers want them."""
    lengths = np.concatenate([c.lengths for c in candidates])
    tokens = np.zeros((len(lengths), WIDTH), np.uint16)
    for row, (candidate, length) in enumerate((c, n) for c in candidates for n in c.lengths):
        tokens[row, :length] = candidate.response_ids[:length]
    return tokens, lengths, np.concatenate([c.values for c in candidates]) + np.float32(1e-3)


def timed(timings: Timings, name: str, units: int, action: Callable[[], Any]) -> Any:
    """Run and note the seconds per unit."""
    start = time.perf_counter()
    result = action()
    timings.setdefault(name, []).append((time.perf_counter() - start) / units)
    return result


def draw(shard: Shard, seed: int) -> list[Any]:
    """One batch of a shard in memory, as the driver draws it: groups by mass, then states; repeats are drawn again."""
    rng, masses = np.random.default_rng(seed), shard.masses()[0]
    ends = np.cumsum(masses)
    groups = np.searchsorted(ends, rng.random(DRAWN + DRAWN // 4 + 8) * ends[-1], side="right")
    found = shard.select(shard.draw(0, groups, rng.random(len(groups))))
    return found.take(np.sort(np.unique(found.keys, return_index=True)[1])[:DRAWN]).states()


def compare(trajectories: int, peers: dict[str, Peer]) -> tuple[Timings, Shard]:
    """Add everything to every store in turns; sample and update after each batch."""
    timings: Timings = {}
    shard = Shard(CONFIG, VOCABULARY, "shard")
    rng = np.random.default_rng(1)
    for turn, candidates in enumerate(batches(trajectories)):
        size = STATES * len(candidates)
        timed(timings, "ours add", size, lambda c=candidates: shard.add(pack(c, VOCABULARY)))  # type: ignore[misc]
        states = timed(timings, "ours sample", DRAWN, lambda t=turn: draw(shard, t))  # type: ignore[misc]
        outcomes = [Outcome(s.key, s.problem_id, bool(i % 2), 1) for i, s in enumerate(states)]
        timed(timings, "ours update", DRAWN, lambda o=outcomes: shard.record(pack_outcomes(o)))  # type: ignore[misc]
        rows = padded(candidates) if peers else None
        for name, peer in peers.items():
            if name == "rllib" and turn % 8:
                continue  # it takes its rows one by one in Python; every eighth batch says enough
            timed(timings, f"{name} add", size, lambda p=peer, r=rows: p.add(*r))  # type: ignore[misc]
            drawn = timed(timings, f"{name} sample", DRAWN, lambda p=peer: p.sample(DRAWN))  # type: ignore[misc]
            new = rng.random(DRAWN).astype(np.float32) + np.float32(1e-3)
            timed(timings, f"{name} update", DRAWN, lambda p=peer, d=drawn, v=new: p.update(d, v))  # type: ignore[misc]
    return timings, shard


def against_peers(timings: Timings, peers: dict[str, Peer]) -> list[Check]:
    """Throughput of each operation, ours against the best peer."""
    checks = []
    for action in ("add", "sample", "update"):
        rates = {name: 1 / median(timings[f"{name} {action}"]) for name in ["ours", *peers]}
        checks += [check(f"{action}: {name}", rate, "states/s") for name, rate in rates.items()]
        if peers:
            best = max(rates[name] for name in peers)
            checks.append(check(f"{action}: ours / best peer", rates["ours"] / best, "x", ">=", 5.0, best))
    return checks


def memory(shard: Shard) -> Check:
    """Bytes per state against the goal: 1.2 x its share of the trajectory's tokens, and 64."""
    raw = 2 * shard.arena.live / shard.states
    return check("memory per state", shard.nbytes / shard.states, "bytes", "<=", 1.2 * raw + 64, raw)


def durable(trajectories: int, folder: str) -> list[Check]:
    """One shard with its log: adds, adds while a snapshot is written, disk, recovery."""
    identity = Identity(0, 1, VOCABULARY, "bench")
    shard = ReplayShard(identity, CONFIG, folder)
    plain: list[float] = []
    snapping: list[float] = []
    everything = list(batches(trajectories))
    half = len(everything) * 3 // 4
    for turn, candidates in enumerate(everything):
        if turn == half:
            shard.compact()
        operation = pack(candidates, VOCABULARY)
        start = time.perf_counter()
        shard.write(turn + 1, operation)
        seconds = (time.perf_counter() - start) / (STATES * len(candidates))
        busy = shard._compaction is not None and shard._compaction.is_alive()
        if turn >= half // 2:
            (snapping if busy else plain).append(seconds)
    shard.compact()
    shard.close()
    used = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    start = time.perf_counter()
    extent = ReplayShard(identity, CONFIG, folder).extent()
    seconds = time.perf_counter() - start
    raw = 2 * sum(len(c.response_ids) for batch in everything for c in batch) / extent.states
    rate = 1 / float(np.mean(plain))
    checks = [
        check("add with log and fsync", rate, "states/s"),
        check("disk per state", used / extent.states, "bytes", "<=", 1.2 * raw + 64, raw),
        check(f"recovery of {extent.states:,} states", seconds, "s", "<=", 10.0),
    ]
    if snapping:
        during = 1 / float(np.mean(snapping))
        checks.append(check("adds during a snapshot / without", during / rate, "x", ">=", 0.9, rate))
    return checks


def over_ray(trajectories: int) -> list[Check]:
    """The whole store through Ray actors, with log and fsync, on 1, 2 and 4 shards."""
    import ray

    checks = []
    ray.init(address="local", num_cpus=2, include_dashboard=False, namespace="retrospect", log_to_driver=False)
    for shards in (1, 2, 4):
        with tempfile.TemporaryDirectory() as folder:
            config = CONFIG.model_copy(update={"shards": shards})
            store = ReplayStore(config, vocabulary=VOCABULARY, directory=folder, fingerprint="bench")
            timings: Timings = {}
            for turn, candidates in enumerate(batches(trajectories)):
                timed(timings, "add", STATES * len(candidates), partial(store.add, candidates))
                timed(timings, "sample", DRAWN, partial(store.sample, DRAWN, turn))
            store.close()
        checks += [check(f"Ray, {shards} shards: {a}", 1 / median(t), "states/s") for a, t in timings.items()]
    ray.shutdown()
    return checks


def growth(sizes: list[int]) -> list[Check]:
    """Milliseconds of one sample of 64 states against the number of states held."""
    checks, costs = [], []
    shard = Shard(CONFIG, VOCABULARY, "shard")
    held, made = 0, batches(max(sizes) // STATES)
    for size in sizes:
        while held < size and (candidates := next(made, None)):
            shard.add(pack(candidates, VOCABULARY))
            held += STATES * len(candidates)
        timings: Timings = {}
        for seed in range(60):
            timed(timings, "sample", 1, lambda s=seed: draw(shard, s))  # type: ignore[misc]
        costs.append(1e3 * median(timings["sample"]))
        checks.append(check(f"sample of {DRAWN} from {size:,} states", costs[-1], "ms"))
    plot(sizes, costs)
    allowed = np.log(sizes[-1]) / np.log(sizes[0])
    name = f"growth of a sample's cost from {sizes[0]:,} to {sizes[-1]:,} states (log n: {allowed:.2f})"
    return [*checks, check(name, costs[-1] / costs[0], "x", "<=", float(allowed))]


def plot(sizes: list[int], costs: list[float]) -> None:
    """bench/results/store.png: measured cost of a sample, and log n through its first point."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4))
    axes.plot(sizes, costs, "o-", label=f"sample of {DRAWN}")
    axes.plot(sizes, [costs[0] * np.log(n) / np.log(sizes[0]) for n in sizes], "--", label="log n")
    axes.set(xscale="log", xlabel="states held", ylabel="milliseconds", ylim=(0, None))
    axes.legend()
    figure.tight_layout()
    figure.savefig(RESULTS / "store.png", dpi=120)


def main(quick: bool) -> None:
    """Run and write the results."""
    trajectories = 4_000 if quick else 100_000
    peers = installed(STATES * trajectories, WIDTH)
    timings, shard = compare(trajectories, peers)
    checks = [*against_peers(timings, peers), memory(shard)]
    del shard, timings, peers
    with tempfile.TemporaryDirectory() as folder:
        checks += durable(trajectories, folder)
    checks += over_ray(trajectories // 4)
    checks += growth([10_000, 40_000] if quick else [10_000, 100_000, 1_000_000, 10_000_000])
    settings: dict[str, str | int | float] = {
        "trajectories": trajectories,
        "states": STATES * trajectories,
        "batch": BATCH * STATES,
        "drawn": DRAWN,
    }
    write("store", checks, settings, quick=quick)


if __name__ == "__main__":
    main("--quick" in sys.argv)
