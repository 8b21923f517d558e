"""Problems that have an environment: it is asked about each of them once, before training. What it says at the
beginning becomes the prompt, and a canonical solution is repeated, to know which of its tokens are answers."""

import inspect
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import replace

import numpy as np

from core.config import RolloutConfig
from core.environments.protocol import FIELD, Answer, digest
from core.environments.turns import Retraced, TurnTokens
from core.environments.workers import Workers
from core.errors import ConfigError, DataError
from core.records import Flags, World
from tasks.dialogue.chat import Message
from tasks.problems import Item, Items, Tokenizer, problem_id, respond

AT_ONCE = 64  # problems whose environments are open
WAIT = 1.0  # seconds of one wait for them


def with_worlds(items: Items, title: str, rollout: RolloutConfig, tokenizer: Tokenizer, canonical: bool) -> Items:
    """The items with what their environments begin from, and with the prompts that these give. `canonical`: also repeat
    the canonical solutions; those that the environment answers otherwise are not used. Raises ConfigError when an
    environment cannot begin."""
    with closing(Workers(rollout)) as workers:
        turns = TurnTokens(tokenizer, workers.ends, [tokenizer.eos_token_id])
        asked = _Asked(workers, turns, tokenizer, rollout.environment, title, canonical)
        train, evaluation, sets = (asked.about(part) for part in (items.train, items.evaluation, items.sets))
        return items._replace(train=train, evaluation=evaluation, sets=sets)


class _Asked:
    """Environments that are asked about many problems at once."""

    def __init__(
        self, workers: Workers, turns: TurnTokens, tokenizer: Tokenizer, name: str, title: str, canonical: bool
    ) -> None:
        self._workers, self._turns, self._tokenizer = workers, turns, tokenizer
        self._name, self._title, self._canonical = name, title, canonical

    def about(self, items: Sequence[Item]) -> list[Item]:
        """Items with their worlds, in order."""
        found: dict[int, Item] = {}
        at_of, past, waiting = dict[int, int](), dict[int, Generator[str, Answer, Retraced]](), list(enumerate(items))
        waiting.reverse()
        while waiting or at_of:
            while waiting and len(at_of) < AT_ONCE:
                at, item = waiting.pop()
                at_of[self._workers.open(self._world(item))] = at
            for number, answer in self._workers.poll(WAIT):
                at = at_of[number]
                if at not in found:
                    found[at] = self._opened(items[at], answer)
                    solution = items[at].solution
                    if self._canonical and solution is not None:
                        past[number] = self._turns.retrace(respond(self._tokenizer, solution))
                if number in past:
                    found[at], action = self._repeated(found[at], past[number], answer)
                    if action is not None:
                        self._workers.step(number, action)
                        continue
                self._workers.end(number)
                del at_of[number]
        return [found[at] for at in range(len(items))]

    def _world(self, item: Item) -> World:
        return World(problem_id(self._title, item), item.prompt, item.reference)

    def _opened(self, item: Item, answer: Answer) -> Item:
        if answer.error:
            where = item.where or f"problem {item.prompt[:60]!r}"
            raise ConfigError(f"{FIELD} {self._name!r}: {where}: {answer.error}; fix the environment or the problem")
        said = tuple(Message(message["role"], message["content"]) for message in answer.messages)
        world = replace(self._world(item), opening=digest(answer.messages))
        return replace(item, world=world, messages=said or item.messages)

    def _repeated(self, item: Item, past: Generator[str, Answer, Retraced], answer: Answer) -> tuple[Item, str | None]:
        """The item, and the next action of its solution; None: it has been repeated, or cannot be."""
        try:
            if answer.error:
                raise DataError(answer.error)
            first = inspect.getgeneratorstate(past) == inspect.GEN_CREATED
            return item, next(past) if first else past.send(answer)
        except StopIteration as done:
            mask: Flags = np.array(done.value.mask, np.bool_)
            return replace(item, solution_mask=mask), None
        except DataError:
            return replace(item, solution=None), None
