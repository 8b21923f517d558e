"""The rankings on hand-computed cases."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from core.config import ReplayConfig
from core.sections.registry import names
from replay.rankings.base import Ranking, StateColumns, SuccessModel, in_words
from replay.rankings.find import find_ranking
from replay.store.keys import eviction_order

FAILED, PARTIAL, SUCCESS, CANONICAL = 0, 1, 2, 3
INF = np.inf


def ranking(name: str) -> Ranking:
    return find_ranking(ReplayConfig(ranking=name, canonical=True))


def told(name: str, given: StateColumns) -> list[str]:
    """Why states are not drawn."""
    return list(in_words(ranking(name).why_not(given), len(given.value)))


def columns(lengths: list[int], provenance: list[int], **given: Any) -> StateColumns:
    """States of one problem and one chain of 100 tokens, unless told otherwise. Every continuation succeeds or fails,
    and every token is a decision."""
    n = len(lengths)
    reals = {name: np.zeros(n, np.float32) for name in ("value", "wins", "losses", "root_wins", "root_losses")}
    ints = {name: np.zeros(n, np.int64) for name in ("problem", "chain", "tried", "root_solved")}
    ints |= {"length": np.array(lengths, np.int64), "total": np.full(n, 100, np.int64)}
    known: dict[str, Any] = reals | ints | {"provenance": np.array(provenance, np.uint8)}
    known |= {name: np.array(v, known[name].dtype) for name, v in given.items() if name in known}
    derived = {"left": (1 - known["length"] / known["total"]).astype(np.float32)}
    own = {name: np.array(given[name], np.float32) for name in derived if name in given}
    return StateColumns(**(known | derived | own))


def test_value_is_the_value() -> None:
    given = columns([10, 20], [0, 0], value=[0.25, 0.5])
    assert ranking("value").priority(given).tolist() == [0.25, 0.5]
    wide = replace(given, model=SuccessModel(spread=0.125))
    assert ranking("value").priority(wide).tolist() == [2.0, 4.0]  # in standard deviations of all values


def test_eviction_goes_by_retention_then_version() -> None:
    retention = np.array([-INF, -1.0, -0.0, 0.0, 0.5, 0.5], np.float32)
    version = np.array([9, 9, 1, 2, 3, 4], np.int32)
    order = eviction_order(retention, version, np.zeros(6, np.uint64))
    assert (np.diff(order.astype(object)) > 0).all()


def problem(rng: np.random.Generator, number: int) -> StateColumns:
    """12 states of a problem."""
    given = {n: rng.random(12) * 5 for n in ("value", "wins", "losses")}
    return columns(
        rng.permutation(90)[:12].tolist(),
        rng.integers(0, 4, 12).tolist(),
        chain=rng.integers(0, 3, 12) + 10 * number,
        problem=[number] * 12,
        tried=rng.integers(0, 20, 12),
        root_wins=np.full(12, rng.integers(0, 3)),
        root_losses=np.full(12, rng.integers(0, 3)),
        **given,
    )


def joined(parts: list[StateColumns], model: SuccessModel) -> StateColumns:
    names = [name for name in StateColumns.__dataclass_fields__ if name != "model"]
    return StateColumns(
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in names}, model=model
    )


MODEL = SuccessModel((1.0, -3.0, -1.0, 0.3, 0.2, 0.7, 0.4), 2.0, 2.5, 1.5)


@pytest.mark.parametrize("name", names("replay.ranking"))
def test_every_ranking_depends_on_the_problem_alone(name: str) -> None:
    """Ranking three problems together is ranking each by itself, bit for bit."""
    rng = np.random.default_rng(3)
    parts = [problem(rng, number) for number in range(3)]
    apart = np.concatenate([ranking(name).priority(replace(part, model=MODEL)) for part in parts])
    np.testing.assert_array_equal(ranking(name).priority(joined(parts, MODEL)), apart)


@pytest.mark.parametrize("name", names("replay.ranking"))
def test_what_a_ranking_says_is_what_it_does(name: str) -> None:
    """A state has a reason exactly if its priority is -inf."""
    rng = np.random.default_rng(4)
    states = joined([problem(rng, number) for number in range(200)], MODEL)
    drawn = ~np.isneginf(ranking(name).priority(states))
    assert [why == "" for why in told(name, states)] == drawn.tolist()
    assert drawn.any()
