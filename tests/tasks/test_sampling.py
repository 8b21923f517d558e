"""Drawing training problems: every epoch whole, hard ones more often, and exactly resumable."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import CheckpointError
from core.parts.sources import Progress
from core.records import Finish, Problem, Rollout, Start, Verdict
from tasks.sampling import CURSOR, PROBLEMS, Fresh, HardSampler, ProblemSampler, UniformSampler, problem_sampler


def problems(count: int, source: str = "") -> list[Problem]:
    return [Problem(f"{source}{i}", np.array([i], np.int32), "", source=source) for i in range(count)]


@given(st.integers(1, 9), st.lists(st.integers(0, 12), max_size=6), st.integers(0, 3))
def test_the_cursor_resumes_exactly_and_every_epoch_has_every_problem_once(
    size: int, draws: list[int], seed: int
) -> None:
    whole, first = UniformSampler(problems(size), seed), UniformSampler(problems(size), seed)
    drawn = [problem.id for count in draws for problem in whole.sample(count)]
    half = len(draws) // 2
    begun = [problem.id for count in draws[:half] for problem in first.sample(count)]
    second = UniformSampler(problems(size), seed)
    second.restore(json.loads(json.dumps(first.state())))
    assert drawn == begun + [problem.id for count in draws[half:] for problem in second.sample(count)]
    for epoch in range(len(drawn) // size):
        assert Counter(drawn[epoch * size : (epoch + 1) * size]) == Counter(str(i) for i in range(size))


def rollouts(drawn: list[Problem], solved: set[str], replayed: bool = False) -> list[Rollout]:
    """One rollout per problem, correct for the solved ones."""
    empty = np.zeros(0, np.int32)
    starts = [Start(p.id, p.id, p.prompt_ids, empty, 1, 0, state_key=1 if replayed else None) for p in drawn]
    token, logprob = np.zeros(1, np.int32), np.zeros(1, np.float32)
    return [
        Rollout(start, 0, token, logprob, token, Finish.STOP, verdict=Verdict(0.0, start.problem_id in solved))
        for start in starts
    ]


def test_hard_problems_come_five_times_as_often_as_solved_ones() -> None:
    given_problems = problems(1000)
    sampler = HardSampler(given_problems, 0)
    solved = {str(i) for i in range(500)}
    assert len({problem.id for problem in sampler.sample(1000)}) == 1000  # no problem twice
    sampler.record(rollouts(given_problems, solved))
    drawn = [problem.id in solved for _ in range(200) for problem in sampler.sample(20)]
    # 4000 draws, chance 0.2 / (0.2 + 1) = 1/6 (drawing 20 of 1000 without replacement shifts it little): 667, deviation
    # 24
    assert 560 < sum(drawn) < 780
    sampler.record(rollouts(given_problems, set(), replayed=True))  # replayed starts say nothing about the root
    sampler.record(rollouts(given_problems[:500], set()))  # failed once: rate 1/2, weight 0.6
    drawn = [problem.id in solved for _ in range(200) for problem in sampler.sample(20)]
    assert 1380 < sum(drawn) < 1620  # 4000 x 0.6 / 1.6 = 1500, deviation 31


@given(st.lists(st.integers(0, 12), max_size=6), st.integers(0, 3), st.integers(1, 9))
def test_a_hard_sampler_resumes_exactly(draws: list[int], seed: int, size: int) -> None:
    whole, first = HardSampler(problems(size), seed), HardSampler(problems(size), seed)

    def go(sampler: HardSampler, counts: list[int]) -> list[str]:
        ids = []
        for count in counts:
            drawn = sampler.sample(count)
            sampler.record(rollouts(drawn, {"0", "1", "2"}))
            ids += [problem.id for problem in drawn]
        return ids

    half = len(draws) // 2
    expected = go(whole, draws)
    begun = go(first, draws[:half])
    second = HardSampler(problems(size), seed)
    second.restore(json.loads(json.dumps(first.state())))
    assert expected == begun + go(second, draws[half:])


def mixture(how: Literal["uniform", "hard"], weights: Mapping[str, float], seed: int = 0) -> ProblemSampler:
    """Three problems of each data set."""
    return problem_sampler(how, [problem for label in weights for problem in problems(3, label)], seed, weights)


def test_a_mixture_draws_by_weight_and_each_data_set_as_if_alone() -> None:
    drawn = mixture("uniform", {"a": 1.0, "b": 3.0}).sample(8)
    # behind its share: b (3/4 against 1/4), then b (2 x 3/4 - 1 = 1/2 = 2/4: a comes first), ...
    assert [problem.source for problem in drawn] == ["b", "a", "b", "b", "b", "a", "b", "b"]
    for label, count in (("a", 2), ("b", 6)):
        own = [problem.id for problem in drawn if problem.source == label]
        assert len(own) == count
        assert set(Counter(own).values()) <= {count // 3, -(-count // 3)}  # each once per epoch


WEIGHTS = st.dictionaries(st.sampled_from("abcde"), st.floats(0.01, 100), min_size=1)


@given(WEIGHTS, st.lists(st.integers(0, 12), max_size=6), st.integers(0, 3), st.sampled_from(["uniform", "hard"]))
def test_a_mixture_keeps_its_shares_and_resumes_exactly(
    weights: dict[str, float], draws: list[int], seed: int, how: Literal["uniform", "hard"]
) -> None:
    def go(sampler: ProblemSampler, counts: list[int]) -> list[str]:
        ids = []
        for count in counts:
            drawn = sampler.sample(count)
            sampler.record(rollouts(drawn, {f"{label}0" for label in weights}))
            ids += [problem.id for problem in drawn]
        return ids

    half = len(draws) // 2
    whole, first, second = (mixture(how, weights, seed) for _ in range(3))
    expected = go(whole, draws)
    begun = go(first, draws[:half])
    second.restore(json.loads(json.dumps(first.state())))
    assert expected == begun + go(second, draws[half:])
    for label, weight in weights.items():
        share = len(expected) * weight / sum(weights.values())
        assert abs(sum(name.startswith(label) for name in expected) - share) < len(weights)


def test_a_cursor_of_other_problems_is_refused(tmp_path: Path) -> None:
    """A position behind the last problem would never be passed."""
    Fresh(UniformSampler(problems(99), 0), "of 99").save(tmp_path)
    with pytest.raises(CheckpointError, match="its training problems are not those of this run; resume with the data,"):
        Fresh(UniformSampler(problems(60), 0), "of 60").restore(tmp_path)
    cursor = json.loads((tmp_path / CURSOR).read_text())
    del cursor[PROBLEMS]  # as earlier code wrote it
    (tmp_path / CURSOR).write_text(json.dumps(cursor))
    Fresh(UniformSampler(problems(99), 0), "of 99").restore(tmp_path)


def test_an_iteration_that_ended_unobserved_is_proposed_again(tmp_path: Path) -> None:
    """With the rounds of dynamic sampling."""
    fresh, at = Fresh(UniformSampler(problems(99), 0)), Progress(seed=0, iteration=1, iterations=3, samples=1)

    def proposed() -> list[tuple[str, str]]:
        rounds = (replace(at, iteration=2, round=number) for number in (0, 1))
        return [(start.id, start.problem_id) for one in rounds for start in fresh.propose(3, one)]

    fresh.propose(2, at)
    fresh.observe([], at)
    expected = proposed()
    fresh.save(tmp_path)
    fresh.restore(tmp_path)
    assert proposed() == expected
