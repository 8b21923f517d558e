"""How much faster is asynchronous mode? `python -m bench.asynchronous [--quick]`.

The demo recipe with a hardly trained starter runs under two loads. "update-bound" is the unchanged recipe: the update takes
most of an iteration. In "balanced" the engine decodes 16 sequences at once instead of 256. Then rollouts take about as long as
everything else, and asynchronous mode can gain most. Under each load one engine, one rank and one store, of one thread each,
run synchronously, asynchronously and synchronously again, so that drift (of the machine, of response lengths) is the same for
both modes.

Synchronous iterations have two forms. In the first the critic refreshes stale values while the engine generates, as in training.
The speed-up is over these. In the second nothing overlaps, which gives the seconds of rollouts and of everything else. The
"balanced" load also runs synchronously with two engines and two ranks, as one would use two cores without asynchronous mode.
Figures are medians over the iterations, without those in which caches warm up and the pipeline fills or empties.
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

from bench.report import Check, check, command_line, median, write
from core.config import Config, Device
from core.load import load_config
from core.run_directory import RunDirectory
from trainer import build
from trainer.build import ModelAndTask, open_model_and_task
from trainer.cluster import connect
from trainer.loop import iterate
from trainer.metrics import PhaseClock, PhaseSeconds
from trainer.records import Components

if TYPE_CHECKING:
    from actors.pool import RolloutPool

RECIPE = Path(__file__).parents[1] / "configs" / "demo.yaml"
GOAL = 1.10
WARM, FILLING, EMPTYING = 1, 2, 1
"""Number of iterations left out: the first synchronous one, and those in which the pipeline fills and empties."""
LOADS = {"update-bound": 256, "balanced": 16}
"""Sequences that the engine decodes at once."""


class Lap(NamedTuple):
    """One iteration."""

    seconds: PhaseSeconds
    busy: float  # seconds in which the engine worked


@dataclass(frozen=True, slots=True)
class Laps:
    """The measured iterations of one load."""

    synchronous: list[Lap] = field(default_factory=list)
    sequential: list[Lap] = field(default_factory=list)  # synchronous, without overlap
    asynchronous: list[Lap] = field(default_factory=list)


def recipe(quick: bool, processes: int, max_running: int) -> Config:
    """The demo recipe with half of its starts (quick: an eighth), and `processes` engines and ranks of one thread each."""
    config = load_config(RECIPE)
    rollout = {
        "starts": config.rollout.starts // (8 if quick else 2),
        "actors": processes,
        "max_running": max_running // processes,
    }
    return config.model_copy(
        update={
            "starter": config.starter.model_copy(update={"steps": 20}),
            "rollout": config.rollout.model_copy(update=rollout),
            "learner": config.learner.model_copy(update={"ranks": processes, "critic_warmup": 0}),
        }
    )


@dataclass(slots=True)
class Runner:
    """The parts of a run, and the number of its last iteration."""

    parts: Components
    config: Config
    number: int = 0

    def run(self, parts: Components, count: int, overlap: bool = True) -> list[Lap]:
        """The next `count` iterations. `overlap`: the critic refreshes stale values while the engine generates."""
        settings = replace(build.iteration_settings(self.config), refresh_while_generating=overlap)
        laps = []
        for _ in range(count):
            self.number += 1
            clock, busy = PhaseClock(), parts.actors.queues().busy
            iterate(parts, settings, self.number, clock)
            laps.append(Lap(clock.seconds(), parts.actors.queues().busy - busy))
        return laps

    def run_synchronous(self, count: int, laps: Laps) -> None:
        """Run `count` synchronous iterations of each form."""
        laps.synchronous.extend(self.run(self.parts, WARM + count)[WARM:])
        laps.sequential.extend(self.run(self.parts, count, overlap=False))

    def run_asynchronous(self, count: int, laps: Laps) -> None:
        """Run `count` asynchronous iterations with the same parts."""
        total = FILLING + count + EMPTYING
        run = self.config.run.model_copy(update={"iterations": self.number + total})
        rollout = self.config.rollout.model_copy(update={"max_staleness": 1})
        config = self.config.model_copy(update={"run": run, "rollout": rollout})
        with ExitStack() as stack:
            pool = cast("RolloutPool", self.parts.actors)
            stream, pipeline = stack.enter_context(build.asynchronous(config, pool))
            pipeline.restore(None, self.number, self.parts.learner.version)
            parts = replace(self.parts, actors=stream, pipeline=pipeline)
            laps.asynchronous.extend(self.run(parts, total)[FILLING:-EMPTYING])


@contextmanager
def runner(config: Config, ready: ModelAndTask, device: Device, folder: Path) -> Iterator[Runner]:
    """Start a new engine, learner and store."""
    directory = RunDirectory.create(folder, f"run-{len(list(folder.iterdir()))}", "bench")
    with build.components(config, directory, ready, device) as parts:
        yield Runner(parts, config)


def middle(laps: Iterable[Lap], figure: Callable[[Lap], float]) -> float:
    """Median of a figure over iterations."""
    return median([figure(lap) for lap in laps])


def total(lap: Lap) -> float:
    """Seconds of the whole iteration."""
    return lap.seconds.total


def checks_of(load: str, laps: Laps) -> list[Check]:
    """The checks of one load, with one engine and one rank."""
    rollout = middle(laps.sequential, lambda lap: lap.seconds.generate)
    rest = middle(laps.sequential, lambda lap: lap.seconds.total - lap.seconds.generate)
    together, wall = middle(laps.synchronous, total), middle(laps.asynchronous, total)
    whole = sum(map(total, laps.asynchronous))
    works = sum(lap.busy for lap in laps.asynchronous) / whole
    waits = sum(lap.seconds.generate for lap in laps.asynchronous) / whole
    slower = max(rollout, rest)
    return [
        check(f"{load}: rollout time, alone", rollout, "s"),
        check(f"{load}: everything else, alone", rest, "s"),
        check(f"{load}: iteration, synchronous", together, "s"),
        check(f"{load}: iteration, asynchronous", wall, "s", baseline=slower),
        check(
            f"{load}: asynchronous / max(rollout, everything else)", wall / slower, "ratio", "<=", GOAL, baseline=1.0
        ),
        check(f"{load}: speed-up over synchronous", together / wall, "x", baseline=1.0),
        check(f"{load}: asynchronous, share of time in which the engine works", works, "share"),
        check(f"{load}: asynchronous, share of time in which the learner does not wait for it", 1 - waits, "share"),
    ]


def main(quick: bool) -> None:
    """Measure and write bench/results/asynchronous.json."""
    synchronous, overlapped = (1, 2) if quick else (3, 5)
    found = {load: Laps() for load in LOADS}
    wide = recipe(quick, 2, LOADS["balanced"])
    with tempfile.TemporaryDirectory() as name, connect(wide, "bench") as device, open_model_and_task(wide) as ready:
        for load, max_running in LOADS.items():
            with runner(recipe(quick, 1, max_running), ready, device, Path(name)) as one:
                one.run_synchronous(synchronous, found[load])
                one.run_asynchronous(overlapped, found[load])
                one.run_synchronous(synchronous, found[load])
        with runner(wide, ready, device, Path(name)) as two:
            pairs = two.run(two.parts, WARM + overlapped)[WARM:]
    gain = middle(pairs, total) / middle(found["balanced"].asynchronous, total)
    checks = [
        *(item for load, laps in found.items() for item in checks_of(load, laps)),
        check("balanced: speed-up over synchronous, two engines and two ranks", gain, "x", baseline=1.0),
    ]
    settings: dict[str, str | int | float] = {
        "starts": wide.rollout.starts,
        "samples": wide.rollout.samples,
        "iterations counted, synchronous": 2 * synchronous,
        "iterations counted, asynchronous": overlapped,
        "max_staleness": 1,
        "device": device,
    }
    write("asynchronous", checks, settings, quick=quick)


if __name__ == "__main__":
    main(command_line(__doc__).parse_args().quick)
