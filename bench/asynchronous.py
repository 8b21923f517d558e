"""What asynchronous mode gains: `python -m bench.asynchronous [--quick]`.

The demo recipe's loop with a hardly trained starter, on two cores, under two loads: as the recipe has it, where the update takes most
of an iteration, and with an engine that decodes 16 sequences at once instead of 256, so that rollouts take about as long as
everything else - where asynchrony has the most to gain, and the two sides have the most to share. Under each load the same engine,
rank and store, with one thread each, run synchronously, asynchronously, and synchronously again, so that what drifts (the machine,
the length of responses) is the same for both. Synchronous iterations come in two forms: as users run them, where the critic renews
stale values while the engine generates (the speed-up is over these), and strictly one after the other, which gives the time of
rollouts and of everything else, either alone. The second load also runs synchronously with two engines, which decode as many
sequences together, and two ranks: what one would run without asynchrony.
What the second core costs the first on this machine is measured with two processes that share nothing else. Medians of the
iterations, without those in which caches warm up and the pipeline fills up or runs dry.
"""

import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

from bench.report import Check, check, median, write
from core.config import Config, Device
from core.load import load_config
from core.run_directory import RunDirectory
from trainer import build
from trainer.build import ModelAndTask, open_model_and_task
from trainer.cluster import connect
from trainer.loop import iterate
from trainer.metrics import PHASES, PhaseClock, PhaseSeconds
from trainer.records import Components

if TYPE_CHECKING:
    from multiprocessing.queues import Queue
    from multiprocessing.synchronize import Barrier

    from actors.pool import RolloutPool

RECIPE = Path(__file__).parents[1] / "configs" / "demo.yaml"
GOAL = 1.10
WARM, FULL, DRY = 1, 2, 1
"""Iterations left out: the first of a synchronous stretch, those that fill the pipeline, and the one in which it runs dry."""
LOADS = {"update-bound": 256, "balanced": 16}
"""Sequences that the engine decodes at once."""


class Counted(NamedTuple):
    """Iterations that count."""

    apart: int  # of each synchronous stretch of either form
    overlapped: int


@dataclass(frozen=True, slots=True)
class Lap:
    """One iteration."""

    seconds: PhaseSeconds
    busy: float  # seconds that the engine worked meanwhile


@dataclass(frozen=True, slots=True)
class Laps:
    """The iterations of one load that count."""

    apart: list[Lap] = field(default_factory=list)
    alone: list[Lap] = field(default_factory=list)  # strictly one after the other
    overlapped: list[Lap] = field(default_factory=list)


def recipe(quick: bool, processes: int, max_running: int) -> Config:
    """The demo recipe, with half of its starts (quick: an eighth), and `processes` engines and ranks each, of one thread."""
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
    """The parts of one load and how far they have come."""

    parts: Components
    config: Config
    number: int = 0

    def stretch(self, parts: Components, count: int, beside: bool = True) -> list[Lap]:
        """The next `count` iterations; `beside`: stale values are renewed while the engine generates."""
        settings, laps = replace(build.iteration_settings(self.config), refresh_while_generating=beside), []
        for _ in range(count):
            self.number += 1
            clock, before = PhaseClock(), parts.actors.queues().busy
            iterate(parts, settings, self.number, clock)
            laps.append(Lap(clock.seconds(), parts.actors.queues().busy - before))
        return laps

    def apart(self, count: int, found: Laps) -> None:
        """Synchronous iterations of both forms."""
        found.apart.extend(self.stretch(self.parts, WARM + count)[WARM:])
        found.alone.extend(self.stretch(self.parts, count, beside=False))

    def overlapped(self, count: int) -> list[Lap]:
        """Asynchronous iterations of the same parts."""
        whole = FULL + count + DRY
        run = self.config.run.model_copy(update={"iterations": self.number + whole})
        rollout = self.config.rollout.model_copy(update={"max_staleness": 1})
        config = self.config.model_copy(update={"run": run, "rollout": rollout})
        with ExitStack() as stack:
            pool = cast("RolloutPool", self.parts.actors)
            stream, pipeline = stack.enter_context(build.asynchronous(config, pool))
            pipeline.restore(None, self.number, self.parts.learner.version)
            return self.stretch(replace(self.parts, actors=stream, pipeline=pipeline), whole)[FULL:-DRY]


@contextmanager
def runner(config: Config, ready: ModelAndTask, device: Device, folder: Path) -> Iterator[Runner]:
    """Engine, learner and store, started anew."""
    directory = RunDirectory.create(folder, f"run-{len(list(folder.iterdir()))}", "bench")
    with build.components(config, directory, ready, device) as parts:
        yield Runner(parts, config)


def middle(values: Iterable[float]) -> float:
    """Median."""
    return median(list(values))


