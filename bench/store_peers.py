"""The stores of PyPI that `bench.store` compares with, each used as its documentation advises.

They know rows of a fixed size only, so what they are given is made of the same candidates first (`rows_of`), as cheaply as
numpy can: a row per state that holds the whole response, padded to the longest one, and a length that says how much of it
is the state. (A row that holds the prefix alone takes 2 to 8 times as long to make, and no less memory.) Making the rows is
part of using these stores, as `pack` is of ours, and is timed; the time without it is reported, too. Each adds a batch with
priorities, draws states in proportion to them, and takes new priorities for what it drew.
"""

import importlib.util
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from core.errors import first_line
from core.records import Candidate, IntArray

Reals = npt.NDArray[np.float32]


class Rows(NamedTuple):
    """States as fixed-size rows."""

    tokens: npt.NDArray[np.uint16]  # [n, width]
    lengths: npt.NDArray[np.int32]  # [n] tokens of the row that are the state
    problems: npt.NDArray[np.int32]  # [n] numbers: these stores hold no text
    values: Reals  # [n] priorities, above 0


class Found(NamedTuple):
    """States as a rollout needs them."""

    problem_ids: list[str]
    prefixes: list[IntArray]
    handle: Any  # what the store finds them by again


def rows_of(candidates: Sequence[Candidate], numbers: dict[str, int], width: int) -> Rows:
    """The candidates' states as rows; problems that are not in `numbers` are entered."""
    responses, lengths = [c.response_ids for c in candidates], [c.lengths for c in candidates]
    sizes, counts = (np.fromiter(map(len, parts), np.int64, len(parts)) for parts in (responses, lengths))
    padded = np.zeros((len(candidates), width), np.uint16)
    padded[np.arange(width) < sizes[:, None]] = np.concatenate(responses)
    problems = np.array([numbers.setdefault(c.problem_id, len(numbers)) for c in candidates], np.int32)
    values = np.concatenate([c.values for c in candidates]) + np.float32(1e-3)
    return Rows(np.repeat(padded, counts, axis=0), np.concatenate(lengths), np.repeat(problems, counts), values)


def found(rows: Rows, names: Sequence[str], handle: Any) -> Found:
    """Drawn rows as prefixes, int32."""
    tokens = rows.tokens.astype(np.int32)
    prefixes = [row[:length] for row, length in zip(tokens, rows.lengths.ravel().tolist(), strict=True)]
    return Found([names[i] for i in rows.problems.ravel().tolist()], prefixes, handle)


class Peer(Protocol):
    """A prioritised buffer."""

    def add(self, rows: Rows) -> None:
        """Store states."""

    def sample(self, n: int) -> tuple[Rows, Any]:
        """Draw n states; and what `update` needs to find them again."""

    def update(self, handle: Any, values: Reals) -> None:
        """New priorities of what was drawn."""


class Cpprb:
    """cpprb.PrioritizedReplayBuffer."""

    def __init__(self, capacity: int, width: int) -> None:
        import cpprb  # type: ignore[import-not-found]

        fields = {"tokens": {"shape": width, "dtype": np.uint16}}
        fields |= {name: {"shape": 1, "dtype": np.int32} for name in ("length", "problem")}
        self._buffer = cpprb.PrioritizedReplayBuffer(capacity, fields, alpha=1.0)

    def add(self, rows: Rows) -> None:
        """See `Peer`."""
        self._buffer.add(tokens=rows.tokens, length=rows.lengths, problem=rows.problems, priorities=rows.values)

    def sample(self, n: int) -> tuple[Rows, Any]:
        """See `Peer`."""
        drawn = self._buffer.sample(n, beta=1.0)
        return Rows(drawn["tokens"], drawn["length"], drawn["problem"], drawn["weights"]), drawn["indexes"]

    def update(self, handle: Any, values: Reals) -> None:
        """See `Peer`."""
        self._buffer.update_priorities(handle, values)


