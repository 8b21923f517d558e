"""The recipe of chained arithmetic, timed iteration by iteration. Used by `bench.loop` and `bench.asynchronous`."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.models import ROOT
from bench.tasks.starters import Settings, build_starter
from core.config import Config, Device, ResolvedConfig
from core.interruption import Interruption
from core.load import AnyConfig, load_config, override
from core.run_directory import RunDirectory
from trainer import build
from trainer.build import ModelAndTask
from trainer.loop import iterate
from trainer.metrics import PhaseClock, PhaseSeconds
from trainer.run import Run

ARITHMETIC = load_config(ROOT / "configs" / "arithmetic.yaml")
HARDLY = Settings(slip=0.6, steps=20)
"""A hardly trained starter of the recipe."""


class Lap(NamedTuple):
    """One iteration."""

    tokens: int  # generated
    seconds: PhaseSeconds


def changed(config: AnyConfig, fields: Mapping[str, object]) -> AnyConfig:
    """The configuration with other values of 'section.field'."""
    return override(config, [text for name, value in fields.items() for text in (f"--{name}", str(value))])


def recipe(fields: Mapping[str, object]) -> Config:
    """The recipe with a hardly trained starter, whose responses use up their budget, no warm-up of the critic and no
    reference policy, as TRL's trainer by default."""
    model = build_starter(ROOT / ".cache" / "starters" / "hardly", HARDLY, ARITHMETIC.task)
    return changed(
        ARITHMETIC, {"model.path": model, "learner.critic_warmup": 0, "algorithm.kl_coefficient": 0.0, **fields}
    )


@contextmanager
def opened(config: ResolvedConfig, ready: ModelAndTask, device: Device, folder: Path) -> Iterator[Run]:
    """Start new engines, ranks and a store; their run is in a new folder inside `folder`."""
    directory = RunDirectory.create(folder, f"run-{len(list(folder.iterdir()))}", "bench")
    with build.opened(directory, replace(ready, config=config), device) as run:
        yield run


def run_lap(run: Run, number: int) -> Lap:
    """Run and time iteration `number`."""
    clock = PhaseClock()
    report = iterate(run, run.at(number), clock, Interruption())
    return Lap(sum(rollout.tokens.size for rollout in report.trained), clock.seconds())


def middle(laps: Iterable[Lap], figure: Callable[[Lap], float]) -> float:
    """Median of a figure over iterations."""
    return median(map(figure, laps))
