"""The task `guess`: its game, its solutions and its guesses."""

from typing import Any

import numpy as np
import pytest

from bench.tasks.guess import GUESS, GUESSES, Guess
from bench.tasks.starters import STARTERS, corpus_of
from core.config import RolloutConfig, TaskConfig
from core.environments.protocol import Step
from core.environments.turns import TurnTokens
from core.records import World
from tasks.kinds import find_kind
from tasks.problems import Items, LeftOut
from tasks.worlds.problems import with_worlds

pytest.importorskip("textarena", reason="textarena is not installed (pip install --no-deps -r requirements/games.txt)")
TEXT = "1 to 20, game 7"


def tokenizer() -> Any:
    return corpus_of(STARTERS["guess"], TaskConfig(name="bench.tasks.guess:guess"), 0).tokenizer()


def played(*guesses: int, number: int = 7) -> Step:
    game, text = Guess(), f"1 to 20, game {number}"
    assert game.reset(World("p", text, text)) == []
    for guess in guesses[:-1]:
        assert not game.step(f"[{guess}]")[2]
    return game.step(f"[{guesses[-1]}]")


def secret(number: int = 7) -> int:
    return next(guess for guess in range(1, 21) if played(guess, number=number)[3].get("correct"))


def test_hints_and_rewards() -> None:
    number = secret()
    low, high = number > 1 and number - 1, number < 20 and number + 1
    for other, hint in ((low, "higher"), (high, "lower")):
        if other:
            assert played(other) == ([{"role": "user", "content": f" The target number is {hint}.\n"}], 0.0, False, {})
    messages, reward, done, info = played(number)
    assert (messages, reward, done, info["correct"]) == ([], 1.0, True, True)
    wrong = [guess for guess in range(1, 21) if guess != number][:GUESSES]
    messages, reward, done, info = played(*wrong)
    assert (done, info["correct"]) == (True, False)
    assert 0.0 <= reward < 1.0  # by the distance of a guess
    assert len({secret(game) for game in range(12)}) > 4


def test_bisection_wins_and_a_player_at_random_seldom() -> None:
    rng = np.random.default_rng(0)
    texts = [GUESS.draw(rng, 4) for _ in range(200)]
    assert all(GUESS.prefix_correct(text, GUESS.solution(text)) for text in texts)
    wins = np.mean([GUESS.prefix_correct(text, GUESS.guess(text, rng)) for text in texts])
    assert 0.15 < wins < 0.35  # 5 of 20 numbers
    assert GUESS.prefix_correct(TEXT, "")
    assert {GUESS.operations(text) for text in texts} == {4}


def test_the_tokens_of_a_guess_are_its_own() -> None:
    """No token joins a bracket with what the game says, so turns are cut where they end."""
    tokens = tokenizer()
    turns = TurnTokens(tokens, Guess.ends, [tokens.eos_token_id])
    text = GUESS.solution(TEXT)
    ids, game, at = tokens(text)["input_ids"], Guess(), 0
    game.reset(World("p", TEXT, TEXT))
    while at < len(ids):
        end = next(k for k in range(at, len(ids)) if ids[k] in turns.calls) + 1
        messages, *_ = game.step(turns.text(ids[at:end]))
        reply = turns.reply(ids[end - 1], messages)
        assert ids[end : end + len(reply)] == reply
        at = end + len(reply)


def test_the_prompt_of_a_game_is_its_rules_and_solutions_are_repeated() -> None:
    kind = find_kind("bench.tasks.guess:guess")
    items = [GUESS.item(f"1 to 20, game {number}") for number in range(5)]
    given = Items(items, items[:1], LeftOut())
    own = with_worlds(given, kind.environment, RolloutConfig(environment=kind.environment), tokenizer(), canonical=True)
    assert all(
        item.solution_mask is not None and not item.solution_mask.all()
        for item in own.train
        if "\n" in str(item.solution)
    )
    assert all(item.world and item.messages == () for item in own.train)
    options = {"game": "GuessTheNumber-v0-raw"}
    settings = RolloutConfig(environment="textarena", environment_options=options)
    ruled = with_worlds(given, kind.environment, settings, tokenizer(), canonical=False)
    assert all("You are playing Guess The Number" in item.messages[0].content for item in ruled.train)
    assert len({item.world.opening for item in [*ruled.train, *own.train] if item.world}) == 2


def test_the_kind_needs_no_verifier() -> None:
    kind = find_kind("bench.tasks.guess:guess")
    assert (kind.verifier, kind.environment, kind.episodes) == ("", "bench.tasks.guess:Guess", True)