class TorchRL:
    """torchrl TensorDictPrioritizedReplayBuffer over LazyTensorStorage."""

    def __init__(self, capacity: int, width: int) -> None:  # noqa: ARG002  the storage takes its shape from the first batch
        from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer  # type: ignore[import-not-found]

        self._buffer = TensorDictPrioritizedReplayBuffer(
            alpha=1.0, beta=1.0, storage=LazyTensorStorage(capacity), priority_key="priority"
        )

    def add(self, rows: Rows) -> None:
        """See `Peer`."""
        import torch
        from tensordict import TensorDict  # type: ignore[import-not-found]

        columns = {"tokens": torch.from_numpy(rows.tokens.view(np.int16)), "length": torch.from_numpy(rows.lengths)}
        columns |= {"problem": torch.from_numpy(rows.problems), "priority": torch.from_numpy(rows.values)}
        self._buffer.extend(TensorDict(columns, batch_size=[len(rows.values)]))

    def sample(self, n: int) -> tuple[Rows, Any]:
        """See `Peer`."""
        drawn = self._buffer.sample(n)
        columns = [drawn[name].numpy() for name in ("tokens", "length", "problem", "priority")]
        return Rows(columns[0].view(np.uint16), *columns[1:]), drawn

    def update(self, handle: Any, values: Reals) -> None:
        """See `Peer`."""
        import torch

        handle["priority"] = torch.from_numpy(values)
        self._buffer.update_tensordict_priority(handle)


class RLlib:
    """ray.rllib PrioritizedReplayBuffer, storage unit timesteps."""

    def __init__(self, capacity: int, width: int) -> None:  # noqa: ARG002
        from ray.rllib.utils.replay_buffers import PrioritizedReplayBuffer

        self._buffer = PrioritizedReplayBuffer(capacity=capacity, storage_unit="timesteps", alpha=1.0)

    def add(self, rows: Rows) -> None:
        """See `Peer`."""
        from ray.rllib.policy.sample_batch import SampleBatch

        first = len(self._buffer)
        self._buffer.add(SampleBatch({"tokens": rows.tokens, "length": rows.lengths, "problem": rows.problems}))
        # `add` takes one weight for a whole batch; giving it row by row with a weight each takes longer than this
        self._buffer.update_priorities(list(range(first, len(self._buffer))), rows.values.tolist())

    def sample(self, n: int) -> tuple[Rows, Any]:
        """See `Peer`."""
        drawn = self._buffer.sample(n, beta=1.0)
        rows = Rows(drawn["tokens"], drawn["length"], drawn["problem"], drawn["weights"])
        return rows, drawn["batch_indexes"]

    def update(self, handle: Any, values: Reals) -> None:
        """See `Peer`."""
        self._buffer.update_priorities(handle, values)


PEERS: dict[str, tuple[str, type]] = {
    "cpprb": ("cpprb", Cpprb),
    "torchrl": ("torchrl", TorchRL),
    "rllib": ("gymnasium", RLlib),
}


ELSEWHERE = {
    "dm-reverb": "0.14.0 needs tensorflow 2.15 and numpy 1.26, which cannot share a process with this environment",
}
"""Peers that cannot be tried here, and why."""


def installed(capacity: int, width: int) -> tuple[dict[str, Peer], dict[str, str]]:
    """The peers that are there and work, and why each of the others is left out."""
    peers: dict[str, Peer] = {}
    left_out = dict(ELSEWHERE)
    for name, (module, made) in PEERS.items():
        if importlib.util.find_spec(module) is None:
            left_out[name] = "not installed, see requirements/bench.txt"
            continue
        try:
            peers[name] = made(capacity, width)
        except (ImportError, RuntimeError) as error:  # a build of it that does not fit this environment
            left_out[name] = first_line(error)
    for name, reason in left_out.items():
        print(f"{name}: left out: {reason}")
    return peers, left_out
