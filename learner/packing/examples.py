"""Micro-batches of supervised training: texts with some tokens to learn, and pairs of dialogues. Invariant: weights add
up to one over the micro-batches of a step, so the loss is a mean over the step however it is split."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from core.records import FloatArray, IntArray
from learner.packing.assign import Assignment, assign_padded, assign_trees
from learner.packing.batch import MicroBatch, merged, right_padded
from learner.packing.trees import IndexArray

Example = TypeVar("Example")
Batch = TypeVar("Batch")


@dataclass(frozen=True, slots=True)
class Text:
    """A tokenized text and which of its tokens are learned."""

    tokens: IntArray  # [T]
    learned: IntArray  # [K] increasing positions in [1, T): the first token has nothing before it


@dataclass(frozen=True, slots=True)
class Pair:
    """Two tokenized dialogues, of which the first is preferred."""

    chosen: IntArray
    rejected: IntArray

    @property
    def width(self) -> int:
        """Tokens of the longer one."""
        return max(len(self.chosen), len(self.rejected))


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """A micro-batch of texts: which tokens are learned, and the weight of each in the mean over the step."""

    inputs: MicroBatch
    weights: FloatArray  # [N]


@dataclass(frozen=True, slots=True)
class PairBatch:
    """A micro-batch of pairs: the chosen dialogues, then the rejected ones."""

    tokens: IndexArray  # [2 N, T] right-padded
    lengths: IndexArray  # [2 N]
    weights: FloatArray  # [N] weight of each pair in the mean over the step


def text_batches(texts: Sequence[Text], budget: int, ranks: int) -> list[list[TokenBatch]]:
    """[rank][micro-batch] of one step over these texts; every learned token has the same weight. `budget` in tokens."""
    weight = 1.0 / sum(len(text.learned) for text in texts)
    return _built(texts, assign_trees([text.tokens for text in texts], budget, ranks), weight, _token_batch)


def pair_batches(pairs: Sequence[Pair], budget: int, ranks: int) -> list[list[PairBatch]]:
    """[rank][micro-batch] of one step over these pairs, all of one weight. `budget`: tokens, padding included."""
    assignment = assign_padded([2 * pair.width for pair in pairs], budget, ranks)
    return _built(pairs, assignment, 1.0 / len(pairs), _pair_batch)


def _built(
    examples: Sequence[Example],
    assignment: Assignment,
    weight: float,
    build: Callable[[Sequence[Example], float], Batch],
) -> list[list[Batch]]:
    """An empty micro-batch becomes the first example with weight 0."""
    return [
        [build([examples[i] for i in group], weight) if len(group) else build(examples[:1], 0.0) for group in groups]
        for groups in assignment
    ]


def _token_batch(texts: Sequence[Text], weight: float) -> TokenBatch:
    inputs = merged([text.tokens for text in texts], [text.learned for text in texts])
    return TokenBatch(inputs, np.full(len(inputs.copies), weight, dtype=np.float32))


def _pair_batch(pairs: Sequence[Pair], weight: float) -> PairBatch:
    rows = [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    return PairBatch(right_padded(rows), lengths, np.full(len(pairs), weight, dtype=np.float32))
