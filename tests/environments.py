"""Environments for tests: some behave, the others do what users' environments do."""

import asyncio
import os
import random
import time
from collections import Counter as Counts
from typing import Any, ClassVar
from zlib import crc32

from bench.tasks.calculator import Calculator
from core.environments.protocol import Messages, Step
from core.records import World

LETTERS = "abcdefghijklmnopqrstuvwxyz"
KEPT: list[bytes] = []


def said(text: str, reward: float = 0.0, done: bool = False, **info: Any) -> Step:
    return ([{"role": "user", "content": text}] if text else []), reward, done, info


class Echo:
    """Answers a turn that ends with a letter up to r with the letter in brackets, from s on with nothing. A turn's
    reward is its number of letters a. An end of sequence ends the episode."""

    ends = LETTERS

    def __init__(self, delay: float = 0.0) -> None:
        self.delay = delay

    def reset(self, problem: World) -> Messages:
        return []

    def step(self, action: str) -> Step:
        if self.delay:
            time.sleep(random.Random(action).random() * self.delay)
        last = action[-1:]
        if not last or last not in LETTERS:
            return said("", float(action.count("a")), done=True)
        return said(f"<{last}>" if last < "s" else "", float(action.count("a")))


class Counter:
    """A world with a state: it answers how often it was asked, in the prompt's words. It can be saved."""

    def __init__(self, turns: int = 3) -> None:
        self.turns, self.count, self.word = turns, 0, ""

    async def reset(self, problem: World) -> Messages:
        await asyncio.sleep(0)
        self.word = problem.prompt
        return [{"role": "system", "content": "Count."}, {"role": "user", "content": problem.prompt}]

    async def step(self, action: str) -> Step:
        await asyncio.sleep(0)
        self.count += 1
        done = self.count == self.turns
        return said(f"{self.word} {self.count}", 0.25 * self.count, done, correct=action == "good", detail=action)

    def snapshot(self) -> bytes:
        return f"{self.count} {self.word}".encode()

    def restore(self, snapshot: bytes) -> None:
        count, self.word = snapshot.decode().split(" ", 1)
        self.count = int(count)


class Bad:
    """Does what the action says."""

    def __init__(self, where: str = "step") -> None:
        self.where, self.steps = where, 0
        self.end = ""

    def reset(self, problem: World) -> Messages:
        if self.where == "reset":
            raise ValueError("no such game")
        return [{"role": "user", "content": "12*7"}] if self.where == "rules" else []

    def step(self, action: str) -> Any:
        self.steps += 1
        match action:
            case "raise":
                raise ValueError("not a move")
            case "fat":
                self.kept = b"x" * (60 << 20)
                raise ValueError("not a move")
            case "hang":
                time.sleep(1000)
            case "spin":
                while True:
                    pass
            case "print":
                print("x" * 100_000, flush=True)
                os.write(1, b'[0, {"error": "forged"}]\n')
                input()
            case "leak":
                KEPT.append(b"x" * (300 << 20))
                time.sleep(1000)
            case "die":
                os._exit(3)
            case "random":
                return said(str(random.random()))
            case "shape":
                return "nothing else"
            case "nan":
                return said("", float("nan"))
            case "close":
                self.end = "hang"
        return said(f"step {self.steps}")

    def close(self) -> None:
        if self.end:
            time.sleep(1000)


class Hashes:
    """Says first what depends on the hashes of strings."""

    def reset(self, problem: World) -> Messages:
        return [{"role": "user", "content": "".join({problem.prompt, *LETTERS})}]

    def step(self, action: str) -> Step:
        return said("", 0.0, done=True)


class Moody(Calculator):
    """A calculator that is wrong now and then. Played again, an episode is wrong elsewhere."""

    played: ClassVar[Counts[str]] = Counts()  # by problem, in this process

    def reset(self, problem: World) -> Messages:
        self.played[problem.id] += 1
        self.mood = f"{problem.id} {self.played[problem.id]}"
        return super().reset(problem)

    def step(self, action: str) -> Step:
        messages, reward, done, info = super().step(action)
        if crc32(f"{self.mood} {action}".encode()) % 5 == 0:
            messages = [{"role": "tool", "content": "0]\n"}]
        return messages, reward, done, info
