"""The own successes that the policy imitates: which are kept, drawn and saved."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from core.parts.sources import Progress
from core.records import EMPTY, Finish, Problem, Rollout, Start, Use, Verdict
from replay import answers
from replay.imitation import Imitation
from tests.replay.made import rollout


def visit(problem: str, outcomes: str, first: int = 1, key: int | None = None) -> list[Rollout]:
    """Rollouts of a visit with the responses [first], [first + 1], ...

    A character each: + a success, t a truncated one, - a failure, c a canonical solution.
    """
    start = Start("", problem, EMPTY, EMPTY, 1, 0, key)
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


def source(most: int = 100) -> Imitation:
    return Imitation(most, Problems())


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
    found = Imitation(9, Problems(), lambda _, response: bool(response[0] == 2))
    found.observe(visit("p", "++------"), at())
    assert kept(found) == {"p": [1]}
    found.observe(visit("q", "-+------"), at())
    assert kept(found) == {"p": [1]}


def test_continuations_of_states_and_canonical_solutions_are_not_own_successes_from_the_root() -> None:
    found = source()
    found.observe([*visit("p", "+---", key=7), *visit("q", "c")], at())
    assert kept(found) == {}


def test_the_oldest_success_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MOST", 2)
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
    assert (one.use, one.verdict.correct, one.start.replayed, one.start.id) == (Use.IMITATE, True, False, "1.i0")
    assert one.tokens.size == one.logprobs.size == one.versions.size == 1


def test_it_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    first, second = source(5), source(5)
    first.observe([*visit("p", "+--"), *visit("q", "-+-")], at())
    first.save(tmp_path)
    second.restore(tmp_path)
    assert kept(second) == kept(first) == {"p": [1], "q": [2]}
    assert json.loads((tmp_path / "successes.json").read_text()) == [["p", [1], 1, None], ["q", [2], 1, None]]
    second.restore(None)
    assert kept(second) == {}
