"""The stores of PyPI that `bench.store` compares with, each used as its documentation advises.

They know fixed-size rows only, so a state is its prefix, padded to the longest response. Their inputs are padded outside
the timing. Each adds a batch, draws a batch in proportion to priority, and updates the priorities of what it drew.
"""

import importlib.util
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Padded = npt.NDArray[np.uint16]
Reals = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]


class Peer(Protocol):
    """A prioritised buffer."""

    def add(self, tokens: Padded, lengths: Ints, values: Reals) -> None:
        """Store states [n, width] with priorities `values`."""

    def sample(self, n: int) -> Any:
        """Draw n states; what `update` needs to find them again."""

    def update(self, drawn: Any, values: Reals) -> None:
        """New priorities."""


class Cpprb:
    """cpprb.PrioritizedReplayBuffer."""

    def __init__(self, capacity: int, width: int) -> None:
        import cpprb  # type: ignore[import-not-found]

        fields = {"tokens": {"shape": width, "dtype": np.uint16}, "length": {"dtype": np.int32}, "value": {}}
        self._buffer = cpprb.PrioritizedReplayBuffer(capacity, fields, alpha=1.0)

    def add(self, tokens: Padded, lengths: Ints, values: Reals) -> None:
        """See `Peer`."""
        self._buffer.add(tokens=tokens, length=lengths, value=values, priorities=values)

    def sample(self, n: int) -> Any:
        """See `Peer`."""
        return self._buffer.sample(n, beta=1.0)["indexes"]

    def update(self, drawn: Any, values: Reals) -> None:
        """See `Peer`."""
        self._buffer.update_priorities(drawn, values)


class TorchRL:
    """torchrl TensorDictPrioritizedReplayBuffer over LazyTensorStorage."""

    def __init__(self, capacity: int, width: int) -> None:  # noqa: ARG002  the storage takes its shape from the first batch
        from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer  # type: ignore[import-not-found]

        self._buffer = TensorDictPrioritizedReplayBuffer(
            alpha=1.0, beta=1.0, storage=LazyTensorStorage(capacity), priority_key="priority"
        )

    def add(self, tokens: Padded, lengths: Ints, values: Reals) -> None:
        """See `Peer`."""
        import torch
        from tensordict import TensorDict  # type: ignore[import-not-found]

        rows = {"tokens": torch.from_numpy(tokens.view(np.int16)), "length": torch.from_numpy(lengths)}
        rows |= {"value": torch.from_numpy(values), "priority": torch.from_numpy(values)}
        self._buffer.extend(TensorDict(rows, batch_size=[len(values)]))

    def sample(self, n: int) -> Any:
        """See `Peer`."""
        return self._buffer.sample(n)

    def update(self, drawn: Any, values: Reals) -> None:
        """See `Peer`."""
        import torch

        drawn["priority"] = torch.from_numpy(values)
        self._buffer.update_tensordict_priority(drawn)


class RLlib:
    """ray.rllib PrioritizedReplayBuffer, storage unit timesteps."""

    def __init__(self, capacity: int, width: int) -> None:  # noqa: ARG002
        from ray.rllib.utils.replay_buffers import PrioritizedReplayBuffer

        self._buffer = PrioritizedReplayBuffer(capacity=capacity, storage_unit="timesteps", alpha=1.0)

    def add(self, tokens: Padded, lengths: Ints, values: Reals) -> None:
        """See `Peer`."""
        from ray.rllib.policy.sample_batch import SampleBatch

        self._buffer.add(SampleBatch({"tokens": tokens, "length": lengths, "value": values}))

    def sample(self, n: int) -> Any:
        """See `Peer`."""
        return self._buffer.sample(n, beta=1.0)["batch_indexes"]

    def update(self, drawn: Any, values: Reals) -> None:
        """See `Peer`."""
        self._buffer.update_priorities(drawn, values)


PEERS: dict[str, tuple[str, type]] = {
    "cpprb": ("cpprb", Cpprb),
    "torchrl": ("torchrl", TorchRL),
    "rllib": ("gymnasium", RLlib),
}


def installed(capacity: int, width: int) -> dict[str, Peer]:
    """The peers that are there and work; one line about each that does not."""
    found: dict[str, Peer] = {}
    for name, (module, made) in PEERS.items():
        if importlib.util.find_spec(module) is None:
            print(f"{name}: not installed (requirements/bench.txt)")
            continue
        try:
            found[name] = made(capacity, width)
        except (ImportError, RuntimeError) as error:  # a build of it that does not fit this environment
            print(f"{name}: left out: {error}")
    return found
