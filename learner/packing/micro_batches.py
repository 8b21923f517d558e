"""From rows and their assignment to the micro-batches of every rank, and from flat results back to rows. Pure numpy.

Called by `learner.group` on the driver. Invariant: an empty micro-batch (needed because all ranks make equally many passes) becomes
a filler row without loss, whose results are dropped.
"""

from collections.abc import Sequence

import numpy as np

from core.records import FloatArray, IntArray
from learner.losses import Aggregation
from learner.packing.assign import Assignment
from learner.packing.batch import MicroBatch, Row, TrainBatch, micro_batch
from learner.targets import TargetBatch


def input_batches(assignment: Assignment, rows: Sequence[Row]) -> list[list[MicroBatch]]:
    """The micro-batches of every rank."""
    return [[_micro_batch(group, rows) for group in groups] for groups in assignment]


def train_batches(
    assignment: Assignment, batch: TargetBatch, members: Sequence[int], how: Aggregation, longest: int = 0
) -> list[list[TrainBatch]]:
    """The micro-batches of one optimizer step over the trajectories `members`, per rank; `assignment` has positions in `members`."""
    rows = [batch.rows[i] for i in members]
    targets = batch.weighted(members, how, longest)

    def _train_batch(group: IntArray) -> TrainBatch:
        index = batch.token_index([members[i] for i in group])
        own = targets.map(lambda column: column[index] if len(group) else np.zeros(1, np.float32))
        return TrainBatch(_micro_batch(group, rows), own)

    return [[_train_batch(group) for group in groups] for groups in assignment]


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


def _micro_batch(group: IntArray, rows: Sequence[Row]) -> MicroBatch:
    return micro_batch([rows[i] for i in group] if len(group) else [Row(rows[0].tokens[:2], 1)])
