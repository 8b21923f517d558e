"""Crashes at any change of any file, for every ranking and every kind of write: against a shard without files."""

import tempfile
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from core.config import ReplayConfig
from core.records import Candidate, Outcome, Provenance
from replay import server as service
from replay import snapshot
from replay.batch import pack, pack_outcomes
from replay.log import segments
from replay.opening import Identity, cut
from replay.ops import Operation, Trust, apply
from replay.ranking import RANKINGS
from replay.server import ReplayShard
from replay.shard import Revaluation, Shard
from replay.storage import Folder, Manifest
from replay.store import ReplayStore
from tests.replay.crashes import VOCABULARY, Dead, Gate, Mortal, content, least, unfinished
from tests.replay.test_durability import CONFIG, EMPTY, PROBLEMS, candidate_lists, contents, filled, server
from tests.replay.test_store import candidates, opened

CHANGES = st.integers(0, 32)
"""After which a compaction may rest, of 12 to 18 per piece: tables opened, parts written, tables flushed, manifest, what it replaces."""


class CrashMachine(RuleBasedStateMachine):
    """Writes of every kind, snapshots, restores and crashes, on a shard with files and on one in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.small_parts = pytest.MonkeyPatch()
        self.small_parts.setattr(snapshot, "PART", 1)  # so that writes come between the parts of a snapshot
        self.small_parts.setattr(service, "PIECES_BYTES", 0)

    def teardown(self) -> None:
        self.small_parts.undo()
        if hasattr(self, "shard"):
            self.shard.settle()
            self.shard.close()
        self.folder.cleanup()

    @initialize(ranking=st.sampled_from(sorted(RANKINGS)), pieces=st.sampled_from([1, 2]))
    def start(self, ranking: str, pieces: int) -> None:
        """`pieces`: a snapshot in one, or with r (group 189) in the first of two, p (190) and q (242) in the other."""
        self.small_parts.setattr(service, "cut", lambda many: [range(190), range(190, 256)] if many > 1 else cut(many))
        self.small_parts.setattr(service, "PIECES", pieces)
        self.config = ReplayConfig(per_problem=4, ranking=ranking, decay=0.5)  # type: ignore[arg-type]
        self.shard = Mortal(self.folder.name, self.config)
        self.saves = Folder(f"{self.folder.name}/saved").make().uri
        self.writes: list[Operation] = []
        self.saved: tuple[Manifest, list[Operation]] | None = None
        self.twin = self.replayed([])
        self.write(pack([Candidate(p, *EMPTY, Provenance.OWN_FAILED, 0.0, 0) for p in "pqr"], VOCABULARY))

    def replayed(self, writes: list[Operation]) -> Shard:
        """A shard without files after these writes."""
        shard = Shard(self.config, VOCABULARY, "twin")
        for operation in writes:
            apply(shard, operation)
        return shard

    def done(self, operation: Operation) -> None:
        apply(self.twin, operation)
        self.writes.append(operation)

    def write(self, operation: Operation) -> None:
        self.shard.do(operation)
        self.done(operation)

    def key(self, problem: str, place: int) -> int:
        """Of a state of the problem, or of one that is not there."""
        keys = content(self.twin)["states"][problem][0]
        return int(keys[place]) if place < len(keys) else 12345

    @rule(candidates=candidate_lists())
    def add(self, candidates: list[Candidate]) -> None:
        self.write(pack(candidates, VOCABULARY))

    @rule(
        problem=PROBLEMS,
        place=st.integers(0, 4),
        correct=st.lists(st.booleans(), min_size=1),
        version=st.integers(0, 5),
    )
    def record(self, problem: str, place: int, correct: list[bool], version: int) -> None:
        key = self.key(problem, place)
        self.write(pack_outcomes([Outcome(key, problem, c, version) for c in correct]))

    @rule(problem=PROBLEMS, place=st.integers(0, 4), value=st.sampled_from([0.0, 0.3, 1.0]), version=st.integers(0, 5))
    def revalue(self, problem: str, place: int, value: float, version: int) -> None:
        key = np.array([self.key(problem, place)], np.uint64)
        self.write(Revaluation([problem], key, np.array([value], np.float32), np.array([version], np.int32)))

    @rule(count=st.integers(1, 3))
    def evict(self, count: int) -> None:
        self.write(least(self.twin, count))

    @rule(gate=st.sampled_from([0.0, 0.4, 1.0]))
    def trust(self, gate: float) -> None:
        self.write(Trust(gate))

    @rule(changes=CHANGES)
    def compact(self, changes: int) -> None:
        """It rests before some change; the writes after this are made meanwhile."""
        self.shard.compact_to(changes)

    @rule(changes=CHANGES, meanwhile=candidate_lists(), candidates=candidate_lists(), share=st.floats(0, 1))
    def crash_in_a_compaction(
        self, changes: int, meanwhile: list[Candidate], candidates: list[Candidate], share: float
    ) -> None:
        """After a write that was made meanwhile, in another one."""
        self.compact(changes)
        self.add(meanwhile)
        self.crash_in_a_write(candidates, share)

    @rule(candidates=candidate_lists(), share=st.floats(0, 1))
    def crash_in_a_write(self, candidates: list[Candidate], share: float) -> None:
        """In the middle of a compaction or not. A write that is on disk as a whole counts."""
        operation = pack(candidates, VOCABULARY)
        if self.shard.die(operation, share):
            self.done(operation)
        self.shard = Mortal(self.folder.name, self.config)

    @rule()
    def save(self) -> None:
        tag = f"{len(self.writes)}"
        self.saved = self.shard.save(self.saves, tag), [*self.writes]

    @rule(changes=CHANGES | st.just(100), share=st.floats(0, 1))
    def restore(self, changes: int, share: float) -> None:
        """The process dies before some change to the files, or later: it has then restored everything, or nothing."""
        if self.saved is None:
            return
        part, writes = self.saved
        self.shard.settle()
        self.shard.files.gate = Gate(changes, rests=False)
        before, after = self.twin, self.replayed(writes)
        try:
            self.shard.restore(self.saves, [part])
        except Dead:
            self.shard.abandon(share)
            self.shard = Mortal(self.folder.name, self.config)
            if content(self.shard._opened()) == content(before):
                return
        self.shard.files.gate = Gate()
        self.twin, self.writes = after, [*writes]

    @rule()
    def restore_into_two(self) -> None:
        """Two other shards have together what was saved."""
        if self.saved is None:
            return
        part, writes = self.saved
        with tempfile.TemporaryDirectory() as folder:
            parts = [ReplayShard(Identity(i, 2, VOCABULARY, "f"), self.config, folder) for i in range(2)]
            for shard in parts:
                shard.restore(self.saves, [part])
            found = [content(shard._opened()) for shard in parts]
            for shard in parts:
                shard.close()
        expected = content(self.replayed(writes))
        assert found[0]["states"] | found[1]["states"] == expected["states"]
        assert found[0]["problems"] | found[1]["problems"] == expected["problems"]
        np.testing.assert_array_equal(np.add(found[0]["masses"], found[1]["masses"]), expected["masses"])

    @invariant()
    def same(self) -> None:
        if not hasattr(self, "shard"):
            return
        shard = self.shard._opened()
        assert content(shard) == content(self.twin)
        for pool in range(len(self.twin.masses())):
            drawn = [s.select(s.race(pool, 3, len(self.writes), np.zeros(0, np.uint64))[0]) for s in (shard, self.twin)]
            assert drawn[0].keys.tolist() == drawn[1].keys.tolist()


TestCrashMachine = CrashMachine.TestCase
TestCrashMachine.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_compaction_may_die_at_any_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    """The second one, with a write while it is under way, which was acknowledged, and one more, which was not."""
    monkeypatch.setattr(snapshot, "PART", 2)
    left = set()
    for changes in range(20):
        directory = tmp_path / f"{changes}"
        filled(directory, writes=3).close()
        shard = Mortal(directory, CONFIG)
        shard.compact_to(100)
        for turn in (3, 4, 5):
            if turn == 5:
                shard.compact_to(changes)
            empty = Candidate(f"p{turn}", *EMPTY, Provenance.OWN_FAILED, 0.0, turn)
            shard.do(pack([empty], VOCABULARY))
        before = content(shard._opened())
        whole = shard.die(least(shard, 100), share)
        again = Mortal(directory, CONFIG)
        assert content(again._opened()) == before or whole
        assert len(contents(again)) == (0 if whole else 6)
        left.add((len(unfinished(again.files)), len(segments(again.files))))
        again.close()
    assert len(left) > 5  # it did die at different times


@pytest.mark.parametrize("place", ["the last write", "a write in the middle"])
def test_salvage_may_die_at_any_time(tmp_path: Path, place: str) -> None:
    """Of a snapshot, a log and one more: salvage touches neither before what it writes is whole, and can begin anew."""
    repeated = 0
    for changes in range(19):
        directory = tmp_path / f"{changes}"
        shard = filled(directory)
        shard.compact()
        for sequence in (6, 7, 8):
            empty = Candidate(f"p{sequence}", *EMPTY, Provenance.OWN_FAILED, 0.0, sequence)
            shard.write(sequence, pack([empty], VOCABULARY))
            if sequence == 7:
                shard.close()  # the next one opens a segment of its own
                shard = server(directory)
        shard.close()
        logs = sorted((directory / "shard-0").glob("log-*.arrow"))
        assert len(logs) == 2
        damaged = logs[1] if place == "the last write" else logs[0]
        log = damaged.read_bytes()
        at = len(log) - 1 if place == "the last write" else len(log) // 2  # 8, or 6 of 6 and 7
        damaged.write_bytes(log[:at] + bytes([log[at] ^ 1]) + log[at + 1 :])
        before = {path.name: path.read_bytes() for path in (directory / "shard-0").iterdir()}
        dying = Mortal(directory, CONFIG)
        dying.files.gate = Gate(changes, rests=False)
        try:
            dropped = dying.salvage()
        except Dead:
            dying.abandon(0.5)
            left = {path.name: path.read_bytes() for path in (directory / "shard-0").iterdir()}
            untouched = left.items() >= before.items()
            assert untouched or left["shard.json"] != before["shard.json"]
            dying = Mortal(directory, CONFIG)
            dropped = dying.salvage()
            assert dropped or not untouched
            repeated += untouched
        else:
            assert changes >= 8
        assert len(contents(dying)) == 10
        names = {"p7", "p8"} if place == "a write in the middle" else {"p6", "p7"}
        assert set(dying._opened().names) == {f"p{i}" for i in range(5)} | names
        dying.close()
    assert repeated >= 8  # it did die before the new snapshot was whole
    assert dropped


def test_salvage_goes_on_without_a_piece_of_a_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a compaction that died when half of its four pieces were written: p0 is in the second, p3 in the third, the others last."""
    monkeypatch.setattr(service, "PIECES", 4)
    monkeypatch.setattr(service, "PIECES_BYTES", 0)
    filled(tmp_path, writes=3).close()
    shard = Mortal(tmp_path, CONFIG)
    shard.compact_to(100)
    shard.settle()
    key = int(content(shard._opened())["states"]["p0"][0][0])
    shard.do(pack_outcomes([Outcome(key, "p0", True, 3)]))
    for turn in (3, 4):
        lengths, values = np.array([2], np.int32), np.zeros(1, np.float32)
        added = [Candidate(f"p{p}", np.full(4, turn % 4, np.int32), lengths, values, Provenance.OWN_FAILED, 0.0, turn)
                 for p in (turn, 0)]  # fmt: skip
        shard.do(pack(added, VOCABULARY))
    before = content(shard._opened())
    shard.compact_to(28)  # of 13 per piece: 3 tables, a rest, 3 flushed, the manifest in 3 steps, 3 tables before
    shard.abandon(0.5)
    assert [piece.sequence for piece in shard._pieces] == [6, 6, 3, 3]
    assert content(Mortal(tmp_path, CONFIG)._opened()) == before
    part = shard._pieces[1].part["files"]["states"]["name"]
    (tmp_path / "shard-0" / part).write_bytes(b"")
    again = Mortal(tmp_path, CONFIG)
    lines = again.salvage()
    assert part in lines[0]
    assert lines[0].endswith(": the whole snapshot of groups 64 to 127")
    assert lines[1].endswith("operations 1 to 3 before it are missing")  # of the log, of which p0 needs them
    assert lines[2].endswith("operation 4: replay-shard-0: problem 'p0' is unknown: no trajectory of it was ever added")
    found = content(again._opened())["states"]
    left = {name: states for name, states in before["states"].items() if name != "p0"}
    assert {name: states for name, states in found.items() if name != "p0"} == left
    assert len(found["p0"][0]) == 2  # of writes 5 and 6


