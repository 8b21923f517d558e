"""Applies a packing plan: rows to micro-batches per rank, and flat results back to rows. Pure numpy.

Called by `learner.group` on the driver. Invariant: filler rows (for micro-batches that only keep the ranks in step) carry no
loss and their results are dropped.
"""

from collections.abc import Sequence

import numpy as np

from core.records import FloatArray, IntArray
from learner.losses import Aggregation
from learner.packing.batch import MicroBatch, Row, TrainBatch, micro_batch, zero_targets
from learner.prepare import Prepared

Cut = list[list[IntArray]]
"""[rank][micro-batch] -> row numbers (`learner.packing.plan.plan`)."""


def inputs(cut: Cut, rows: Sequence[Row], packed: bool) -> list[list[MicroBatch]]:
    """The micro-batches of every rank."""
    return [[_pack(group, rows, packed) for group in groups] for groups in cut]


def train_batches(
    cut: Cut, prepared: Prepared, members: Sequence[int], how: Aggregation, packed: bool = False
) -> list[list[TrainBatch]]:
    """The micro-batches of one optimizer step over the trajectories `members` (the cut counts within them), per rank."""
    rows = [prepared.rows[i] for i in members]
    targets = prepared.weighted(members, how)
    return [
        [
            TrainBatch(
                _pack(group, rows, packed),
                targets.take(prepared.index([members[i] for i in group])) if len(group) else zero_targets(1),
            )
            for group in groups
        ]
        for groups in cut
    ]


def scatter(cut: Cut, rows: Sequence[Row], columns: Sequence[Sequence[FloatArray]]) -> list[FloatArray]:
    """Results [rank][micro-batch] -> [N] back to one array per row."""
    out: list[FloatArray] = [np.zeros(0, dtype=np.float32)] * len(rows)
    for groups, flats in zip(cut, columns, strict=True):
        for group, flat in zip(groups, flats, strict=True):
            offset = 0
            for row in group:
                out[row] = flat[offset : offset + rows[row].scored].copy()
                offset += rows[row].scored
    return out


def _pack(group: IntArray, rows: Sequence[Row], packed: bool) -> MicroBatch:
    return micro_batch([rows[i] for i in group] if len(group) else [Row(rows[0].tokens[:2], 1)], packed)
