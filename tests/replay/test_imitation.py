"""Right answers that the policy imitates, own successes and discoveries: which are kept, drawn and saved."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from core.parts.sources import Progress
from core.records import EMPTY, Episode, Finish, Problem, Rollout, Start, Use, Verdict
from replay.coverage import Coverage
from replay.cutting import IsWrong
from replay.imitation import Imitation, discoveries, own_successes
from tests.replay.made import rollout

PREFIX = np.array([90, 91], np.int32)


def visit(problem: str, outcomes: str, first: int = 1, key: int | None = None) -> list[Rollout]:
    """Rollouts of a visit with the responses [first], [first + 1], ...

    A character each: + a success, t a truncated one, - a failure, c a canonical solution.
    """
    start = Start(f"{problem}{key}", problem, EMPTY, PREFIX if key else EMPTY, 1, 0, key)
    uses = {"c": Use.SOLUTION}
    return [
        replace(
            rollout(start, [token], Verdict(1.0, kind != "-"), use=uses.get(kind, Use.TRAIN)),
            finish=Finish.LENGTH if kind == "t" else Finish.STOP,
        )
        for token, kind in enumerate(outcomes, first)
    ]


class Problems(dict[str, Problem]):
    """A problem of every name."""

    def __missing__(self, name: str) -> Problem:
        return Problem(name, np.array([1], np.int32), "gold")


def source(most: int = 100, is_wrong: IsWrong | None = None) -> Imitation:
    return Imitation("imitated", most, own_successes, Problems(), is_wrong)


def at(version: int = 1, seed: int = 0) -> Progress:
    return Progress(seed, 1, 10, 1, version)


def kept(found: Imitation) -> dict[str, list[int]]:
    return {each.start.problem_id: each.tokens.tolist() for each in found.extra([], at())}


def test_the_worked_example() -> None:
    found = source()
    found.observe([*visit("p", "-+-+----"), *visit("q", "--------")], at())
    assert kept(found) == {"p": [4]}
    found.observe(visit("p", "--------", first=11), at())
    assert kept(found) == {"p": [4]}
    found.observe(visit("p", "+-------", first=21), at())
    assert kept(found) == {"p": [21]}
    found.observe(visit("p", "++++----", first=31), at())
    assert kept(found) == {"p": [34]}
    found.observe(visit("p", "+++++---"), at())
    assert kept(found) == {}


def test_a_truncated_success_counts_and_is_not_kept() -> None:
    found = source()
    found.observe(visit("p", "+t------"), at())
    assert kept(found) == {"p": [1]}
    found.observe(visit("p", "t-------", first=11), at())
    assert kept(found) == {"p": [1]}
    found.observe(visit("p", "+tttt---", first=21), at())
    assert kept(found) == {}


def test_a_success_with_an_error_counts_and_is_not_kept() -> None:
    found = source(9, lambda _, response: bool(response[0] == 2))
    found.observe(visit("p", "++------"), at())
    assert kept(found) == {"p": [1]}
    found.observe(visit("q", "-+------"), at())
    assert kept(found) == {"p": [1]}


def test_continuations_of_states_and_canonical_solutions_are_not_own_successes_from_the_root() -> None:
    found = source()
    found.observe([*visit("p", "+---", key=7), *visit("q", "c")], at())
    assert kept(found) == {}


def test_the_oldest_success_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replay.imitation.MOST", 2)
    found = source()
    for name, outcomes in (("a", "+--"), ("b", "+--"), ("a", "---"), ("c", "+--")):
        found.observe(visit(name, outcomes), at())
    assert set(kept(found)) == {"b", "c"}


def test_a_draw_is_without_replacement_and_by_the_seed() -> None:
    found = source(20)
    found.observe([one for name in range(50) for one in visit(f"p{name}", "+-")], at())

    def drawn(seed: int) -> list[str]:
        return [each.start.problem_id for each in found.extra([], at(seed=seed))]

    assert len(set(drawn(1))) == 20
    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_a_success_halves_its_weight_every_32_versions_and_is_dropped_after_three_times() -> None:
    found = source()
    found.observe(visit("p", "+---"), at(version=8))

    def weights(version: int) -> list[float]:
        return [each.weight for each in found.extra([], at(version))]

    assert [weights(8), weights(40), weights(8 + 96)] == [[1.0], [0.5], [0.125]]
    assert weights(8 + 97) == []
    assert weights(8) == []  # it does not come back
    found.observe(visit("p", "+---"), at(version=105))
    assert weights(105) == [1.0]


def test_what_is_repeated_is_a_whole_rollout_to_imitate() -> None:
    found = source()
    found.observe(visit("p", "+-"), at())
    (one,) = found.extra([], at())
    assert (one.use, one.verdict.correct, one.start.from_root, one.start.id) == (Use.IMITATE, True, True, "1.i0")
    assert one.tokens.size == one.logprobs.size == one.versions.size == 1


def test_it_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    first, second = source(5), source(5)
    first.observe([*visit("p", "+--"), *visit("q", "-+-")], at())
    first.save(tmp_path)
    second.restore(tmp_path)
    assert kept(second) == kept(first) == {"p": [1], "q": [2]}
    assert json.loads((tmp_path / "answers.json").read_text()) == [["p", [1], 1, None], ["q", [2], 1, None]]
    second.restore(None)
    assert kept(second) == {}


def of_discoveries(coverage: Coverage, is_wrong: IsWrong | None = None) -> Imitation:
    return Imitation("discovered", 9, partial(discoveries, coverage), Problems(), is_wrong)


def discover(found: Imitation, coverage: Coverage, rollouts: list[Rollout]) -> list[list[int]]:
    """What an update repeats after an iteration with these rollouts."""
    coverage.observe(rollouts, at())
    found.observe(rollouts, at())
    return [one.tokens.tolist() for one in found.extra([], at())]


def test_a_success_from_a_state_is_repeated_whole_until_the_root_succeeds(tmp_path: Path) -> None:
    coverage = Coverage(9)
    found = of_discoveries(coverage)
    assert discover(found, coverage, [*visit("p", "--"), *visit("p", "-+", first=5, key=7)]) == [[90, 91, 6]]
    (one,) = found.extra([], at())
    assert (one.use, one.start.from_root, one.start.id) == (Use.IMITATE, True, "1.d0")
    assert found.metrics() == {"discoveries": 1}
    found.save(tmp_path)
    assert discover(found, coverage, visit("p", "-+")) == []
    assert discover(found, coverage, visit("p", "+", key=7)) == []  # the root succeeds: it teaches more
    found.restore(tmp_path)
    assert [one.tokens.tolist() for one in found.extra([], at())] == [[90, 91, 6]]


def test_a_truncated_success_one_with_an_error_and_an_episode_are_no_discoveries() -> None:
    coverage = Coverage(9)
    found = of_discoveries(coverage, lambda _, response: bool(response[-1] == 2))
    (episode,) = visit("r", "+", key=7)
    last_turn = replace(episode, episode=Episode(rewards=((0, 1.0),), total=1.0, turns=2))
    assert last_turn.mask is None  # all its tokens are the policy's; those of the prefix are not
    assert discover(found, coverage, [*visit("p", "t", key=7), *visit("q", "+", first=2, key=7), last_turn]) == []


def test_a_success_behind_a_prefix_of_another_source_is_no_discovery() -> None:
    """A hint's author knows the solution: it is not found by replay."""
    coverage = Coverage(9)
    (hinted,) = visit("p", "+", key=7)
    hinted = replace(hinted, start=replace(hinted.start, state_key=None))
    assert not hinted.start.from_root
    assert discover(of_discoveries(coverage), coverage, [hinted]) == []
    assert (coverage.lives["p"].replayed, coverage.replayed_success) == (0, 0.0)
