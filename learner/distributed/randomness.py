"""Every random state that a rank's passes could draw from: torch's on the CPU and on its accelerator, Python's and NumPy's.

Called by `learner.distributed.worker` for checkpoints. Nothing in the learner draws any (there is no dropout), but what a model from elsewhere
draws must go on as well. Invariant: a state that was read and set again gives the same numbers; no CUDA is needed.
"""

import random
from typing import Any

import numpy as np
import torch

States = dict[str, Any]
"""By generator; of tensors, numbers and tuples alone, so that `torch.load` reads it without running code."""


def read(device: torch.device) -> States:
    """The states of this process; the accelerator's where `device` is one."""
    kind, keys, *rest = np.random.get_state(legacy=True)
    states: States = {
        "cpu": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": (kind, torch.from_numpy(np.asarray(keys)), *rest),
    }
    if device.type != "cpu":
        states[device.type] = torch.get_device_module(device).get_rng_state(device)
    return states


def write(states: States | torch.Tensor, device: torch.device) -> None:
    """Set what `read` gave. Generators that `states` does not know (of another device, or of an old checkpoint) stay as they are.

    Args:
        states: or the state of torch's CPU generator alone, which is what checkpoints held at first.
        device: of this process.
    """
    if isinstance(states, torch.Tensor):
        states = {"cpu": states}
    torch.set_rng_state(states["cpu"])
    if "python" in states:
        random.setstate(states["python"])
    if "numpy" in states:
        kind, keys, *rest = states["numpy"]
        np.random.set_state((kind, keys.numpy(), *rest))
    if device.type in states and device.type != "cpu":
        torch.get_device_module(device).set_rng_state(states[device.type], device)
