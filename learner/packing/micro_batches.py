"""Micro-batches as numpy arrays, which a rank only turns into tensors. Invariants: what is per token is flat over the N
*scored* tokens, row after row; tokens that rows share exist once in what a model reads."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from core.records import Flags, FloatArray, IntArray, Rollout
from learner.packing.assign import Assignment
from learner.packing.trees import IndexArray, line_of

A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence and where its continuation begins; what is before it, and an environment's tokens, are only read."""

    tokens: IntArray  # [T]
    context: int  # >= 1: the first scored token needs a state before it
    mask: Flags | None = None  # [T - context] which tokens behind the context are scored; None: all

    @property
    def places(self) -> IndexArray:
        """[N] positions of the scored tokens."""
        behind = np.arange(self.context, len(self.tokens))
        return behind if self.mask is None else behind[self.mask]

    @property
    def scored(self) -> int:
        """Number of scored tokens."""
        return len(self.tokens) - self.context if self.mask is None else int(self.mask.sum())


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What a model reads in one pass: a line of prefix trees, and which of its tokens are scored. A token that rows
    share is scored once, M times in all, although each of these rows has its own loss term for it."""

    tokens: IndexArray  # [T] the line
    depths: IndexArray  # [T] position of each token in its rows
    state_index: IndexArray  # [M] place in the line of the state before each scored token
    targets: IndexArray  # [M] the scored tokens
    copies: IndexArray  # [N] which of the M scores each row's scored tokens have, row after row


@dataclass(frozen=True, slots=True)
class Components(Generic[A]):
    """Something of every component of the loss: what it weighs, or its coefficient."""

    rl: A  # the surrogate (`learner.policy_losses`)
    ce: A  # the language-model loss of correct and imitated responses
    kl: A  # the KL to the reference policy
    entropy: A  # the bonus; its weights are those of the statistics, too
    value: A  # the critic's loss

    def map(self, change: Callable[[A], B]) -> "Components[B]":
        """The same of every component, changed."""
        return Components(*(change(getattr(self, field.name)) for field in fields(self)))


@dataclass(frozen=True, slots=True)
class TokenColumns(Generic[A]):
    """What the losses compare a model's outputs with, per scored token [N]: numpy arrays on the driver, tensors on a
    rank."""

    proximal: A  # log pi_prox
    advantages: A
    old_values: A  # V before the update
    returns: A  # target of V
    reference: A  # log pi_ref; log pi_prox without a reference policy
    sequence: A  # int64: number of the token's row in the batch

    def map(self, change: Callable[[A], B]) -> "TokenColumns[B]":
        """The same columns with every array changed."""
        return TokenColumns(*(change(getattr(self, field.name)) for field in fields(self)))


Columns = TokenColumns[npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """A micro-batch, and of its N scored tokens the columns and what they weigh in the step."""

    inputs: MicroBatch
    columns: Columns
    weights: Components[FloatArray]


def row_of(trajectory: Rollout) -> Row:
    """A trajectory as a model reads it; prompt, replayed prefix and the tokens of an environment are context."""
    return Row(trajectory.sequence_ids, len(trajectory.start.context_ids), trajectory.mask)


def micro_batch(rows: Sequence[Row]) -> MicroBatch:
    """Rows as a model reads them."""
    return merged([row.tokens for row in rows], [row.places for row in rows])


def over_continuation(found: FloatArray, trajectory: Rollout) -> FloatArray:
    """Numbers of the scored tokens [N] as numbers of all tokens of the continuation [C], 0 for an environment's."""
    if trajectory.mask is None:
        return found
    spread = np.zeros(len(trajectory.tokens), np.float32)
    spread[trajectory.mask] = found
    return spread


def merged(rows: Sequence[IntArray], scored: Sequence[IndexArray | IntArray]) -> MicroBatch:
    """Rows of tokens [len] as a model reads them; `scored`: the positions (>= 1) of each row's scored tokens."""
    tokens, depths, places = line_of(rows)
    after = np.concatenate([own[at] for own, at in zip(places, scored, strict=True)])
    before = np.concatenate([own[at - 1] for own, at in zip(places, scored, strict=True)])
    once, first, copies = np.unique(after, return_index=True, return_inverse=True)
    return MicroBatch(tokens, depths, before[first], tokens[once], copies)


def shared_share(batches: Sequence[MicroBatch], rows: Sequence[Row]) -> float:
    """Share of the rows' tokens that need not be read, because another row of the micro-batch begins with them."""
    read, whole = sum(batch.tokens.size for batch in batches), sum(len(row.tokens) for row in rows)
    return 1.0 - read / whole if read else 0.0


def input_batches(assignment: Assignment, rows: Sequence[Row]) -> list[list[MicroBatch]]:
    """The micro-batches of every rank."""
    return [[micro_batch_of(group, rows) for group in groups] for groups in assignment]


def results_by_row(
    assignment: Assignment, rows: Sequence[Row], results: Sequence[Sequence[FloatArray]]
) -> list[FloatArray]:
    """Results [rank][micro-batch] -> [N] as one array per row."""
    out: list[FloatArray] = [np.zeros(0, dtype=np.float32)] * len(rows)
    for groups, flats in zip(assignment, results, strict=True):
        for group, flat in zip(groups, flats, strict=True):
            offset = 0
            for row in group:
                out[row] = flat[offset : offset + rows[row].scored].copy()
                offset += rows[row].scored
    return out


def micro_batch_of(group: IntArray, rows: Sequence[Row]) -> MicroBatch:
    """Some of the rows as a model reads them; none (ranks make equally many passes): a filler row without loss."""
    return micro_batch([rows[i] for i in group] if len(group) else [Row(rows[0].tokens[:2], 1)])
