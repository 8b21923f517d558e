"""Micro-batches as numpy arrays: the driver builds them, a rank only turns them into tensors. Pure numpy.

Built by `learner.packing.micro_batches`, read by `learner.distributed`. Invariant: everything per token is a flat array over
the N *continuation* tokens of the micro-batch, row after row; padding exists only in `tokens`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from core.records import FloatArray, IntArray, Trajectory

IndexArray = npt.NDArray[np.int64]
A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence and where its continuation begins: tokens[context:] are scored, tokens[:context] are only read."""

    tokens: IntArray  # [T]
    context: int  # >= 1: the first scored token needs a state before it

    @property
    def scored(self) -> int:
        """Number of scored tokens."""
        return len(self.tokens) - self.context


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What a model reads in one pass. Rows are padded, [B, T], or packed into one line, [1, T]."""

    tokens: IndexArray  # [B, T] right-padded with 0; with causal attention no real token sees the padding
    state_index: IndexArray  # [N] index into the flattened [B * T] of the state before each scored token
    targets: IndexArray  # [N] the scored tokens
    position_ids: IndexArray | None = None  # packed rows: [1, T] position of every token in its row


@dataclass(frozen=True, slots=True)
class TokenTargets(Generic[A]):
    """What the losses need, per scored token [N] float32: numpy arrays on the driver, tensors on a rank."""

    proximal: A  # log pi_prox
    advantages: A
    importance: A  # truncated pi_prox / pi_behaviour
    old_values: A  # V before the update
    returns: A  # target of V
    reference: A  # log pi_ref; log pi_prox without a reference policy
    weights: A  # of the mean over the global batch; 0: no loss
    policy_weights: A  # the same for the surrogate; 0 also where the group's rewards are equal
    positive: A  # weights of the mean over correct responses; 0 elsewhere
    sequence: A  # number of the trajectory in the batch

    def map(self, change: Callable[[A], B]) -> "TokenTargets[B]":
        """The same targets with every array changed."""
        return TokenTargets(*(change(getattr(self, field.name)) for field in fields(self)))


ArrayTargets = TokenTargets[FloatArray]


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """A micro-batch with its targets."""

    inputs: MicroBatch
    targets: ArrayTargets


def row_of(trajectory: Trajectory) -> Row:
    """A trajectory as a model reads it; prompt and replayed prefix are context."""
    return Row(trajectory.sequence_ids, len(trajectory.start.context_ids))


def one_longer(row: Row) -> Row:
    """The row with one arbitrary token more: its last score is that of the state after the row's last token."""
    return Row(np.append(row.tokens, row.tokens[-1]), row.context)


def micro_batch(rows: Sequence[Row], packed: bool = False) -> MicroBatch:
    """Rows as a model reads them, with the indices of the states before their scored tokens.

    Padded: one below the other, as wide as the longest. Packed: one after the other in a single line, without padding.
    """
    lengths = [len(row.tokens) for row in rows]
    if packed:
        begins = np.cumsum([0, *lengths[:-1]])
        tokens = np.concatenate([row.tokens for row in rows])[None].astype(np.int64)
        position_ids = np.concatenate([np.arange(length) for length in lengths])[None].astype(np.int64)
    else:
        begins = np.arange(len(rows)) * max(lengths)
        tokens, position_ids = right_padded([row.tokens for row in rows]), None
    states = [np.arange(row.context - 1, len(row.tokens) - 1) + begin for row, begin in zip(rows, begins, strict=True)]
    return MicroBatch(
        tokens=tokens,
        state_index=np.concatenate(states).astype(np.int64),
        targets=np.concatenate([row.tokens[row.context :] for row in rows]).astype(np.int64),
        position_ids=position_ids,
    )


def right_padded(rows: Sequence[IntArray]) -> IndexArray:
    """[B, T] the rows one below the other, as wide as the longest, with 0 behind the shorter ones."""
    tokens = np.zeros((len(rows), max(map(len, rows))), dtype=np.int64)
    for b, row in enumerate(rows):
        tokens[b, : len(row)] = row
    return tokens


def padding_share(batches: Sequence[MicroBatch], rows: Sequence[Row]) -> float:
    """Share of padding (and filler rows) in the tokens that the models read."""
    read = sum(batch.tokens.size for batch in batches)
    return 1.0 - sum(len(row.tokens) for row in rows) / read if read else 0.0
