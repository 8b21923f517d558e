"""What an estimator and a ranking need from a run: a critic, groups, engines that wait."""

from typing import Any

import pytest

from core.config import Config, ReplayConfig
from core.errors import ConfigError
from core.load import parse_config
from trainer.build import check_solutions
from trainer.model.needs import check_needs, critic


def run_of(estimator: str, ranking: str, **sections: dict[str, Any]) -> Config:
    algorithm = {"estimator": estimator, **sections.pop("algorithm", {})}
    return parse_config({"algorithm": algorithm, "replay": {"ratio": 0.5, "ranking": ranking}, **sections}, "test")


@pytest.mark.parametrize(
    ("estimator", "ranking", "asked", "found"),
    [
        ("gae", "uniform", "separate", "separate"),
        ("gae", "value", "shared", "shared"),
        ("rloo", "value", "separate", "separate"),
        ("gae", "learnability", "separate", "separate"),
        ("rloo", "learnability", "separate", "none"),  # it works without values, too
        ("rloo", "uniform", "separate", "none"),
        ("rloo", "uniform", "shared", "none"),
    ],
)
def test_there_is_a_critic_if_something_needs_its_values(estimator: str, ranking: str, asked: str, found: str) -> None:
    config = run_of(estimator, ranking, learner={"value_model": asked})
    assert critic(config) == found
    check_needs(config)


@pytest.mark.parametrize("ranking", ["learnability", "value"])
def test_a_ranking_needs_nothing_where_nothing_is_replayed(ranking: str) -> None:
    config = run_of("rloo", ranking, replay={"ratio": 0.0, "ranking": ranking})
    assert critic(config) == "none"
    check_needs(config)
    with pytest.raises(ConfigError, match=r"critic_warmup = 2 .*'rloo'"):
        check_needs(run_of("rloo", ranking, replay={"ratio": 0.0, "ranking": ranking}, learner={"critic_warmup": 2}))


@pytest.mark.parametrize(
    ("estimator", "ranking", "sections", "match"),
    [
        (
            "gae",
            "uniform",
            {"learner": {"value_model": "none"}},
            r"'gae' needs values, but learner\.value_model is 'none'; set",
        ),
        (
            "rloo",
            "value",
            {"learner": {"value_model": "none"}},
            r"ranking 'value' needs values, but learner\.value_model is",
        ),
        (
            "rloo",
            "uniform",
            {"learner": {"critic_warmup": 2}},
            r"critic_warmup = 2 is about the critic, .* read no values",
        ),
        (
            "rloo",
            "uniform",
            {"learner": {"value_path": "rm"}},
            r"value_path = rm is about the critic, .* read no values",
        ),
        ("rloo", "value", {"rollout": {"samples": 1}}, r"rollout\.samples is 1; raise rollout"),
    ],
)
def test_what_is_missing_is_named(estimator: str, ranking: str, sections: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        check_needs(run_of(estimator, ranking, **sections))


def test_canonical_solutions_are_replayed_only_where_there_are_some() -> None:
    replayed = ReplayConfig(ratio=0.5, canonical=True)
    with pytest.raises(ConfigError, match="no training problem has a canonical solution"):
        check_solutions(replayed, [None, None])
    check_solutions(replayed, [None, "a solution"])
    check_solutions(replayed.model_copy(update={"ratio": 0.0}), [None])
