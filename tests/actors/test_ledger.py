"""The books of a generate call, without engines: nothing is lost, nothing counts twice."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.flat import Continuation, FlatBatch, Job, pack, unpack
from actors.ledger import Ledger, check_room
from core.errors import ConfigError
from core.records import Finish, Start
from core.sampling import Sampling

BUDGET = 10


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


def test_the_longest_go_out_first_and_a_start_is_divided_to_fit() -> None:
    ledger = Ledger([start("long", prefix=1), start("short", prefix=8), start("longest", samples=3)], BUDGET)
    taken = ledger.take("e", 4)
    assert [(job.start.id, job.samples) for job in taken] == [("longest", (0, 1, 2)), ("long", (0,))]
    assert [(job.start.id, job.samples) for job in ledger.take("e", 9)] == [("long", (1,)), ("short", (0, 1))]
    assert (ledger.waiting, ledger.finished) == (0, False)


def test_what_a_dead_engine_had_goes_out_again_without_its_finished_samples() -> None:
    ledger = Ledger([start("a", samples=3), start("b")], BUDGET)
    ledger.take("dead", 5)
    ledger.accept(pack([answer("a", 1)]))
    assert ledger.give_back("dead") == 4  # 3 + 2 samples, one of them done
    assert [(job.start.id, job.samples) for job in ledger.take("new", 5)] == [("a", (0, 2)), ("b", (0, 1))]


def test_a_second_result_for_the_same_sample_changes_nothing() -> None:
    ledger = Ledger([start("a", samples=1)], BUDGET)
    ledger.take("first", 1)
    assert ledger.accept(pack([answer("a", 0, by=1)])) == 1
    assert ledger.accept(pack([answer("a", 0, by=2)])) == 0
    assert [one.tokens.tolist() for one in ledger.trajectories()] == [[1]]


@given(
    samples=st.lists(st.integers(1, 5), min_size=1, max_size=8),
    moves=st.lists(st.tuples(st.sampled_from("xyz"), st.integers(0, 6), st.booleans()), max_size=30),
)
def test_whatever_engines_do_every_sample_is_there_once_and_in_order(
    samples: list[int], moves: list[tuple[str, int, bool]]
) -> None:
    starts = [start(f"s{i}", prefix=i % 4, samples=n) for i, n in enumerate(samples)]
    ledger = Ledger(starts, BUDGET)
    held: dict[str, list[Job]] = {"x": [], "y": [], "z": []}
    for engine, room, dies in moves:
        held[engine] += ledger.take(engine, room)
        if dies:
            late = answers(held[engine])  # what it had finished when it was given up; some arrives after all
            ledger.give_back(engine)
            if room % 2:
                ledger.accept(late)
            held[engine] = []
    while not ledger.finished:
        for engine, jobs in held.items():
            ledger.accept(answers([*jobs, *ledger.take(engine, 3)]))
            held[engine] = []
    found = [(one.start.id, one.sample) for one in ledger.trajectories()]
    assert found == [(one.id, i) for one in starts for i in range(one.samples)]


def test_two_starts_of_one_id_are_refused() -> None:
    with pytest.raises(ConfigError, match="same id"):
        Ledger([start("a"), start("a")], BUDGET)


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