def checks_of(load: str, laps: Laps) -> list[Check]:
    """One load, synchronous and asynchronous with one process each."""
    overlapped = laps.overlapped
    rollout = middle(lap.seconds.generate for lap in laps.alone)
    rest = middle(lap.seconds.total - lap.seconds.generate for lap in laps.alone)
    together = middle(lap.seconds.total for lap in laps.apart)
    wall = middle(lap.seconds.total for lap in overlapped)
    whole = sum(lap.seconds.total for lap in overlapped)
    engine = sum(lap.busy for lap in overlapped) / whole
    waits = sum(lap.seconds.generate for lap in overlapped) / whole
    slower = max(rollout, rest)
    return [
        check(f"{load}: rollout time, alone, 1 process each", rollout, "s"),
        check(f"{load}: everything else, alone, 1 process each", rest, "s"),
        check(f"{load}: wall time per iteration, synchronous, 1 process each", together, "s"),
        check(f"{load}: wall time per iteration, asynchronous", wall, "s", baseline=slower),
        check(
            f"{load}: asynchronous / max(rollout, everything else)", wall / slower, "ratio", "<=", GOAL, baseline=1.0
        ),
        check(f"{load}: speed-up over synchronous, 1 process each", together / wall, "x", baseline=1.0),
        check(f"{load}: asynchronous, share of time in which the engine works", engine, "share"),
        check(f"{load}: asynchronous, share of time in which the learner does not wait for it", 1 - waits, "share"),
        check(
            f"{load}: asynchronous, rollout time of the engine's own clock",
            middle(lap.busy for lap in overlapped),
            "s",
            baseline=middle(lap.busy for lap in laps.alone),
        ),
        *slowed(load, laps.alone, overlapped),
    ]


def slowed(load: str, alone: Sequence[Lap], overlapped: Sequence[Lap]) -> list[Check]:
    """What the learner's side of an iteration went to, beside a working engine and without; what `alone` counts as replay beside
    the store's own work, renewed values, the other counts as score."""
    parts = [phase for phase in (*PHASES, "other") if phase not in ("generate", "evaluate")]
    spent = [[middle(getattr(lap.seconds, part) for lap in laps) for part in parts] for laps in (overlapped, alone)]
    return [
        check(f"{load}: asynchronous, {part} beside a working engine", beside, "s", baseline=apart)
        for part, beside, apart in zip(parts, *spent, strict=True)
    ]


def work(together: "Barrier", seconds: float, answers: "Queue[float]") -> None:
    """Passes per second of a small network on one thread: alone while the other waits, in turns, and then both at once."""
    import torch

    torch.set_num_threads(1)
    network = torch.nn.Sequential(torch.nn.Linear(128, 512), torch.nn.SiLU(), torch.nn.Linear(512, 128))
    batch = torch.randn(2048, 128)

    def rate() -> float:
        """Of `seconds` from now on."""
        passes, begun = 0, time.perf_counter()
        while time.perf_counter() - begun < seconds:
            network(batch).square().mean().backward()
            passes += 1
        return passes / (time.perf_counter() - begun)

    rate()
    first = together.wait() == 0
    alone = rate() if first else 0.0
    together.wait()
    alone = alone if first else rate()
    together.wait()
    answers.put(alone / rate())


def sharing(rounds: int, seconds: float = 2.0) -> float:
    """How many times faster a process is alone than beside another that has nothing to do with it, on this machine."""
    context, found = multiprocessing.get_context("spawn"), []
    for _ in range(rounds):
        together, answers = context.Barrier(2), context.Queue()
        pair = [context.Process(target=work, args=(together, seconds, answers)) for _ in range(2)]
        for process in pair:
            process.start()
        found += [answers.get(timeout=120) for _ in pair]
        for process in pair:
            process.join()
    return median(found)


def main(quick: bool) -> None:
    """Measure and write bench/results/asynchronous.json."""
    shared = sharing(rounds=1 if quick else 3)
    counted = Counted(1, 2) if quick else Counted(3, 5)
    found = {load: Laps() for load in LOADS}
    config = recipe(quick, 2, LOADS["balanced"])
    with (
        tempfile.TemporaryDirectory() as name,
        connect(config, "bench") as device,
        open_model_and_task(config) as ready,
    ):
        for load, running in LOADS.items():
            with runner(recipe(quick, 1, running), ready, device, Path(name)) as one:
                one.apart(counted.apart, found[load])
                found[load].overlapped.extend(one.overlapped(counted.overlapped))
                one.apart(counted.apart, found[load])
        with runner(config, ready, device, Path(name)) as one:
            wide = one.stretch(one.parts, WARM + counted.overlapped)[WARM:]
    checks = [item for load, laps in found.items() for item in checks_of(load, laps)]
    whole = [middle(lap.seconds.total for lap in laps) for laps in (wide, found["balanced"].overlapped)]
    checks.append(
        check("balanced: speed-up over synchronous, 2 processes each", whole[0] / whole[1], "x", baseline=1.0)
    )
    checks.append(
        check(
            "two processes that share nothing but the machine: rate alone / rate beside the other",
            shared,
            "x",
            baseline=1.0,
        )
    )
    settings: dict[str, str | int | float] = {
        "starts": config.rollout.starts,
        "samples": config.rollout.samples,
        "iterations counted, synchronous": 2 * counted.apart,
        "iterations counted, asynchronous": counted.overlapped,
        "max_staleness": 1,
        "device": device,
    }
    write("asynchronous", checks, settings, quick=quick)


if __name__ == "__main__":
    main("--quick" in sys.argv[1:])
