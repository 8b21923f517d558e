"""Text games of textarena: they repeat, also beside each other."""

import pytest

from core.config import RolloutConfig
from core.environments.workers import Workers
from core.records import World
from tasks.worlds.games import TextArena

pytest.importorskip("textarena", reason="textarena is not installed (pip install --no-deps -r requirements/games.txt)")


def test_games_beside_each_other_draw_their_own_numbers() -> None:
    def world(index: int) -> World:
        return World(f"p{index}", "", "")

    alone = []
    for index in range(4):
        game = TextArena("GuessTheNumber-v0-raw")
        alone.append((game.reset(world(index)), game.step("[10]")))
    games = [TextArena("GuessTheNumber-v0-raw") for _ in range(4)]
    rules = [game.reset(world(index)) for index, game in enumerate(games)]
    assert list(zip(rules, (game.step("[10]") for game in games), strict=True)) == alone
    assert "within 10 turns" in rules[0][0]["content"]


def test_an_environment_that_cannot_start_says_so() -> None:
    with pytest.raises(Exception, match="environment"):
        Workers(RolloutConfig(environment="tasks.worlds.games:Nothing"))
