"""What travels between the driver and a rollout actor: jobs one way, finished continuations in flat arrays the other.

Built by `actors/engine.py`, taken apart by `actors/ledger.py`. No Ray, no engine. Invariant: `pack` and `unpack` are
inverse, and a batch is a handful of arrays however many continuations it holds, so that one message carries them all.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from core.records import Finish, FloatArray, IntArray, Start


@dataclass(frozen=True, slots=True)
class Job:
    """The samples of one start that an engine shall generate (all of them, or those that a dead engine left over)."""

    start: Start
    samples: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Continuation:
    """One finished sample of the start `start_id`; fields as in `core.records.Trajectory`."""

    start_id: str
    sample: int
    tokens: IntArray  # [C]
    logprobs: FloatArray  # [C]
    versions: IntArray  # [C]
    finish: Finish


@dataclass(frozen=True, slots=True)
class FlatBatch:
    """N finished continuations with T tokens in total."""

    start_ids: list[str]  # N
    samples: IntArray  # [N]
    finishes: IntArray  # [N] values of Finish
    ends: npt.NDArray[np.int64]  # [N] end of each continuation in the arrays below
    tokens: IntArray  # [T]
    logprobs: FloatArray  # [T]
    versions: IntArray  # [T]

    def __len__(self) -> int:
        return len(self.start_ids)


def pack(continuations: Sequence[Continuation]) -> FlatBatch:
    """Concatenate finished continuations, in the order given."""
    return FlatBatch(
        start_ids=[one.start_id for one in continuations],
        samples=np.array([one.sample for one in continuations], dtype=np.int32),
        finishes=np.array([one.finish for one in continuations], dtype=np.int32),
        ends=np.cumsum([len(one.tokens) for one in continuations], dtype=np.int64),
        tokens=np.concatenate([np.empty(0, np.int32), *(one.tokens for one in continuations)]),
        logprobs=np.concatenate([np.empty(0, np.float32), *(one.logprobs for one in continuations)]),
        versions=np.concatenate([np.empty(0, np.int32), *(one.versions for one in continuations)]),
    )


def unpack(batch: FlatBatch) -> Iterator[Continuation]:
    """The continuations, as views of one writable copy of the arrays (those that Ray hands out are read-only)."""
    tokens, logprobs, versions = batch.tokens.copy(), batch.logprobs.copy(), batch.versions.copy()
    begin = 0
    for start_id, sample, finish, end in zip(
        batch.start_ids, batch.samples.tolist(), batch.finishes.tolist(), batch.ends.tolist(), strict=True
    ):
        part = slice(begin, end)
        yield Continuation(start_id, sample, tokens[part], logprobs[part], versions[part], Finish(finish))
        begin = end
