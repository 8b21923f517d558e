"""Micro-batches as ready arrays: what the driver sends and a rank turns into tensors without thinking. Pure numpy.

Built by `learner.group` from `learner.packing.plan.plan`, read by `learner.distributed.worker`. Invariant: everything per token is a flat
array over the N *continuation* tokens of the micro-batch, row after row; padding exists only in `tokens`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from core.records import FloatArray, IntArray

IndexArray = npt.NDArray[np.int64]


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
    """What a model reads in one pass."""

    tokens: IndexArray  # [B, T] right-padded with 0; causal attention keeps the padding from every real token. Packed: [1, T]
    places: IndexArray | None  # packed, [1, T]: place of every token in its row, from 0: rows do not see each other
    positions: IndexArray  # [N] index into the flattened [B * T] of the state before each scored token
    targets: IndexArray  # [N] the scored tokens
    counts: IndexArray  # [B] scored tokens per row


@dataclass(frozen=True, slots=True)
class TokenTargets:
    """What the losses need, per scored token [N] float32."""

    proximal: FloatArray  # log pi_prox
    advantages: FloatArray
    importance: FloatArray  # truncated pi_prox / pi_behaviour
    old_values: FloatArray  # V before the update
    returns: FloatArray  # target of V
    reference: FloatArray  # log pi_ref; zeros without a reference policy
    weights: FloatArray  # of the mean over the global batch; 0: no loss

    def take(self, index: IndexArray) -> "TokenTargets":
        """The targets of some tokens."""
        return TokenTargets(*(getattr(self, field.name)[index] for field in fields(self)))


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """A micro-batch with its targets."""

    inputs: MicroBatch
    targets: TokenTargets


def micro_batch(rows: Sequence[Row], packed: bool = False) -> MicroBatch:
    """Rows as a model reads them, with pointers at the states before their scored tokens.

    Padded: one below the other, as wide as the longest. Packed: one after the other in a single line, without padding.
    """
    lengths = [len(row.tokens) for row in rows]
    if packed:
        begins = np.cumsum([0, *lengths[:-1]])
        tokens = np.concatenate([row.tokens for row in rows])[None].astype(np.int64)
        places = np.concatenate([np.arange(length) for length in lengths])[None].astype(np.int64)
    else:
        begins = np.arange(len(rows)) * max(lengths)
        tokens, places = np.zeros((len(rows), max(lengths)), dtype=np.int64), None
        for b, row in enumerate(rows):
            tokens[b, : lengths[b]] = row.tokens
    states = [np.arange(row.context - 1, len(row.tokens) - 1) + begin for row, begin in zip(rows, begins, strict=True)]
    return MicroBatch(
        tokens=tokens,
        places=places,
        positions=np.concatenate(states).astype(np.int64),
        targets=np.concatenate([row.tokens[row.context :] for row in rows]).astype(np.int64),
        counts=np.array([row.scored for row in rows], dtype=np.int64),
    )


def zero_targets(count: int) -> TokenTargets:
    """Targets without any loss, for filler rows."""
    zeros = np.zeros(count, dtype=np.float32)
    return TokenTargets(*(zeros for _ in fields(TokenTargets)))


def padding_share(batches: Sequence[MicroBatch], rows: Sequence[Row]) -> float:
    """Share of padding (and filler rows) in what the models read."""
    read = sum(batch.tokens.size for batch in batches)
    return 1.0 - sum(len(row.tokens) for row in rows) / read if read else 0.0
