"""The recipes of configs/: in a fresh clone their data come from the hub, and their columns fit the rows of its data
sets."""

import re
from pathlib import Path

import pytest

from commands.reward_model import preferences
from core.config import Config, TaskConfig, task_sources
from core.errors import DataError
from core.load import load_config
from tasks.kinds import find_kind, task_items
from tasks.sources import load_rows

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "configs").glob("*.yaml"))
FEW_ROWS = {
    "openai/gsm8k:main": "gsm8k",
    "DigitalLearningGmbH/MATH-lighteval": "math/train.jsonl",
    "HuggingFaceH4/MATH-500": "math/train.jsonl",
    "google-research-datasets/mbpp:full": "mbpp/mbpp.jsonl",
    "Anthropic/hh-rlhf:harmless-base": "hh_rlhf/harmless_pairs.jsonl",
}
"""Where rows of the hub's data sets are in this repository."""


IMITATING = {"arithmetic", "gsm8k_smollm2", "mbpp_smollm2", "sums_smollm2"}
"""Imitation is off by default; replay is on."""


def test_which_recipes_replay_and_imitate() -> None:
    found = {path.stem: load_config(path) for path in RECIPES}
    assert all(config.replay.ratio > 0 for config in found.values())
    assert {name for name, config in found.items() if config.replay.imitated} == IMITATING
    assert {name for name, config in found.items() if config.algorithm.positive_coefficient} == IMITATING


def names_of(config: Config) -> set[str]:
    """The data sets of a recipe."""
    parts = [source.config for source in task_sources(config.task)]
    return {name for part in parts for name in (part.path, part.eval_path)} | {config.reward_model.pairs} - {""}


def here(config: TaskConfig) -> TaskConfig:
    """The same task on the rows of this repository."""
    path = str(ROOT / "tests" / "data" / FEW_ROWS[config.path])
    evaluated = path if config.eval_path == config.path == "openai/gsm8k:main" else ""  # its split test has other rows
    return config.model_copy(update={"path": path, "split": "train", "eval_path": evaluated, "eval_problems": 2})


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.name)
def test_the_data_of_a_recipe_come_from_the_hub_or_one_line_says_what_is_missing(recipe: Path) -> None:
    names = names_of(load_config(recipe)) - {""}
    assert names <= set(FEW_ROWS)
    for name in names:  # the tests run without a connection
        with pytest.raises(DataError, match=rf"^{re.escape(name)}: .*hf download "):
            load_rows(name, "train")


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.name)
def test_the_columns_of_a_recipe_are_those_of_its_data(recipe: Path) -> None:
    config = load_config(recipe)
    for source in task_sources(config.task):
        puzzle = find_kind(source.config.name).puzzle is not None
        items = task_items(source.config if puzzle else here(source.config), 0)
        assert items.train
        assert items.evaluation
    if config.reward_model.pairs:
        pairs = str(ROOT / "tests" / "data" / FEW_ROWS[config.reward_model.pairs])
        rows, reported = preferences(config.reward_model.model_copy(update={"pairs": pairs}))
        assert (len(rows), len(reported)) == (10, 0)
