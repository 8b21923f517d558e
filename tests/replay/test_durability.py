"""What survives a kill, a torn write and damage; a shard on files against a plain-Python model."""

import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from core.config import ReplayConfig
from core.errors import StoreError
from core.records import Candidate, Outcome, Provenance
from replay.batch import pack, pack_outcomes
from replay.keys import group_of, problem_hash, state_keys
from replay.opening import MANIFEST, Identity
from replay.ops import Evict
from replay.ranking import standing
from replay.server import ReplayShard
from replay.shard import Revaluation
from replay.storage import Folder
from tests.replay.crashes import Mortal, least, unfinished

ROOT = Path(__file__).parents[2]
QUOTA = 4
DECAY = 0.75
PROBLEMS = st.sampled_from(["p", "q", "r"])
EMPTY = np.zeros(2, np.int32), np.zeros(0, np.int32), np.zeros(0, np.float32)  # a trajectory without states


CONFIG = ReplayConfig(per_problem=QUOTA, ranking="value", decay=DECAY)


def server(directory: object, **identity: Any) -> ReplayShard:
    known: dict[str, Any] = {"index": 0, "shards": 1, "vocabulary": 4, "fingerprint": "f"}
    return ReplayShard(Identity(**known | identity), CONFIG, str(directory))


@dataclass
class Held:
    """A state as a plain record."""

    value: float
    version: int
    prefix: tuple[int, ...]
    provenance: int
    tried: int = 0
    solved: int = 0
    wins: float = 0.0
    losses: float = 0.0


def contents(shard: ReplayShard) -> dict[tuple[str, int], Held]:
    """All states by (problem, key)."""
    inner = shard._opened()
    found = inner.select(np.flatnonzero(inner.blocks.states.rows["key"]))
    names = ("value", "version", "provenance", "tried", "solved", "wins", "losses")
    columns = [dict(zip(names, row, strict=True)) for row in found.rows[list(names)].tolist()]
    prefixes = [tuple(prefix.tolist()) for prefix in found.prefixes()]
    every = zip(found.problem_ids, found.keys.tolist(), columns, prefixes, strict=True)
    return {(problem, key): Held(**row, prefix=prefix) for problem, key, row, prefix in every}


def key_of(problem: str, prefix: list[int]) -> int:
    one, length = np.array([1], np.int32), np.array([len(prefix)], np.int32)
    return int(
        state_keys(np.array([problem_hash(problem)], np.uint64), np.array(prefix, np.uint8), length, one, length)[0]
    )


@st.composite
def candidate_lists(draw: st.DrawFn) -> list[Candidate]:
    made = []
    for _ in range(draw(st.integers(1, 3))):
        tokens = draw(st.lists(st.integers(0, 3), min_size=2, max_size=6))
        lengths = sorted(draw(st.sets(st.integers(1, len(tokens) - 1), max_size=4)))
        values = [draw(st.sampled_from([0.0, 0.25, 0.5, 0.75])) for _ in lengths]
        arrays = np.array(tokens, np.int32), np.array(lengths, np.int32), np.array(values, np.float32)
        provenance = draw(st.sampled_from(list(Provenance)))
        made.append(Candidate(draw(PROBLEMS), *arrays, provenance, 0.0, draw(st.integers(0, 3))))
    return made


