"""Micro-batches of supervised training as ready arrays: texts with some tokens to learn, and pairs of dialogues. Pure numpy.

Built on the driver by `commands/sft.py` and `commands/reward_model.py`, read by `learner/supervised.py`. Invariant: weights add up to
one over the micro-batches of a step, so that the loss is a mean over the step however it is cut.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from core.records import FloatArray, IntArray
from learner.packing.batch import IndexArray, MicroBatch
from learner.packing.plan import plan


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
    """A micro-batch of texts: which tokens are learned, and what each counts in the mean over the step."""

    inputs: MicroBatch
    weights: FloatArray  # [N]


@dataclass(frozen=True, slots=True)
class PairBatch:
    """A micro-batch of pairs: the chosen dialogues, then the rejected ones."""

    tokens: IndexArray  # [2 N, T] right-padded
    lengths: IndexArray  # [2 N]
    weights: FloatArray  # [N] what each pair counts in the mean over the step


def text_batches(texts: Sequence[Text], budget: int, ranks: int) -> list[list[TokenBatch]]:
    """[rank][micro-batch] of one step over these texts, every learned token counting alike; `budget` in tokens."""
    weight = 1.0 / sum(len(text.learned) for text in texts)
    cut = plan([len(text.tokens) for text in texts], budget, ranks)
    return [
        [
            _token_batch([texts[i] for i in group], weight) if len(group) else _token_batch(texts[:1], 0.0)
            for group in groups
        ]
        for groups in cut
    ]


def pair_batches(pairs: Sequence[Pair], budget: int, ranks: int) -> list[list[PairBatch]]:
    """[rank][micro-batch] of one step over these pairs, every pair counting alike; `budget` in tokens."""
    cut = plan([2 * pair.width for pair in pairs], budget, ranks)
    weight = 1.0 / len(pairs)
    return [
        [
            _pair_batch([pairs[i] for i in group], weight) if len(group) else _pair_batch(pairs[:1], 0.0)
            for group in groups
        ]
        for groups in cut
    ]


def _token_batch(texts: Sequence[Text], weight: float) -> TokenBatch:
    width = max(len(text.tokens) for text in texts)
    tokens = np.zeros((len(texts), width), dtype=np.int64)
    for row, text in enumerate(texts):
        tokens[row, : len(text.tokens)] = text.tokens
    inputs = MicroBatch(
        tokens=tokens,
        places=None,
        positions=np.concatenate([text.learned - 1 + row * width for row, text in enumerate(texts)]).astype(np.int64),
        targets=np.concatenate([text.tokens[text.learned] for text in texts]).astype(np.int64),
        counts=np.array([len(text.learned) for text in texts], dtype=np.int64),
    )
    return TokenBatch(inputs, np.full(len(inputs.targets), weight, dtype=np.float32))


def _pair_batch(pairs: Sequence[Pair], weight: float) -> PairBatch:
    rows = [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]
    tokens = np.zeros((len(rows), max(map(len, rows))), dtype=np.int64)
    for number, row in enumerate(rows):
        tokens[number, : len(row)] = row
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    return PairBatch(tokens, lengths, np.full(len(pairs), weight, dtype=np.float32))