@pytest.mark.parametrize("ranking", sorted(RANKINGS))
def test_a_store_goes_on_from_a_checkpoint_exactly(tmp_path: Path, ranking: str) -> None:
    """On three shards instead of one: draws with their outcomes, renewed values, trust, evictions, counts."""

    def turn(store: ReplayStore, number: int) -> list[int]:
        store.add(candidates(60, seed=number % 7))
        drawn = store.sample(20, seed=number)
        store.record([Outcome(s.key, s.problem_id, s.value > 0.5, number + 2) for s in drawn])
        stale = store.top(5, older_than=number + 2)
        store.revalue(stale, np.full(len(stale), 0.5, np.float32), number + 2)
        return [state.key for state in drawn]

    fields = {"local": True, "capacity": 300, "per_problem": 5, "ranking": ranking}
    first = opened(tmp_path / "first", shards=1, **fields)  # type: ignore[arg-type]
    for number in range(5):
        turn(first, number)
    first.save(str(tmp_path / "saved"))
    expected = [turn(first, number) for number in range(5, 12)]
    second = opened(tmp_path / "second", shards=3, **fields)  # type: ignore[arg-type]
    second.restore(str(tmp_path / "saved"))
    assert [turn(second, number) for number in range(5, 12)] == expected
    assert any(expected)
    assert (second._gate, second._window) == (first._gate, first._window)
    left, right = asdict(first.stats()), asdict(second.stats())
    for placed in ("token_bytes", "memory_bytes"):  # dead tokens and free rows, which are those of a shard
        assert min(left.pop(placed), right.pop(placed)) > 0
    assert right == pytest.approx(left)
    first.close()
    second.close()


