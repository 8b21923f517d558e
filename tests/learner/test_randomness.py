import random
from pathlib import Path

import numpy as np
import torch

from learner.distributed import randomness

CPU = torch.device("cpu")


def draw() -> list[float]:
    numbers = [
        random.random(),
        random.gauss(0, 1),
        np.random.rand(),
        np.random.standard_normal(),
        float(torch.rand(())),
    ]
    if torch.accelerator.is_available():
        numbers.append(float(torch.rand((), device=torch.accelerator.current_accelerator())))
    return numbers


def test_every_generator_goes_on_from_a_file_as_if_nothing_had_been_drawn_since(tmp_path: Path) -> None:
    device = torch.accelerator.current_accelerator(check_available=True) or CPU
    draw()  # a second normal number is kept by Python and NumPy
    torch.save(randomness.read(device), tmp_path / "rng.pt")
    first = draw() + draw()
    randomness.write(torch.load(tmp_path / "rng.pt"), device)
    assert draw() + draw() == first
    randomness.write(torch.load(tmp_path / "rng.pt"), CPU)  # on a machine without the accelerator


def test_the_state_of_an_old_checkpoint_is_torchs_alone(tmp_path: Path) -> None:
    torch.save(torch.get_rng_state(), tmp_path / "rng.pt")
    first = float(torch.rand(()))
    random.seed(1)
    randomness.write(torch.load(tmp_path / "rng.pt"), CPU)
    assert float(torch.rand(())) == first
    assert random.random() == random.Random(1).random()
