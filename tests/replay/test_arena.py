"""The tokens of a shard against plain lists: whatever is appended, removed and moved, every trajectory reads as it was."""

from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from replay import drawing
from replay.arena import Arena
from replay.table import STATE, TRAJECTORY

CHUNK = 16
Model = dict[int, list[int]]  # address -> tokens


def read(arena: Arena, model: Model) -> Model:
    """The trajectories at the model's addresses, as the snapshot reads them."""
    sizes = np.array([len(tokens) for tokens in model.values()], np.int32)
    ends = np.cumsum(sizes).tolist()
    found = arena.gather(np.array(list(model), np.int64), sizes).tolist()
    return {address: found[end - len(model[address]) : end] for address, end in zip(model, ends, strict=True)}


def prefixes(arena: Arena, model: Model, short: int) -> list[list[int]]:
    """All but the last `short` tokens of each, as a draw reads them: by the addresses of the chunks in memory."""
    states, trajectories = np.zeros(len(model), STATE), np.zeros(len(model), TRAJECTORY)
    states["trajectory"] = np.arange(len(model))
    states["length"] = [max(len(tokens) - short, 0) for tokens in model.values()]
    trajectories["address"] = list(model)
    _, _, tokens, starts = drawing.copy_out(states, trajectories, *arena.chunks, np.arange(len(model)))
    return [tokens[a : a + n].tolist() for a, n in zip(starts.tolist(), states["length"].tolist(), strict=True)]


class ArenaMachine(RuleBasedStateMachine):
    """Appends, removals and compactions; readers of earlier moments keep what they had."""

    def __init__(self) -> None:
        super().__init__()
        self.arena = Arena(np.dtype(np.uint16), CHUNK)
        self.model: Model = {}
        self.frozen: list[tuple[Arena, Model]] = []
        self.longest = CHUNK
        self.next = 0

    @rule(sizes=st.lists(st.one_of(st.integers(1, 5), st.integers(1, CHUNK + 3)), min_size=1, max_size=8))
    def append(self, sizes: list[int]) -> None:
        made = [[(self.next + i * 31 + place) % 65536 for place in range(n)] for i, n in enumerate(sizes)]
        self.next += 997
        flat = np.array([token for tokens in made for token in tokens], np.uint16)
        addresses = self.arena.append(flat, np.array(sizes, np.int32)).tolist()
        assert not self.model.keys() & set(addresses)
        self.model |= dict(zip(addresses, made, strict=True))
        self.longest = max(self.longest, *sizes)

    @rule(chosen=st.sets(st.integers(0, 20), min_size=1))
    def release(self, chosen: set[int]) -> None:
        for at in sorted(chosen, reverse=True):
            if at < len(self.model):
                self.arena.release(len(self.model.pop(list(self.model)[at])))

    @rule()
    def compact(self) -> None:
        sizes = np.array([len(tokens) for tokens in self.model.values()], np.int32)
        moved = self.arena.compact(np.array(list(self.model), np.int64), sizes).tolist()
        self.model = dict(zip(moved, self.model.values(), strict=True))
        dead = self.arena.nbytes // 2 - self.arena.live
        assert dead <= self.arena.live // 9 + 2 * self.longest  # chunks of nine tenths, and two that were written last

    @rule()
    def freeze(self) -> None:
        self.frozen = [*self.frozen[-2:], (self.arena.frozen(), dict(self.model))]

    @invariant()
    def everything_reads_as_it_was(self) -> None:
        for arena, model in [(self.arena, self.model), *self.frozen]:
            assert read(arena, model) == model
            for short in (0, 2):
                assert prefixes(arena, model, short) == [
                    tokens[: max(len(tokens) - short, 0)] for tokens in model.values()
                ]

    @invariant()
    def live_tokens_are_counted(self) -> None:
        assert self.arena.live == sum(map(len, self.model.values()))
        assert self.arena.nbytes >= 2 * self.arena.live


TestArenaMachine: Any = ArenaMachine.TestCase
TestArenaMachine.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
