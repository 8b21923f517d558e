"""A user's own ranking: a class in a module of the user's, named by `replay.ranking`."""

from pathlib import Path

import numpy as np
import pytest

import launch
from core.config import ReplayConfig
from core.errors import ConfigError
from core.records import Provenance
from core.sections.registry import names
from replay.rankings.find import check_ranking
from replay.store.shard import Shard
from tests.replay.made import outcome, outcomes, sample, states
from tests.replay.test_store import NEWEST, opened

MODULE = '''
import numpy as np

from core.records import Provenance
from replay.rankings.base import Ranking


class Shallow(Ranking):
    """Short prefixes of own successes first."""

    temperature = 0.05

    def why_not(self, states):
        return [(states.provenance != Provenance.OWN_SUCCESSFUL, "only own successes")]

    def priority(self, states):
        left = 1 - states.length / states.total
        return np.where(states.provenance == Provenance.OWN_SUCCESSFUL, left, -np.inf)


class Silent(Ranking):
    def priority(self, states):
        return np.where(states.tried > 0, -np.inf, 0.0)


class Whole(Ranking):
    def priority(self, states):
        return states.value - states.value.mean()


class Raises(Ranking):
    def priority(self, states):
        states.value[:] = 0.0


class Short(Ranking):
    def priority(self, states):
        return states.value[1:]


class Whys(Silent):
    def why_not(self, states):
        return [(states.wins > 2, "won")]

    def priority(self, states):
        return states.value


class Logs(Ranking):
    def priority(self, states):
        return np.log(states.wins - 1)


def function(states):
    return states.value
'''


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_ranking.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_a_store_draws_by_a_users_own_ranking(tmp_path: Path) -> None:
    store = opened(tmp_path / "live", 2, local=True, ranking="own_ranking:Shallow")
    tokens, values = np.arange(10, dtype=np.int32), np.full(2, 0.5, np.float32)
    for provenance, last in ((Provenance.OWN_SUCCESSFUL, 8), (Provenance.OWN_FAILED, 9)):
        ids, lengths = tokens + 10 * provenance, np.array([2, last], np.int32)
        store.add([states(f"p{i}", ids, lengths, values, provenance) for i in range(4)], 1)
    # own successes at 2 and 8 of 10 tokens have the priorities 0.8 and 0.2: e^(0.6 / 0.05) = 163,000 to 1
    assert {len(state.prefix_ids) for state in sample(store, 4, seed=1)} == {2}
    assert len(sample(store, 99, seed=2)) == 8
    best = store.top(8, NEWEST)
    store.record(outcomes(best, True, 1))
    store.save(tmp_path / "checkpoint")
    again = opened(tmp_path / "again", 1, local=True, ranking="own_ranking:Shallow")
    again.restore(tmp_path / "checkpoint")
    assert [state.key for state in sample(again, 5, seed=3)] == [state.key for state in sample(store, 5, seed=3)]
    shard: Shard = again._actors[0]._shard
    failed = shard.states["provenance"] == Provenance.OWN_FAILED
    assert set(shard.why_not()[failed]) == {"only own successes"}
    assert set(shard.why_not()[~failed]) == {""}


def test_a_ranking_without_words_still_tells_that_it_is_the_ranking(tmp_path: Path) -> None:
    store = opened(tmp_path, 1, local=True, ranking="own_ranking:Silent")
    store.add([states("p", range(9), [3], [0.5])], 1)
    (state,) = sample(store, 1, seed=0)
    store.record([outcome(state.key, "p", False, 1)])
    assert sample(store, 1, seed=0) == []
    assert store._actors[0]._shard.why_not().tolist() == ["its ranking gives it no priority"]


def test_check_accepts_a_users_own_ranking_and_refuses_a_wrong_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        launch.main(["check", "--offline", "--task.name", "arithmetic", "--replay.ranking", "own_ranking:Shallow"]) == 0
    )
    assert "own_ranking:Shallow" in capsys.readouterr().out
    assert (
        launch.main(["check", "--offline", "--task.name", "arithmetic", "--replay.ranking", "own_ranking:Short"]) != 0
    )
    assert "error: replay.ranking 'own_ranking:Short' on 10 states: priority is" in capsys.readouterr().err


@pytest.mark.parametrize("name", names("replay.ranking"))
def test_the_rankings_pass_their_own_check(name: str) -> None:
    check_ranking(ReplayConfig(ranking=name))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("own_ranking:Whole", "priorities change if a problem is ranked alone"),
        ("own_ranking:Raises", "ValueError: assignment destination is read-only"),
        ("own_ranking:Short", r"priority is array\(.*; return an array of floats of shape \(10,\)"),
        ("own_ranking:Whys", "why_not excludes a state that has a priority; return -inf for it"),
        ("own_ranking:Logs", r"priority has a NaN or \+inf"),
        ("own_ranking:function", r"name a subclass of replay\.rankings\.base\.Ranking"),
        ("own_ranking:Missing", "AttributeError: .*Missing.* write it as 'module:name'"),
        ("no_such_module:Own", "ModuleNotFoundError: .*no_such_module"),
    ],
)
def test_a_ranking_that_does_not_work_gives_one_line(name: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as error:
        check_ranking(ReplayConfig(ranking=name))
    assert str(error.value).startswith("replay.ranking")
    assert "\n" not in str(error.value)
