"""A Ray of its own, killed as a whole: driver, GCS, raylet and shards at once, in the middle of writes."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil

from core.config import ReplayConfig
from core.records import Candidate, Outcome, Provenance
from replay.batch import pack
from replay.log import pack_frame, segments
from replay.ops import encode
from replay.storage import Folder
from replay.store import ReplayStore

ROOT = Path(__file__).parents[2]
PROBLEMS = 8  # per write
LIMIT = 240.0  # seconds for a Ray to start and for the first writes
WRITER = """
import os, sys
from functools import partial
import ray
from replay.store import ReplayStore
from tests.replay.test_cluster_kill import CONFIG, outcomes, written
from trainer.cluster import bring_up
local = partial(ray.init, address="local", include_dashboard=False, log_to_driver=False)
bring_up(partial(local, num_cpus=1, namespace="doomed"))
store = ReplayStore(CONFIG, vocabulary=100, directory=sys.argv[1], fingerprint="f")
print(*ray.get([actor.__ray_call__.remote(lambda _: os.getpid()) for actor in store._actors]), flush=True)
for turn in range(100_000):
    store.add(written(turn))
    store.record(outcomes(store, turn))
    print(turn, flush=True)
"""
CONFIG = ReplayConfig(shards=2)


def written(turn: int) -> list[Candidate]:
    """Problems of their own for every write."""
    lengths, values = np.array([2, 4], np.int32), np.array([0.25, 0.5], np.float32)
    tokens = np.random.default_rng(turn).integers(0, 100, 60).astype(np.int32)
    return [Candidate(f"p{turn}-{i}", tokens, lengths, values, Provenance.OWN_FAILED, 0.0, 1) for i in range(PROBLEMS)]


def outcomes(store: ReplayStore, turn: int) -> list[Outcome]:
    """One for a state of every problem of this write."""
    mine = {f"p{turn}-{i}" for i in range(PROBLEMS)}
    states = {state.problem_id: state for state in store.top(10**6) if state.problem_id in mine}
    return [Outcome(state.key, name, True, 1) for name, state in states.items()]


def kill_all(driver: psutil.Process) -> dict[int, str]:
    """Kill a process and all its descendants at once; their ids and names."""
    found = [driver, *driver.children(recursive=True)]
    names: dict[int, str] = {}
    for process in found:  # any of them may end by itself meanwhile
        with suppress(psutil.NoSuchProcess):
            names[process.pid] = process.name()
    for process in found:  # and ends with the driver, which goes first
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
    psutil.wait_procs(found, timeout=LIMIT)
    assert not any(alive(process) for process in found)
    return names


def alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def end(driver: psutil.Process) -> None:
    """Kill a process that writes nothing any more, with its descendants; whoever reads from it meets the end."""
    with suppress(psutil.NoSuchProcess):
        kill_all(driver)


def test_a_cluster_that_is_killed_as_a_whole_loses_nothing_acknowledged(ray_cluster: None, tmp_path: Path) -> None:
    live = tmp_path / "live"
    command = [sys.executable, "-c", WRITER, str(live)]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    with (
        (tmp_path / "errors.txt").open("w") as errors,
        subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=errors) as process,
    ):
        assert process.stdout is not None
        driver = psutil.Process(process.pid)
        limit = threading.Timer(LIMIT, end, [driver])
        limit.start()
        try:
            shards = [int(pid) for pid in process.stdout.readline().split()]
            acknowledged = -1
            for line in process.stdout:
                acknowledged = int(line)
                if acknowledged >= 20:
                    break
            assert acknowledged >= 20, (tmp_path / "errors.txt").read_text()[-2000:]
            killed = kill_all(driver)
            acknowledged = max([acknowledged, *(int(line) for line in process.stdout)])
        finally:
            limit.cancel()
            limit.join()
    assert {*shards, process.pid} <= set(killed)
    assert {"gcs_server", "raylet"} <= set(killed.values())
    tear(Folder(str(live)).child("shard-0"))
    store = ReplayStore(CONFIG, vocabulary=100, directory=str(live), fingerprint="f")  # on the cluster of the tests
    try:
        states = store.top(10**6)
        held = {state.problem_id for state in states}
        wanted = {candidate.problem_id for turn in range(acknowledged + 1) for candidate in written(turn)}
        assert wanted <= held
        assert len(held) <= len(wanted) + PROBLEMS  # at most the write that was under way
        assert store.stats().outcomes >= len(wanted)
        store.add(written(10**6))  # and goes on
        assert len(store) == len(states) + 2 * PROBLEMS
    finally:
        store.close()


def tear(folder: Folder) -> None:
    """As if the machine had gone down in the middle of the next write: half a frame at the end of the log."""
    last = segments(folder)[-1]
    frame = b"".join(pack_frame(10**6, *encode(pack(written(10**7), 100))))
    with open(folder.where(last), "ab") as file:
        file.write(frame[: len(frame) // 2])
