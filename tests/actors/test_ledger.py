"""The ledger without engines: nothing is lost, nothing counts twice."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.jobs import Continuation, Engine, Job
from actors.ledger import Ledger, check_room, sample_limit
from actors.local import LocalPool
from core.config import ResolvedRollout
from core.errors import ConfigError
from core.records import Finish, FloatArray, IntArray, Sampling, Start
from core.weights import Acknowledgement, Weights

BUDGET = 10
SAMPLING = Sampling(1.0, 1.0, BUDGET)


def start(name: str, prefix: int = 0, samples: int = 2, prompt: int = 3) -> Start:
    return Start(
        name, f"problem of {name}", np.arange(prompt, dtype=np.int32), np.arange(prefix, dtype=np.int32), samples, 7
    )


def answer(start_id: str, sample: int, by: int = 0) -> Continuation:
    """Continuation whose tokens say which engine made it."""
    length = 1 + sample
    return Continuation(start_id, sample, [by] * length, [-0.1 * by] * length, [by + 1] * length, Finish.STOP)


def answers(jobs: Sequence[Job], by: int = 0) -> list[Continuation]:
    return [answer(job.start.id, sample, by) for job in jobs for sample in job.samples]


def test_a_trajectory_has_what_the_engine_sent() -> None:
    ledger = ledger_of([start("a", samples=3)])
    ledger.accept(answers(ledger.take("e", 3), by=4))
    last = ledger.collect("a")[2]
    assert (last.sample, last.tokens.tolist(), last.versions.tolist()) == (2, [4, 4, 4], [5, 5, 5])
    assert [array.dtype.name for array in (last.tokens, last.logprobs, last.versions)] == ["int32", "float32", "int32"]
    assert last.logprobs.tolist() == [np.float32(-0.4)] * 3


def test_a_sample_that_its_environment_dropped_is_left_out_and_told_once() -> None:
    ledger = ledger_of([start("a", samples=3), start("b", samples=1)])
    first, lost, last, all_lost = answers(ledger.take("e", 9))
    gone = [replace(one, tokens=[], dropped="it raised") for one in (lost, all_lost)]
    told = ledger.accept([first, *gone, last, gone[0]])
    assert [(of.id, one.sample, one.dropped) for of, one in told] == [("a", 1, "it raised"), ("b", 0, "it raised")]
    assert [one.sample for one in ledger.collect("a")] == [0, 2]
    assert ledger.collect("b") == []
    assert (ledger.open, ledger.running) == (0, 0)


class Lossy(Engine):
    """Answers every sample; the states of one start cannot be rebuilt."""

    def __init__(self, lost: str) -> None:
        self._lost, self._done = lost, []

    def load_weights(self, weights: Weights) -> Acknowledgement:
        raise NotImplementedError

    def sequence_logprobs(self, sequences: Sequence[IntArray]) -> list[FloatArray]:
        raise NotImplementedError

    def step(self) -> None:
        raise NotImplementedError

    abort = close = step

    def rest(self) -> None:
        """Nothing to free."""

    @property
    def unfinished(self) -> int:
        return 0

    def add(self, jobs: Iterable[Job]) -> None:
        for one in answers(list(jobs)):
            gone = one.start_id == self._lost
            self._done.append(replace(one, tokens=[], dropped="it raised", state_lost=True) if gone else one)


def test_a_start_whose_state_is_lost_in_this_process_is_quarantined_once() -> None:
    told: list[tuple[str, str]] = []
    config = ResolvedRollout(actors=1, max_prompt_tokens=8, max_response_tokens=BUDGET, max_running=4)
    pool = LocalPool(Lossy("a"), config, lambda start, reason: told.append((start.id, reason)))
    found = pool.generate([start("a", prefix=2), start("b")], SAMPLING)
    assert [one.start.id for one in found] == ["b", "b"]
    assert (told, pool.quarantined, pool.dropped) == ([("a", "it raised")], 1, 2)
    assert [one.id for one in pool.take_lost()] == ["a"]


def ledger_of(starts: Sequence[Start]) -> Ledger:
    ledger = Ledger()
    ledger.add(starts, SAMPLING)
    return ledger


def names(jobs: Sequence[Job]) -> list[tuple[str, tuple[int, ...]]]:
    return [(job.start.id, job.samples) for job in jobs]


def test_the_longest_go_out_first_and_a_start_is_divided_to_fit() -> None:
    ledger = ledger_of([start("long", prefix=1), start("short", prefix=8), start("longest", samples=3)])
    assert names(ledger.take("e", 4)) == [("longest", (0, 1, 2)), ("long", (0,))]
    assert names(ledger.take("e", 9)) == [("long", (1,)), ("short", (0, 1))]
    assert (ledger.waiting, ledger.open, ledger.take("e", 9)) == (0, 7, [])


def test_urgent_calls_come_first() -> None:
    ledger = ledger_of([start("first"), start("second", prefix=1)])
    ledger.add([start("later", samples=1)], SAMPLING)
    greedy = Sampling(0.0, 1.0, BUDGET)
    urgent = [start("urgent", samples=1, prefix=5)]
    ledger.add(urgent, greedy, urgent=True)
    jobs = ledger.take("e", 99)
    assert names(jobs) == [("urgent", (0,)), ("first", (0, 1)), ("second", (0, 1)), ("later", (0,))]
    assert [(job.sampling, job.budget) for job in jobs[:3]] == [(greedy, 5), (SAMPLING, 10), (SAMPLING, 9)]
    assert not ledger.finished(urgent)
    ledger.accept(answers(jobs[:1]))
    assert (ledger.finished(urgent), ledger.complete) == (True, ["urgent"])
    assert [one.sample for one in ledger.collect("urgent")] == [0]
    assert ledger.complete == []


def test_what_a_dead_engine_had_goes_out_again_without_its_finished_samples() -> None:
    ledger = ledger_of([start("a", samples=3), start("b"), start("c", prefix=1)])
    ledger.take("dead", 5)
    ledger.accept([answer("a", 1)])
    assert ledger.requeue("dead") is None
    assert ledger.waiting == 6  # 3 + 2 + 2 samples, one of them done
    assert names(ledger.take("new", 9)) == [("a", (0, 2)), ("b", (0, 1)), ("c", (0, 1))]


def test_a_second_result_for_the_same_sample_changes_nothing() -> None:
    ledger = ledger_of([start("a", samples=1)])
    ledger.take("first", 1)
    ledger.accept([answer("a", 0, by=1)])
    ledger.accept([answer("a", 0, by=2)])
    assert ledger.open == 0
    assert [one.tokens.tolist() for one in ledger.collect("a")] == [[1]]
    ledger.accept([answer("a", 0, by=3)])  # nor one for an unknown start
    assert (ledger.open, ledger.complete) == (0, [])


def test_the_start_that_makes_engines_raise_is_found_on_its_second_try_and_the_others_are_cleared() -> None:
    starts = [start(name, samples=2) for name in ("a", "poison", "b", "c")]
    ledger = ledger_of(starts)
    assert len(ledger.take("x", 99)) == 4
    assert ledger.requeue("x", raised=True) is None  # first try: one of four
    tried: list[str] = []
    quarantined: Start | None = None
    while quarantined is None:
        (job,) = ledger.take("x", 99)  # one suspect at a time
        tried.append(job.start.id)
        if job.start.id == "poison":
            quarantined = ledger.requeue("x", raised=True)
        else:
            ledger.accept(answers([job]))
    assert (quarantined.id, tried) == ("poison", ["a", "poison"])
    assert [job.start.id for job in ledger.take("x", 99)] == ["b", "c"]  # cleared: together
    assert ledger.complete == ["a", "poison"]
    assert ledger.collect("poison") == []


def test_suspects_are_tried_alone_and_a_death_makes_none() -> None:
    ledger = ledger_of([start("a", samples=1), start("b", samples=1)])
    ledger.take("x", 2)
    ledger.requeue("x", raised=True)
    ledger.add([start("new", samples=1)], SAMPLING)
    assert [job.start.id for job in ledger.take("x", 9)] == ["a"]
    assert ledger.take("x", 9) == []  # nothing joins it
    assert [job.start.id for job in ledger.take("y", 9)] == ["b"]
    assert ledger.requeue("x") is None  # killed
    assert [job.start.id for job in ledger.take("z", 1)] == ["a"]
    assert ledger.requeue("z") is None
    cause = ledger.requeue("y", raised=True)
    assert cause is not None
    assert cause.id == "b"
    assert [job.start.id for job in ledger.take("x", 9)] == ["a", "new"]


def test_a_suspect_does_not_join_others_and_is_not_dropped_together_with_them() -> None:
    ledger = ledger_of([start("split", samples=2), start("poison", samples=1)])
    assert names(ledger.take("x", 1)) == [("split", (0,))]
    assert names(ledger.take("y", 9)) == [("split", (1,)), ("poison", (0,))]
    ledger.requeue("x", raised=True)  # "split" is a suspect, and in "y" there is another start
    assert ledger.requeue("y", raised=True) is None
    assert names(ledger.take("x", 9)) == [("split", (0,))]
    ledger.add([start("new", samples=1)], SAMPLING)
    assert names(ledger.take("x", 9)) == []
    assert names(ledger.take("y", 9)) == [("poison", (0,))]
    assert names(ledger.take("z", 9)) == [("new", (0,))]  # the other sample of "split" waits for the first
    cause = ledger.requeue("y", raised=True)
    assert cause is not None
    assert cause.id == "poison"


def test_a_poison_start_that_was_divided_costs_each_engine_once() -> None:
    ledger = ledger_of([start("poison", samples=4), start("a", samples=2)])
    assert names(ledger.take("x", 3)) == [("poison", (0, 1, 2))]
    assert names(ledger.take("y", 3)) == [("poison", (3,)), ("a", (0, 1))]
    ledger.requeue("x", raised=True)
    assert names(ledger.take("x", 9)) == []  # the rest of it is with y, which may raise, too
    ledger.requeue("y", raised=True)
    assert names(ledger.take("x", 9)) == [("poison", (0, 1, 2))]
    assert names(ledger.take("y", 9)) == [("a", (0, 1))]
    cause = ledger.requeue("x", raised=True)
    assert cause is not None
    assert cause.id == "poison"


def test_a_suspect_waits_for_an_engine_that_has_nothing() -> None:
    ledger = ledger_of([start("a", samples=1), start("b", samples=1)])
    ledger.take("x", 1)
    assert names(ledger.take("y", 1)) == [("b", (0,))]
    ledger.requeue("x", raised=True)
    ledger.add([start("c", samples=1)], SAMPLING)
    assert names(ledger.take("y", 9)) == [("c", (0,))]  # and not "a", which is before it
    assert names(ledger.take("x", 9)) == [("a", (0,))]


@given(
    samples=st.lists(st.integers(1, 5), min_size=1, max_size=8),
    moves=st.lists(st.tuples(st.sampled_from("xyz"), st.integers(0, 6), st.booleans(), st.booleans()), max_size=30),
)
def test_whatever_engines_do_every_sample_is_there_once_and_in_order(
    samples: list[int], moves: list[tuple[str, int, bool, bool]]
) -> None:
    starts = [start(f"s{i}", prefix=i % 4, samples=n) for i, n in enumerate(samples)]
    ledger = ledger_of(starts)
    held: dict[str, list[Job]] = {"x": [], "y": [], "z": []}
    quarantined: set[str] = set()
    for engine, room, dies, raised in moves:
        held[engine] += ledger.take(engine, room)
        if dies:
            late = answers(held[engine])  # what it had finished when it was given up; some arrives after all
            cause = ledger.requeue(engine, raised)
            quarantined |= {cause.id} if cause else set()
            if room % 2:
                ledger.accept(late)
            held[engine] = []
    while ledger.open:
        for engine, jobs in held.items():
            ledger.accept(answers([*jobs, *ledger.take(engine, 3)]))
            held[engine] = []
    assert sorted(ledger.complete) == sorted(one.id for one in starts)
    for one in starts:
        found = [trajectory.sample for trajectory in ledger.collect(one.id)]
        assert found == ([] if one.id in quarantined else list(range(one.samples)))
    assert [ledger.in_flight(engine) for engine in held] == [0, 0, 0]


def test_two_starts_of_one_id_are_refused() -> None:
    with pytest.raises(ConfigError, match="same id"):
        ledger_of([start("a"), start("a")])
    ledger = ledger_of([start("a")])
    with pytest.raises(ConfigError, match="same id"):
        ledger.add([start("a")], SAMPLING)


@pytest.mark.parametrize(
    ("bad", "asked", "message"),
    [
        (start("a", prompt=9), BUDGET, r"max_prompt_tokens = 8: the prompt of problem of a has 9 tokens"),
        (start("a", prefix=10), BUDGET, r"max_response_tokens = 10: the replayed prefix of a has 10 tokens"),
        (start("a"), 11, r"max_response_tokens = 10: responses of 11 tokens"),
    ],
)
def test_a_start_that_does_not_fit_is_named(bad: Start, asked: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_room([bad], Sampling(1.0, 1.0, asked), max_prompt_tokens=8, max_response_tokens=BUDGET)


def test_what_waits_in_an_engine_is_little_and_only_while_there_is_plenty() -> None:
    """Two engines that decode 8 samples at once, and may have 8 / 4 = 2 more while 2 x 2 are left for both."""
    for samples, shares in (
        (40, [10, 10]),  # 40 - 8 and (40 - 10) - 8 are at least 4
        (20, [10, 8]),  # (20 - 10) - 8 is not: the last 2 are for whoever is free first
        (11, [6, 5]),  # half of what is open each
    ):
        ledger, found = ledger_of([start("a", samples=samples)]), []
        for engine in ("x", "y"):
            room = sample_limit(0, ledger, engines=2, decoded=8)
            found.append(sum(len(job.samples) for job in ledger.take(engine, room)))
        assert found == shares
    assert ledger.running == 11
    ledger = ledger_of([start("a", samples=40)])
    ledger.take("x", 6)
    assert sample_limit(6, ledger, engines=2, decoded=8) == 10  # 34 - (8 - 6) wait
