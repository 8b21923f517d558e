"""Text games for one player, of the package textarena (`pip install retrospect[games]`): environment `textarena`."""

import random
import threading
from collections.abc import Callable
from typing import Any

from core.environments.protocol import Messages, Step
from core.records import World

_DRAWING = threading.Lock()  # the games draw from Python's one generator


class TextArena:
    """A game by its id, with arguments of its own: {game: GuessTheNumber-v0-raw, max_number: 50}."""

    form = "{}"  # of what it says

    def __init__(self, game: str, **options: Any) -> None:
        import textarena

        self._game, self._random = textarena.make(game, **options), random.getstate()

    def reset(self, problem: World) -> Messages:
        """The rules."""
        return self.begin(problem.seed)

    def step(self, action: str) -> Step:
        """What the game says. Its reward comes at the end; 1 is a success."""
        done, _ = self._drawn(lambda: self._game.step(action))
        if not done:
            return self._news(), 0.0, False, {}
        rewards, info = self._game.close()
        return [], float(rewards[0]), True, {"correct": rewards[0] >= 1, "detail": info[0].get("reason", "")}

    def begin(self, seed: int) -> Messages:
        """Begin the game of a seed: what it says."""
        self._drawn(lambda: self._game.reset(num_players=1, seed=seed % 2**32))
        return self._news()

    def _news(self) -> Messages:
        _, said = self._game.get_observation()
        text = "\n".join(text for sender, text, _ in said if sender < 0)
        return [{"role": "user", "content": self.form.format(text)}]

    def _drawn(self, call: Callable[[], Any]) -> Any:
        """Call a function with the random numbers of this game."""
        with _DRAWING:
            random.setstate(self._random)
            result = call()
            self._random = random.getstate()
        return result
