"""How much faster is asynchronous mode? `python -m bench.asynchronous [--quick]`.

The recipe of chained arithmetic with a hardly trained starter runs under two loads. "update-bound" is the unchanged
recipe: the update takes most of an iteration. In "balanced" the engine decodes 16 sequences at once instead of 256.
Then rollouts take about as long as everything else, and asynchronous mode can gain most. Under each load one engine,
one rank and one store, of one thread each, run synchronously, asynchronously and synchronously again, so that drift (of
the machine, of response lengths) is the same for both modes.

Synchronous iterations also give the seconds of rollouts and of everything else. The "balanced" load also runs
synchronously with two engines and two ranks, as one would use two cores without asynchronous mode. Figures are medians
over the iterations, without those in which caches warm up and the pipeline fills or empties.
"""

import tempfile
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

from bench.demo import ARITHMETIC, Lap, changed, middle, opened, recipe, run_lap
from bench.report import Check, check, command_line, write
from core.config import Config
from trainer.asynchronous import AsynchronousEngines
from trainer.build import open_model_and_task
from trainer.cluster import connect
from trainer.engines import SynchronousEngines
from trainer.run import Run

if TYPE_CHECKING:
    from actors.pool import RolloutPool

GOAL = 1.10
WARM, FILLING, EMPTYING = 1, 2, 1  # iterations left out: the first, and where the pipeline fills and empties
LOADS = {"update-bound": 256, "balanced": 16}  # sequences that the engine decodes at once


class Laps(NamedTuple):
    """The measured iterations of one load."""

    synchronous: list[Lap]
    asynchronous: list[Lap]


def configuration(quick: bool, processes: int, max_running: int) -> Config:
    """The recipe with half of its starts (quick: an eighth), and `processes` engines and ranks of one thread each."""
    return recipe(
        {
            "rollout.starts": ARITHMETIC.rollout.starts // (8 if quick else 2),
            "rollout.actors": processes,
            "rollout.max_running": max_running // processes,
            "learner.ranks": processes,
        }
    )


@dataclass(slots=True)
class Runner:
    """A synchronous run, and the number of its last iteration."""

    run: Run
    number: int = 0

    def laps(self, run: Run, count: int) -> list[Lap]:
        """The next `count` iterations."""
        first, self.number = self.number + 1, self.number + count
        return [run_lap(run, number) for number in range(first, self.number + 1)]

    def run_synchronous(self, count: int) -> list[Lap]:
        """`count` synchronous iterations."""
        return self.laps(self.run, WARM + count)[WARM:]

    def run_asynchronous(self, count: int) -> list[Lap]:
        """`count` asynchronous iterations with the same parts."""
        from actors.stream import RolloutStream

        total, engines = FILLING + count + EMPTYING, self.run.engines
        assert isinstance(engines, SynchronousEngines)
        with closing(RolloutStream(cast("RolloutPool", self.run.pool))) as stream:
            ahead = AsynchronousEngines(stream, engines.sampling, starts=engines.starts, max_staleness=1)
            begin = replace(self.run.begin, iterations=self.number + total)
            run = replace(self.run, begin=begin, pool=stream, engines=ahead)
            ahead.restore(None, run.at(self.number))
            return self.laps(run, total)[FILLING:-EMPTYING]

    def run_all(self, synchronous: int, asynchronous: int) -> Laps:
        """This many iterations of each mode: synchronous ones before and after the asynchronous."""
        before, overlapped, after = (
            self.run_synchronous(synchronous),
            self.run_asynchronous(asynchronous),
            self.run_synchronous(synchronous),
        )
        return Laps(before + after, overlapped)


def total(lap: Lap) -> float:
    """Seconds of the whole iteration."""
    return lap.seconds.total


def checks_of(load: str, laps: Laps) -> list[Check]:
    """The checks of one load, with one engine and one rank."""
    rollout = middle(laps.synchronous, lambda lap: lap.seconds.generate)
    rest = middle(laps.synchronous, lambda lap: lap.seconds.total - lap.seconds.generate)
    together, wall = middle(laps.synchronous, total), middle(laps.asynchronous, total)
    waits = sum(lap.seconds.generate for lap in laps.asynchronous) / sum(map(total, laps.asynchronous))
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
        check(f"{load}: asynchronous, share of time in which the learner does not wait for it", 1 - waits, "share"),
    ]


def main(quick: bool) -> None:
    """Measure and write bench/results/asynchronous.json."""
    synchronous, overlapped = (1, 2) if quick else (3, 5)
    found: dict[str, Laps] = {}
    wide = configuration(quick, 2, LOADS["balanced"])
    with tempfile.TemporaryDirectory() as name, connect(wide, "bench") as device, open_model_and_task(wide) as ready:
        for load, max_running in LOADS.items():
            fields = {"rollout.actors": 1, "learner.ranks": 1, "rollout.max_running": max_running}
            with opened(changed(ready.config, fields), ready, device, Path(name)) as run:
                found[load] = Runner(run).run_all(synchronous, overlapped)
        with opened(ready.config, ready, device, Path(name)) as run:
            pairs = Runner(run).run_synchronous(overlapped)
    gain = middle(pairs, total) / middle(found["balanced"].asynchronous, total)
    checks = [
        *(item for load, laps in found.items() for item in checks_of(load, laps)),
        check("balanced: speed-up over synchronous, two engines and two ranks", gain, "x", baseline=1.0),
    ]
    settings = {
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