class ShardMachine(RuleBasedStateMachine):
    """Adds, outcomes, evictions, compactions and crashes at any byte, on a shard and on a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.shard = Mortal(self.folder.name, CONFIG)
        self.model: dict[str, dict[int, Held]] = {}  # problem -> key -> state, oldest first
        self.touched = dict.fromkeys("pqr", 0)  # version up to which a problem's outcomes have decayed
        self.roots = {problem: [np.float32(0), np.float32(0)] for problem in "pqr"}  # decayed wins and losses

    def teardown(self) -> None:
        self.shard.settle()
        self.shard.close()
        self.folder.cleanup()

    @initialize()
    def start(self) -> None:
        self.shard.do(
            pack(
                [Candidate(p, *EMPTY, Provenance.OWN_FAILED, 0.0, 0) for p in "pqr"],
                4,
            )
        )
        self.model = {p: {} for p in "pqr"}
        for p in "pqr":
            self.roots[p][1] += 1

    def rank(self, key: int, state: Held) -> tuple[int, int]:
        arrays = np.array([state.value], np.float32), np.array([state.version], np.int32), np.array([key], np.uint64)
        return int(standing(*arrays)[0]), key

    def model_age(self, problem: str, version: int) -> None:
        late = version - self.touched[problem]
        if late > 0:
            self.touched[problem], factor = version, np.float32(DECAY**late)
            self.roots[problem] = [count * factor for count in self.roots[problem]]
            for state in self.model[problem].values():
                state.wins, state.losses = (float(np.float32(n) * factor) for n in (state.wins, state.losses))

    def model_add(self, candidates: list[Candidate]) -> None:
        for candidate in candidates:
            self.model_age(candidate.problem_id, candidate.version)
        touched = set()
        for candidate in candidates:
            states, origin = self.model[candidate.problem_id], int(candidate.provenance)
            if origin != Provenance.CANONICAL:
                self.roots[candidate.problem_id][0 if origin == Provenance.OWN_SUCCESSFUL else 1] += np.float32(1)
            for length, value in zip(candidate.lengths.tolist(), candidate.values.tolist(), strict=True):
                touched.add(candidate.problem_id)
                prefix = tuple(candidate.response_ids[:length].tolist())
                key = key_of(candidate.problem_id, list(prefix))
                known = states.setdefault(key, Held(value, candidate.version, prefix, origin))
                known.provenance = max(known.provenance, origin)
                if candidate.version >= known.version:
                    known.value, known.version = value, candidate.version
        for problem in touched:
            states = self.model[problem]
            order = {key: place for place, key in enumerate(states)}
            ranked = sorted(states, key=lambda k: (self.rank(k, states[k])[0], order[k]), reverse=True)
            kept = set(ranked[:QUOTA])
            self.model[problem] = {key: state for key, state in states.items() if key in kept}

    @rule(candidates=candidate_lists())
    def add(self, candidates: list[Candidate]) -> None:
        self.shard.do(pack(candidates, 4))
        self.model_add(candidates)

    @rule(
        problem=PROBLEMS,
        place=st.integers(0, 5),
        correct=st.lists(st.booleans(), min_size=1, max_size=3),
        version=st.integers(0, 6),
    )
    def record(self, problem: str, place: int, correct: list[bool], version: int) -> None:
        keys = list(self.model[problem])
        key = keys[place] if place < len(keys) else 12345
        self.shard.do(pack_outcomes([Outcome(key, problem, c, version) for c in correct]))
        self.model_age(problem, version)
        if place < len(keys):
            state = self.model[problem][key]
            state.tried, state.solved = state.tried + len(correct), state.solved + sum(correct)
            for won in correct:
                state.wins, state.losses = (
                    float(np.float32(n) + x) for n, x in ((state.wins, won), (state.losses, not won))
                )

    @rule(problem=PROBLEMS, place=st.integers(0, 5), value=st.sampled_from([0.125, 0.625]), version=st.integers(0, 6))
    def revalue(self, problem: str, place: int, value: float, version: int) -> None:
        keys = list(self.model[problem])
        key = keys[place] if place < len(keys) else 12345
        columns = np.array([key], np.uint64), np.array([value], np.float32), np.array([version], np.int32)
        self.shard.do(Revaluation([problem], *columns))
        if place < len(keys) and version >= self.model[problem][key].version:
            self.model[problem][key].value, self.model[problem][key].version = value, version

    @rule(count=st.integers(1, 4))
    def evict(self, count: int) -> None:
        everything = [
            (self.rank(key, state), problem) for problem, states in self.model.items() for key, state in states.items()
        ]
        self.shard.do(least(self.shard, count))
        for (_, key), problem in sorted(everything)[:count]:
            del self.model[problem][key]

    @rule(changes=st.integers(0, 16))
    def compact(self, changes: int) -> None:
        """It rests before some change of a file; the process goes on, and may die before the compaction has."""
        self.shard.compact_to(changes)

    @rule(candidates=candidate_lists(), share=st.floats(0, 1))
    def crash_in_a_write(self, candidates: list[Candidate], share: float) -> None:
        """The process dies after any number of bytes of a write; all of them: the write counts."""
        if self.shard.die(pack(candidates, 4), share):
            self.model_add(candidates)
        self.shard = Mortal(self.folder.name, CONFIG)

    @rule(seed=st.integers(0, 10), n=st.integers(1, 5))
    def sample(self, seed: int, n: int) -> None:
        expected = {key for states in self.model.values() for key in states}
        shard = self.shard._opened()
        where, _ = shard.race(0, n, seed, np.zeros(0, np.uint64))
        keys = shard.select(where).keys.tolist()
        assert len(set(keys)) == len(keys) == min(n, len(expected))
        assert set(keys) <= expected
        masses = shard.masses()[0]
        for group in np.flatnonzero(masses).tolist():  # of one problem each
            here = (np.cumsum(masses)[group] - masses[group] * (1 - seed / 11)) / masses.sum()
            states, _ = shard.draw(0, np.cumsum(masses), np.array([here]), 1)
            assert group_of(states.problem_ids[0]) == group
            assert int(states.keys[0]) in self.model[states.problem_ids[0]]

    @invariant()
    def same_states(self) -> None:
        expected = {(p, key): state for p, states in self.model.items() for key, state in states.items()}
        assert contents(self.shard) == expected
        inner = self.shard._opened()
        for p, counts in self.roots.items():
            problem = inner.blocks.problems.rows[inner.numbers[p]]
            assert [problem["wins"], problem["losses"], problem["touched"]] == [*counts, self.touched[p]]
        rows = inner.trajectories.rows
        assert inner.arena.live == rows["size"][inner.references.rows > 0].sum()
        assert inner.states == inner.replayable().sum() == len(expected)


TestShardMachine = ShardMachine.TestCase
TestShardMachine.settings = settings(max_examples=40, stateful_step_count=15, deadline=None)


def filled(directory: object, writes: int = 5) -> ReplayShard:
    shard = server(directory)
    rng = np.random.default_rng(0)
    for turn in range(writes):
        tokens = rng.integers(0, 4, 8).astype(np.int32)
        states = np.array([2, 5], np.int32), np.array([0.1, 0.2], np.float32)
        shard.write(turn + 1, pack([Candidate(f"p{turn}", tokens, *states, Provenance.OWN_FAILED, 0.0, turn)], 4))
    return shard


def test_a_repeated_write_counts_once(tmp_path: Path) -> None:
    shard = filled(tmp_path)
    before = contents(shard)
    shard.write(5, least(shard, 3))
    assert contents(shard) == before
    with pytest.raises(StoreError, match="asked for write 9 after write 5; another driver uses this store"):
        shard.write(9, Evict(0, 0))


def test_new_values_for_a_shard_without_states_can_be_read_again(tmp_path: Path) -> None:
    """Its problem is known, its states were evicted while the critic valued them."""
    shard = filled(tmp_path, writes=1)
    states = shard._opened().select(np.arange(2))
    shard.close()
    fresh = server(tmp_path / "fresh")
    fresh.write(1, pack([Candidate("p0", *EMPTY, Provenance.OWN_FAILED, 0.0, 0)], 4))
    fresh.write(2, Revaluation(states.problem_ids, states.keys, states.values, states.rows["version"]))
    assert contents(fresh) == contents(server(tmp_path / "fresh")) == {}


def test_compaction_keeps_everything_and_drops_the_old_log(tmp_path: Path) -> None:
    shard = filled(tmp_path)
    before = contents(shard)
    shard.compact()
    shard.write(6, least(shard, 1))
    shard.close()
    names = sorted(path.name for path in (tmp_path / "shard-0").iterdir())
    assert [n for n in names if n.startswith("snapshot-")] == [
        f"snapshot-0000000000000005-0-{table}.parquet" for table in ("problems", "states", "trajectories")
    ]
    after = contents(server(tmp_path))
    assert len(after) == len(before) - 1
    assert after.items() <= before.items()


def test_a_snapshot_that_cannot_be_written_is_reported_and_loses_nothing(tmp_path: Path) -> None:
    shard = filled(tmp_path)
    before = contents(shard)
    (tmp_path / "shard-0" / "snapshot-0000000000000005-0-states.parquet").mkdir()  # the name is taken
    shard.compact()
    shard._wait_for_compaction()
    with pytest.raises(
        StoreError, match=r"replay-shard-0: compaction failed: cannot write .*snapshot-0000000000000005-0-\*"
    ):
        shard.write(6, Evict(0, 0))
    assert contents(server(tmp_path)) == before


def test_an_unwritable_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(
        StoreError, match=r"cannot create the folder .*/file/shard-0: .*; check the path, its permissions"
    ):
        server(tmp_path / "file").extent()


FULL_DISK = """
import resource, sys
from tests.replay.test_durability import contents, filled, server
from core.errors import StoreError
from tests.replay.crashes import least
shard = filled(sys.argv[1])
before = contents(shard)
used = sum(p.stat().st_size for p in __import__("pathlib").Path(sys.argv[1]).rglob("log-*"))
resource.setrlimit(resource.RLIMIT_FSIZE, (used + 40, resource.RLIM_INFINITY))  # the next write does not fit
try:
    shard.write(6, least(shard, 3))
