"""The own successes that the policy imitates: which are kept, drawn and saved."""

import json
from pathlib import Path

import numpy as np
import pytest

from core.records import CutTrajectory, Provenance
from replay import imitation
from replay.imitation import Successes
from tests.replay.test_store import opened

EMPTY = np.zeros(0, np.int32)


def visit(
    problem: str, outcomes: str, first: int = 1, parent: int | None = None, version: int = 1
) -> list[CutTrajectory]:
    """Rollouts of a visit with the responses [first], [first + 1], ...

    A character each: + a success, t a truncated one, - a failure, c a canonical solution.
    """
    own, failed = Provenance.OWN_SUCCESSFUL, Provenance.OWN_FAILED
    kinds = {"+": own, "t": own, "-": failed, "c": Provenance.CANONICAL}
    return [
        CutTrajectory(
            problem,
            np.array([token], np.int32),
            EMPTY,
            EMPTY.astype(np.float32),
            kinds[kind],
            0.0,
            version,
            parent,
            kind == "t",
        )
        for token, kind in enumerate(outcomes, first)
    ]


def kept(found: Successes) -> dict[str, list[int]]:
    return {each.problem_id: each.response_ids.tolist() for each in found.draw(100, seed=0, version=1)}


def test_the_worked_example() -> None:
    found = Successes()
    found.add([*visit("p", "-+-+----"), *visit("q", "--------")])
    assert kept(found) == {"p": [4]}
    found.add(visit("p", "--------", first=11))
    assert kept(found) == {"p": [4]}
    found.add(visit("p", "+-------", first=21))
    assert kept(found) == {"p": [21]}
    found.add(visit("p", "++++----", first=31))
    assert kept(found) == {"p": [34]}
    found.add(visit("p", "+++++---"))
    assert kept(found) == {}


def test_a_truncated_success_counts_and_is_not_kept() -> None:
    found = Successes()
    found.add(visit("p", "+t------"))
    assert kept(found) == {"p": [1]}
    found.add(visit("p", "t-------", first=11))
    assert kept(found) == {"p": [1]}
    found.add(visit("p", "+tttt---", first=21))
    assert kept(found) == {}


def test_continuations_of_states_and_canonical_solutions_are_not_own_successes_from_the_root() -> None:
    found = Successes()
    found.add([*visit("p", "+---", parent=7), *visit("q", "c")])
    assert kept(found) == {}


def test_the_oldest_success_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imitation, "MOST", 2)
    found = Successes()
    for name, outcomes in (("a", "+--"), ("b", "+--"), ("a", "---"), ("c", "+--")):
        found.add(visit(name, outcomes))
    assert set(kept(found)) == {"b", "c"}


def test_a_draw_is_without_replacement_and_by_the_seed() -> None:
    found = Successes([(f"p{at}", [at], 0, None) for at in range(50)])

    def drawn(seed: int) -> list[str]:
        return [each.problem_id for each in found.draw(20, seed, version=0)]

    assert len(set(drawn(1))) == 20
    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_a_success_halves_its_weight_every_32_versions_and_is_dropped_after_three_times() -> None:
    found = Successes()
    found.add(visit("p", "+---", version=8))

    def weights(version: int) -> list[float]:
        return [each.weight for each in found.draw(9, 0, version)]

    assert [weights(8), weights(40), weights(8 + 96)] == [[1.0], [0.5], [0.125]]
    assert weights(8 + 97) == []
    assert found.to_json() == []
    assert weights(8) == []  # it does not come back
    found.add(visit("p", "+---", version=105))
    assert weights(105) == [1.0]


def test_a_store_goes_on_with_its_successes_from_a_checkpoint(tmp_path: Path) -> None:
    first, second = (opened(tmp_path / name, local=True, imitated=5) for name in ("first", "second"))
    first.add([*visit("p", "+--"), *visit("q", "-+-")])
    first.save(tmp_path / "saved")
    second.restore(tmp_path / "saved")
    drawn = [
        [(one.problem_id, one.response_ids.tolist(), one.weight) for one in store.successes(3, 9)]
        for store in (first, second)
    ]
    assert drawn[0] == drawn[1]
    assert len(drawn[0]) == 2
    assert json.loads((tmp_path / "saved" / "store.json").read_text())["successes"] == [
        ["p", [1], 1, None],
        ["q", [2], 1, None],
    ]
    second.clear()
    assert second.successes(seed=3, version=9) == []
    third = opened(tmp_path / "third", local=True, imitated=0)
    third.add(visit("p", "+--"))
    assert third.successes(seed=3, version=1) == []  # nothing is kept that is not wanted
