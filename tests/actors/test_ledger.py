"""The books of the pool, without engines: nothing is lost, nothing counts twice."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.flat import Continuation, FlatBatch, Job, pack, unpack
from actors.ledger import UNBOUNDED, Guilty, Ledger, check_room, share, stretch
from core.errors import ConfigError
from core.records import Finish, Start
from core.sampling import Sampling

BUDGET = 10
SAMPLING = Sampling(1.0, 1.0, BUDGET)


def start(name: str, prefix: int = 0, samples: int = 2, prompt: int = 3) -> Start:
    return Start(
        name, f"problem of {name}", np.arange(prompt, dtype=np.int32), np.arange(prefix, dtype=np.int32), samples, 7
    )


def answer(start_id: str, sample: int, by: int = 0) -> Continuation:
    """Continuation whose tokens say which engine made it."""
    length = 1 + sample
    tokens = np.full(length, by, dtype=np.int32)
    return Continuation(start_id, sample, tokens, -tokens.astype(np.float32), tokens + 1, Finish.STOP)


def answers(jobs: Sequence[Job], by: int = 0) -> FlatBatch:
    return pack([answer(job.start.id, sample, by) for job in jobs for sample in job.samples])


def test_a_packed_batch_is_flat_and_unpacks_to_the_same() -> None:
    ones = [answer("a", 2, by=4), answer("b", 0, by=5)]
    batch = pack(ones)
    assert batch.ends.tolist() == [3, 4]  # 3 tokens, then 1
    assert batch.tokens.tolist() == [4, 4, 4, 5]
    for before, after in zip(ones, unpack(batch), strict=True):
        assert (after.start_id, after.sample, after.finish) == (before.start_id, before.sample, before.finish)
        assert (after.tokens.tolist(), after.logprobs.tolist()) == (before.tokens.tolist(), before.logprobs.tolist())
        assert after.versions.tolist() == before.versions.tolist()
    assert len(pack([])) == 0


def books(starts: Sequence[Start], sampling: Sampling = SAMPLING) -> Ledger:
    ledger = Ledger()
    ledger.add(starts, sampling)
    return ledger


def take(ledger: Ledger, engine: str, samples: int, tokens: int = UNBOUNDED) -> list[Job]:
    work = ledger.take(engine, samples, tokens)
    return [] if work is None else work.jobs


def names(jobs: Sequence[Job]) -> list[tuple[str, tuple[int, ...]]]:
    return [(job.start.id, job.samples) for job in jobs]


def test_the_longest_go_out_first_and_a_start_is_divided_to_fit() -> None:
    ledger = books([start("long", prefix=1), start("short", prefix=8), start("longest", samples=3)])
    assert names(take(ledger, "e", 4)) == [("longest", (0, 1, 2)), ("long", (0,))]
    assert names(take(ledger, "e", 9)) == [("long", (1,)), ("short", (0, 1))]
    assert (ledger.waiting, ledger.open, ledger.take("e", 9)) == (0, 7, None)


def test_tokens_in_flight_are_bounded_but_nothing_is_too_long_for_an_empty_engine() -> None:
    ledger = books([start("a", samples=5)])  # a sample occupies 3 + 10 tokens
    assert names(take(ledger, "e", 9, tokens=27)) == [("a", (0, 1))]
    assert (ledger.held("e").samples, ledger.held("e").tokens) == (2, 26)
    assert take(ledger, "e", 9, tokens=38) == []  # 26 + 13 = 39
    ledger.accept(pack([answer("a", 0)]))
    assert names(take(ledger, "e", 9, tokens=38)) == [("a", (2,))]  # 13 + 13
    assert names(take(ledger, "other", 9, tokens=5)) == [("a", (3,))]


def test_urgent_calls_come_first_and_a_turn_is_drawn_alike() -> None:
    ledger = books([start("first"), start("second", prefix=1)])
    ledger.add([start("later", samples=1)], SAMPLING)
    greedy = Sampling(0.0, 1.0, BUDGET)
    urgent = ledger.add([start("urgent", samples=1, prefix=5)], greedy, urgent=True)
    work = ledger.take("e", 99)
    assert work is not None
    assert (names(work.jobs), work.sampling) == ([("urgent", (0,))], greedy)
    assert names(take(ledger, "e", 99)) == [("first", (0, 1)), ("second", (0, 1)), ("later", (0,))]
    assert urgent.left == 1
    ledger.accept(answers([Job(start("urgent"), (0,))]))
    assert (urgent.left, ledger.complete) == (0, ["urgent"])
    assert [one.sample for one in ledger.collect("urgent")] == [0]
    assert ledger.complete == []


def test_what_a_dead_engine_had_goes_out_again_without_its_finished_samples() -> None:
    ledger = books([start("a", samples=3), start("b"), start("c", prefix=1)])
    take(ledger, "dead", 5)
    ledger.accept(pack([answer("a", 1)]))
    assert ledger.give_back("dead") is None
    assert ledger.waiting == 6  # 3 + 2 + 2 samples, one of them done
    assert names(take(ledger, "new", 9)) == [("a", (0, 2)), ("b", (0, 1)), ("c", (0, 1))]


def test_a_second_result_for_the_same_sample_changes_nothing() -> None:
    ledger = books([start("a", samples=1)])
    take(ledger, "first", 1)
    assert ledger.accept(pack([answer("a", 0, by=1)])) == 1
    assert ledger.accept(pack([answer("a", 0, by=2)])) == 0
    assert [one.tokens.tolist() for one in ledger.collect("a")] == [[1]]
    assert ledger.accept(pack([answer("a", 0, by=3)])) == 0  # nor one for what is not in the books


def test_the_start_that_makes_engines_raise_is_found_on_its_second_try_and_the_others_are_cleared() -> None:
    starts = [start(name, samples=2) for name in ("a", "poison", "b", "c")]
    ledger = books(starts)
    assert len(take(ledger, "x", 99)) == 4
    assert ledger.give_back("x", raised=True) is None  # first try: one of four
    tried: list[str] = []
    quarantined: Guilty | None = None
    while quarantined is None:
        (job,) = take(ledger, "x", 99)  # one suspect at a time
        tried.append(job.start.id)
        if job.start.id == "poison":
            quarantined = ledger.give_back("x", raised=True)
        else:
            ledger.accept(answers([job]))
    assert (quarantined.start.id, quarantined.before, tried) == ("poison", ["x"], ["a", "poison"])
    assert [job.start.id for job in take(ledger, "x", 99)] == ["b", "c"]  # cleared: together
    assert ledger.complete == ["a", "poison"]
    assert ledger.collect("poison") == []


def test_suspects_travel_alone_and_a_death_accuses_nobody() -> None:
    ledger = books([start("a", samples=1), start("b", samples=1)])
    take(ledger, "x", 2)
    ledger.give_back("x", raised=True)
    ledger.add([start("new", samples=1)], SAMPLING)
    assert [job.start.id for job in take(ledger, "x", 9)] == ["a"]
    assert take(ledger, "x", 9) == []  # nothing joins it
    assert [job.start.id for job in take(ledger, "y", 9)] == ["b"]
    assert ledger.give_back("x") is None  # killed
    assert [job.start.id for job in take(ledger, "z", 1)] == ["a"]
    assert ledger.give_back("z") is None
    guilty = ledger.give_back("y", raised=True)
    assert guilty is not None
    assert (guilty.start.id, guilty.before) == ("b", ["x"])
    assert [job.start.id for job in take(ledger, "x", 9)] == ["a", "new"]


def test_a_suspect_does_not_join_others_and_is_not_condemned_beside_them() -> None:
    ledger = books([start("split", samples=2), start("poison", samples=1)])
    assert names(take(ledger, "x", 1)) == [("split", (0,))]
    assert names(take(ledger, "y", 9)) == [("split", (1,)), ("poison", (0,))]
    ledger.give_back("x", raised=True)  # "split" is a suspect, and with "y" there is another that may be to blame
    assert ledger.give_back("y", raised=True) is None
    assert names(take(ledger, "x", 9)) == [("split", (0,))]
    ledger.add([start("new", samples=1)], SAMPLING)
    assert names(take(ledger, "x", 9)) == []
    assert names(take(ledger, "y", 9)) == [("poison", (0,))]
    assert names(take(ledger, "z", 9)) == [("new", (0,))]  # the other sample of "split" waits for the first
    guilty = ledger.give_back("y", raised=True)
    assert guilty is not None
    assert (guilty.start.id, guilty.before) == ("poison", ["y"])


def test_a_poison_start_that_was_divided_costs_each_engine_once_and_all_of_them_are_known() -> None:
    ledger = books([start("poison", samples=4), start("a", samples=2)])
    assert names(take(ledger, "x", 3)) == [("poison", (0, 1, 2))]
    assert names(take(ledger, "y", 3)) == [("poison", (3,)), ("a", (0, 1))]
    ledger.give_back("x", raised=True)
    assert names(take(ledger, "x", 9)) == []  # the rest of it is with y, which may raise, too
    ledger.give_back("y", raised=True)
    assert names(take(ledger, "x", 9)) == [("poison", (0, 1, 2))]
    assert names(take(ledger, "y", 9)) == [("a", (0, 1))]
    guilty = ledger.give_back("x", raised=True)
    assert guilty is not None
    assert (guilty.start.id, guilty.before) == ("poison", ["x", "y"])


def test_a_suspect_waits_for_an_engine_that_has_nothing() -> None:
    ledger = books([start("a", samples=1), start("b", samples=1)])
    take(ledger, "x", 1)
    assert names(take(ledger, "y", 1)) == [("b", (0,))]
    ledger.give_back("x", raised=True)
    ledger.add([start("c", samples=1)], SAMPLING)
    assert names(take(ledger, "y", 9)) == [("c", (0,))]  # and not "a", which is before it
    assert names(take(ledger, "x", 9)) == [("a", (0,))]


@given(
    samples=st.lists(st.integers(1, 5), min_size=1, max_size=8),
    moves=st.lists(st.tuples(st.sampled_from("xyz"), st.integers(0, 6), st.booleans(), st.booleans()), max_size=30),
)
def test_whatever_engines_do_every_sample_is_there_once_and_in_order(
    samples: list[int], moves: list[tuple[str, int, bool, bool]]
) -> None:
    starts = [start(f"s{i}", prefix=i % 4, samples=n) for i, n in enumerate(samples)]
    ledger = books(starts)
    held: dict[str, list[Job]] = {"x": [], "y": [], "z": []}
    quarantined: set[str] = set()
    for engine, room, dies, raised in moves:
        held[engine] += take(ledger, engine, room)
        if dies:
            late = answers(held[engine])  # what it had finished when it was given up; some arrives after all
            guilty = ledger.give_back(engine, raised)
            quarantined |= {guilty.start.id} if guilty else set()
            if room % 2:
                ledger.accept(late)
            held[engine] = []
    while ledger.open:
        for engine, jobs in held.items():
            ledger.accept(answers([*jobs, *take(ledger, engine, 3)]))
            held[engine] = []
    assert sorted(ledger.complete) == sorted(one.id for one in starts)
    for one in starts:
        found = [trajectory.sample for trajectory in ledger.collect(one.id)]
        assert found == ([] if one.id in quarantined else list(range(one.samples)))
    assert [ledger.held(engine).tokens for engine in held] == [0, 0, 0]


def test_two_starts_of_one_id_are_refused() -> None:
    with pytest.raises(ConfigError, match="same id"):
        books([start("a"), start("a")])
    ledger = books([start("a")])
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
        ledger, found = books([start("a", samples=samples)]), []
        for engine in ("x", "y"):
            room = share(0, ledger, engines=2, decoded=8)
            found.append(sum(len(job.samples) for job in take(ledger, engine, room)))
        assert found == shares
    assert ledger.running == 11
    ledger = books([start("a", samples=40)])
    take(ledger, "x", 6)
    assert share(6, ledger, engines=2, decoded=8) == 10  # 34 - (8 - 6) wait


def test_turns_are_as_short_as_one_driver_bears() -> None:
    assert [stretch(engines) for engines in (1, 400, 9000)] == [0.1, 0.2, 0.5]