except StoreError as error:
    print(error)
assert contents(shard) == before
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
shard.write(6, least(shard, 3))
shard.close()
assert len(contents(server(sys.argv[1]))) == len(before) - 3
"""


def test_a_full_disk_is_one_clear_line_and_loses_nothing(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "cannot write" in result.stdout
    assert "File too large; check the path, its permissions and the free space" in result.stdout


WRITER = """
import sys, time
import numpy as np
from core.records import Candidate, Provenance
from replay import server as service, snapshot
from replay.batch import pack
from replay.storage import Folder
from tests.replay.crashes import unfinished
from tests.replay.test_durability import server
snapshot.PART, service.SHARE = 16, 1e-6  # a compaction rests for ever after its first part, until the next one wants to begin
shard, folder = server(sys.argv[1]), Folder(sys.argv[1]).child("shard-0")
rng = np.random.default_rng(1)
for turn in range(1, int(sys.argv[2]) + 2):
    tokens = rng.integers(0, 4, 300).astype(np.int32)
    states = np.arange(1, 5, dtype=np.int32), np.zeros(4, np.float32)
    shard.write(turn, pack([Candidate(f"p{turn}", tokens, *states, Provenance.OWN_FAILED, 0.0, 0)], 4))
    if turn % 50 == 0:
        shard.compact()
        while shard._compaction.is_alive() and not unfinished(folder):
            time.sleep(0.001)
    print(turn, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(("acknowledged", "compactions"), [(1, 0), (60, 1), (137, 2)])
def test_every_acknowledged_write_survives_kill_9(tmp_path: Path, acknowledged: int, compactions: int) -> None:
    """Killed in the write after the last one that is waited for, at the latest, while the last compaction is under way."""
    command = [sys.executable, "-c", WRITER, str(tmp_path / "live"), str(acknowledged)]
    with (
        (tmp_path / "errors.txt").open("w") as errors,
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors) as process,
    ):
        assert process.stdout is not None
        seen = 0
        for line in process.stdout:
            seen = int(line)
            if seen >= acknowledged:
                break
        os.kill(process.pid, signal.SIGKILL)
        seen = max([seen, *(int(line) for line in process.stdout)])
    assert seen >= acknowledged, (tmp_path / "errors.txt").read_text()[-2000:]
    folder = Folder(str(tmp_path / "live" / "shard-0"))
    assert bool(unfinished(folder)) == (compactions > 0)
    assert (MANIFEST in folder.names()) == (compactions > 1)
    problems = {problem for problem, _ in contents(server(tmp_path / "live"))}
    assert {f"p{turn}" for turn in range(1, seen + 1)} <= problems
    assert len(problems) <= seen + 1  # at most the write that was not acknowledged yet
