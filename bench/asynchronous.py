"""What asynchronous mode gains: `python -m bench.asynchronous [--quick]`.

The demo recipe's loop with a hardly trained starter, on two cores, under two loads: as the recipe has it, where the update takes most
of an iteration, and with an engine that decodes 16 sequences at once instead of 256, so that rollouts take about as long as
everything else - where asynchrony has the most to gain, and the two sides have the most to share. Each load runs synchronously
with one engine and one rank of a thread each (which gives the rollout and the update time), then asynchronously with the same; the
second also synchronously with two of each (what one would run without asynchrony), which decode as many sequences together. All
take turns, in two rounds, the second in reverse order. Medians of the iterations without the first and last two of a run, in
which the pipeline fills up and runs dry.
"""

import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench.report import Check, check, median, write
from core.config import Config, Device
from core.load import load_config
from core.plan import batch_plan
from trainer import asynchronous, build
from trainer.cluster import connect
from trainer.commands import Prepared, prepare
from trainer.loop import iterate
from trainer.metrics import PhaseClock, PhaseSeconds
from trainer.rundir import RunDirectory

RECIPE = Path(__file__).parents[1] / "configs" / "demo.yaml"
GOAL = 1.10
LEFT_OUT = 2  # iterations, at the beginning and (the pipeline runs dry) at the end
LOADS = {"update-bound": 256, "balanced": 16}
"""Sequences that the engine decodes at once."""


@dataclass(frozen=True, slots=True)
class Lap:
    """One iteration."""

    seconds: PhaseSeconds
    busy: float  # seconds that the engine worked meanwhile


class Setting(NamedTuple):
    """How a run differs from the others."""

    processes: int  # engines and learner ranks each, of one thread
    max_running: int
    max_staleness: int


def recipe(quick: bool, setting: Setting) -> Config:
    """The demo recipe, with half of its starts; quick: an eighth."""
    config = load_config(RECIPE)
    rollout = {
        "starts": config.rollout.starts // (8 if quick else 2),
        "actors": setting.processes,
        "max_running": setting.max_running // setting.processes,
        "max_staleness": setting.max_staleness,
    }
    return config.model_copy(
        update={
            "run": config.run.model_copy(update={"iterations": 2 * LEFT_OUT + (2 if quick else 3)}),
            "starter": config.starter.model_copy(update={"steps": 20}),
            "rollout": config.rollout.model_copy(update=rollout),
            "learner": config.learner.model_copy(update={"ranks": setting.processes, "critic_warmup": 0}),
        }
    )


def run(config: Config, ready: Prepared, device: Device, folder: Path) -> list[Lap]:
    """The iterations that count."""
    plan, laps = batch_plan(config), []
    directory = RunDirectory.create(folder, f"run-{len(list(folder.iterdir()))}", "bench")
    with build.parts(config, plan, directory, ready.task, ready.model, device) as parts:
        settings = build.settings(config, plan)
        step = iterate if parts.pipeline is None else partial(asynchronous.iterate, parts.pipeline)
        for number in range(1, config.run.iterations + 1):
            clock, before = PhaseClock(), parts.actors.queues().busy
            step(parts, settings, number, clock)
            laps.append(Lap(clock.seconds(), parts.actors.queues().busy - before))
    return laps[LEFT_OUT:-LEFT_OUT]


def middle(values: Iterable[float]) -> float:
    """Median."""
    return median(list(values))


def checks_of(load: str, apart: Sequence[Lap], overlapped: Sequence[Lap]) -> list[Check]:
    """One load, synchronous and asynchronous with one process of one thread each."""
    rollout = middle(lap.seconds.generate for lap in apart)
    rest = middle(lap.seconds.total - lap.seconds.generate for lap in apart)
    wall = middle(lap.seconds.total for lap in overlapped)
    whole = sum(lap.seconds.total for lap in overlapped)
    engine = sum(lap.busy for lap in overlapped) / whole
    learner = 1 - sum(lap.seconds.generate for lap in overlapped) / whole
    slower = max(rollout, rest)
    return [
        check(f"{load}: rollout time, synchronous, 1 process each", rollout, "s"),
        check(f"{load}: everything else, synchronous, 1 process each", rest, "s"),
        check(f"{load}: wall time per iteration, asynchronous", wall, "s", baseline=slower),
        check(
            f"{load}: asynchronous / max(rollout, everything else)", wall / slower, "ratio", "<=", GOAL, baseline=1.0
        ),
        check(f"{load}: speed-up over synchronous, 1 process each", (rollout + rest) / wall, "x", baseline=1.0),
        check(f"{load}: asynchronous, share of time in which the engine works", engine, "share"),
        check(f"{load}: asynchronous, share of time in which the learner does not wait for it", learner, "share"),
    ]


def main(quick: bool) -> None:
    """Measure and write bench/results/asynchronous.json."""
    wide = Setting(2, LOADS["balanced"], 0)
    laps: dict[Setting, list[Lap]] = {
        Setting(1, running, staleness): [] for running in LOADS.values() for staleness in (0, 1)
    }
    laps[wide] = []
    config = recipe(quick, wide)
    rounds = 1 if quick else 2
    with tempfile.TemporaryDirectory() as name, connect(config, "bench") as device, prepare(config) as ready:
        for turn in range(rounds):
            for setting in list(laps)[:: -1 if turn else 1]:
                laps[setting] += run(recipe(quick, setting), ready, device, Path(name))
    checks = []
    for load, running in LOADS.items():
        checks += checks_of(load, laps[Setting(1, running, 0)], laps[Setting(1, running, 1)])
    apart, overlapped = (
        middle(lap.seconds.total for lap in laps[setting])
        for setting in (wide, wide._replace(processes=1, max_staleness=1))
    )
    checks.append(check("balanced: speed-up over synchronous, 2 processes each", apart / overlapped, "x", baseline=1.0))
    settings: dict[str, str | int | float] = {
        "starts": config.rollout.starts,
        "samples": config.rollout.samples,
        "iterations counted": rounds * (config.run.iterations - 2 * LEFT_OUT),
        "max_staleness": 1,
        "device": device,
    }
    write("asynchronous", checks, settings, quick=quick)


if __name__ == "__main__":
    main("--quick" in sys.argv[1:])
