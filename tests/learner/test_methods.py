"""A user's own estimator and policy loss by import path, and what is said about one that does not work."""

from pathlib import Path

import pytest
import torch

from core.config import AlgorithmConfig, Config
from core.errors import ConfigError
from core.load import override, parse_config
from core.sections.registry import names
from learner.estimators import find_estimator
from learner.methods import check_estimator, check_policy_loss
from learner.policy_losses import find_policy_loss
from tests.learner.conftest import credited, make_judged
from tests.learner.test_credit import scored_from

MODULE = """
import torch
from learner.estimators import Estimator

def twice_the_reward(episodes):
    return episodes.per_token(2 * episodes.totals())

twice = Estimator(twice_the_reward)

def one_per_sequence(episodes):
    return episodes.totals()

def logarithm(episodes):
    return episodes.rewards.log()

def raises(episodes):
    return episodes.nothing

def reinforce(tokens):
    return -tokens.advantages * tokens.logprobs, torch.zeros_like(tokens.advantages, dtype=torch.bool)

def without_gradient(tokens):
    return tokens.advantages, tokens.advantages > 0

def only_the_loss(tokens):
    return tokens.logprobs

number = 7
"""


@pytest.fixture
def _my_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_own.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["elsewhere", *__import__("sys").path])
    monkeypatch.delitem(__import__("sys").modules, "my_own", raising=False)


@pytest.mark.parametrize("name", names("algorithm.estimator"))
def test_the_estimators_pass_their_own_check(name: str) -> None:
    check_estimator(name)


@pytest.mark.parametrize("name", names("algorithm.policy_loss"))
def test_the_losses_pass_their_own_check(name: str) -> None:
    check_policy_loss(name, 0.2, 0.2, 3.0)


@pytest.mark.usefixtures("_my_own")
def test_a_users_own_estimator_trains() -> None:
    check_estimator("my_own:twice")
    assert not find_estimator("my_own:twice").needs_values
    assert find_estimator("my_own:twice_the_reward").needs_values  # a plain function may read them
    scored = scored_from(make_judged(0))
    batch = credited(scored, AlgorithmConfig(estimator="my_own:twice"), 0)
    for row, item in enumerate(scored):
        assert set(batch.columns.advantages[batch.token_index([row])].tolist()) == {2 * item.verdict.reward}


@pytest.mark.usefixtures("_my_own")
def test_a_users_own_loss_is_found() -> None:
    check_policy_loss("my_own:reinforce", 0.2, 0.2, 3.0)
    assert find_policy_loss("my_own:reinforce").__name__ == "reinforce"


@pytest.mark.usefixtures("_my_own")
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("my_own:one_per_sequence", r"has the shape \[4\]; return a tensor of shape \[4, 3\]"),
        ("my_own:logarithm", "an advantage is NaN or Inf"),
        ("my_own:raises", "AttributeError: .*nothing"),
        ("my_own:missing", "AttributeError: .*missing.* write it as 'module:name'"),
        ("no_such_module:f", "ModuleNotFoundError: .*no_such_module"),
        ("my_own:number", "int cannot be called; name a function"),
    ],
)
def test_an_estimator_that_does_not_work_gives_one_line(name: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as error:
        check_estimator(name)
    assert str(error.value).startswith("algorithm.estimator")
    assert "\n" not in str(error.value)


@pytest.mark.usefixtures("_my_own")
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("my_own:without_gradient", "RuntimeError: .*does not require grad"),
        ("my_own:only_the_loss", "too many values to unpack"),
    ],
)
def test_a_loss_that_does_not_work_gives_one_line(name: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as error:
        check_policy_loss(name, 0.2, 0.2, 3.0)
    assert str(error.value).startswith("algorithm.policy_loss")
    assert "\n" not in str(error.value)


def test_a_name_that_is_neither_known_nor_a_path_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"algorithm\.estimator = 'grop': .*gae, grpo, .* module:function"):
        parse_config({"algorithm": {"estimator": "grop"}}, "test")
    with pytest.raises(ConfigError, match=r"algorithm\.policy_loss = 'clip': .*ppo, gspo"):
        override(Config(), ["--algorithm.policy_loss", "clip"])
    assert override(Config(), ["--algorithm.estimator", "my.own:f"]).algorithm.estimator == "my.own:f"


def test_the_example_of_the_check_has_groups_that_differ() -> None:
    for name in names("algorithm.estimator"):
        from learner.methods import example_episodes

        assert bool(torch.any(find_estimator(name).advantages(example_episodes()) != 0)), name
