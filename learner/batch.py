"""A batch with what every token weighs in every component of the loss. `learner.credit` makes it, and the learner knows
no more of the algorithm. Invariant: what a token weighs in an optimizer step depends only on the rows of the step, not
on how they are cut into micro-batches."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from core.records import FloatArray, IntArray, Rollout, Start, Use, used
from learner.losses import Doubles
from learner.packing.assign import Assignment
from learner.packing.micro_batches import Columns, Components, Row, TrainBatch, micro_batch_of, row_of
from learner.packing.trees import IndexArray
from learner.stats import BatchStats


@dataclass(frozen=True, slots=True)
class Component:
    """One component of the loss: `coefficient` x the weighted sum of a loss per token. In an optimizer step a token
    weighs what `tokens` says, times its row's `share`, divided by the sum of `divisor` over the rows of the step."""

    coefficient: float  # 0: no part of the loss
    tokens: FloatArray  # [N]
    share: Doubles  # [n] 0: the row is left out
    divisor: Doubles  # [n] 0 for a row that is left out


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch ready to train on. The N tokens of row i are [offsets[i], offsets[i + 1]) of the flat arrays."""

    rollouts: list[Rollout]  # one per row: those to train on, then those to imitate
    offsets: IndexArray  # [n + 1]
    columns: Columns
    components: Components[Component]
    stats: BatchStats  # of the rollouts to train on

    @property
    def rows(self) -> list[Row]:
        """The rollouts as a model reads them."""
        return [row_of(rollout) for rollout in self.rollouts]

    @property
    def coefficients(self) -> Components[float]:
        """The coefficient of every component."""
        return self.components.map(lambda component: component.coefficient)

    def starts(self, use: Use) -> list[Start]:
        """The starts of the rollouts of one use, in order."""
        return [rollout.start for rollout in used(self.rollouts, use)]

    def weights(self, rows: Sequence[int]) -> Components[FloatArray]:
        """What each of the N tokens weighs in an optimizer step on `rows`; 0 in other rows."""
        members, counts = list(rows), np.diff(self.offsets)

        def _weights(component: Component) -> FloatArray:
            scale = np.zeros(len(counts), np.float32)
            scale[members] = component.share[members] / max(1.0, float(component.divisor[members].sum()))
            weights: FloatArray = np.repeat(scale, counts) * component.tokens
            return weights

        return self.components.map(_weights)

    def policy_learns(self, rows: Sequence[int] | None = None) -> bool:
        """Whether the policy learns from some rows (None: from the batch). A KL in the loss alone makes no step,
        because Adam would enlarge rounding errors; where something else of the batch teaches, it does."""
        if not self._teaches(slice(None)):
            return False
        return rows is None or self.components.kl.coefficient > 0 or self._teaches(self.token_index(rows))

    def _teaches(self, tokens: IndexArray | slice) -> bool:
        """Whether tokens have an advantage, are of a correct or imitated response, or have the entropy bonus."""
        parts = self.components
        advantages = parts.rl.coefficient > 0 and bool(self.columns.advantages[tokens].any())
        repeated = parts.ce.coefficient > 0 and bool(parts.ce.tokens[tokens].any())
        return advantages or repeated or parts.entropy.coefficient > 0

    def token_index(self, rows: Sequence[int]) -> IndexArray:
        """Flat token positions of some rows, in order."""
        begins = self.offsets[:-1][list(rows)]
        counts = np.diff(self.offsets)[list(rows)]
        before = np.cumsum(counts) - counts  # tokens of the rows before each
        return np.repeat(begins - before, counts) + np.arange(counts.sum())

    def finite(self, rows: Sequence[int]) -> bool:
        """Whether all numbers are finite and no squared error of V overflows, also in rows without loss (0 x NaN)."""
        index = self.token_index(rows)
        part = self.columns.map(lambda column: column[index])
        with np.errstate(over="ignore", invalid="ignore"):
            squared = np.square(part.old_values - part.returns)
        columns = (part.proximal, part.advantages, self.components.rl.tokens[index], part.reference, squared)
        return all(bool(np.isfinite(column).all()) for column in columns)

    def micro_batches(self, assignment: Assignment, members: Sequence[int]) -> list[list[TrainBatch]]:
        """The micro-batches [rank][...] of an optimizer step; `assignment` has positions in `members`."""
        rows = [row_of(self.rollouts[i]) for i in members]
        weights = self.weights(members)

        def _train_batch(group: IntArray) -> TrainBatch:
            index = self.token_index([members[i] for i in group])

            def _own(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
                return array[index] if len(group) else np.zeros(1, array.dtype)  # of a filler row without loss

            return TrainBatch(micro_batch_of(group, rows), self.columns.map(_own), weights.map(_own))

        return [[_train_batch(group) for group in groups] for groups in assignment]

    def skipped_problems(self, minibatches: Sequence[Sequence[int]], skipped: Sequence[bool]) -> list[str]:
        """Problem ids of the skipped steps at the end of an update, of rollouts with a NaN or Inf if there are any.
        Imitated answers are not suspected."""
        first = len(skipped) - next((back for back, flag in enumerate(reversed(skipped)) if not flag), len(skipped))
        rows = {row for members in minibatches[first:] for row in members}
        rollouts = [self.rollouts[row] for row in rows if self.rollouts[row].use is Use.TRAIN]
        suspects = [rollout for rollout in rollouts if non_finite(rollout)] or rollouts
        return sorted({rollout.start.problem_id for rollout in suspects})


def non_finite(scored: Rollout) -> bool:
    """Whether any number of a rollout that enters the loss is NaN or Inf."""
    numbers = [scored.values, scored.proximal, scored.logprobs, scored.reference]
    finite = all(bool(np.isfinite(array).all()) for array in numbers)
    return not (finite and math.isfinite(scored.verdict.reward))