def test_the_log_is_bounded_by_what_the_shard_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while a compaction takes its time: it hurries when the next one is half due."""
    monkeypatch.setattr(service, "COMPACT_BYTES", 4096)
    monkeypatch.setattr(service, "SHARE", 1e-6)  # a compaction rests for ever between its parts, if nobody hurries it
    monkeypatch.setattr(snapshot, "PART", 16)
    shard = server(tmp_path)
    rng = np.random.default_rng(0)
    compactions = set()
    for turn in range(400):
        tokens = rng.integers(0, 4, 400).astype(np.int32)
        states = np.arange(1, 4, dtype=np.int32), np.zeros(3, np.float32)
        shard.write(turn + 1, pack([Candidate(f"p{turn}", tokens, *states, Provenance.OWN_FAILED, 0.0, 0)], 4))
        if shard._hurry.is_set():
            assert shard._compaction is not None
            shard._compaction.join()  # it does not rest any more
        compactions.add(shard._compaction)
        log = sum(path.stat().st_size for path in (tmp_path / "shard-0").glob("log-*"))
        held = max(4096, shard._opened().content_bytes / 4)
        assert log < 1.5 * held + 4096  # what a compaction covers, what came meanwhile, and a write after each
    assert 5 < len(compactions) < 40, len(compactions)
    shard.close()
