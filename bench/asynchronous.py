"""What asynchronous mode gains: `python -m bench.asynchronous [--quick]`.

The demo recipe's loop with a hardly trained starter, on two cores: synchronously with one thread each for engine and learner
(which gives the rollout and the update time), asynchronously with the same threads, and synchronously with two threads each (what
one would run without asynchrony). Medians of the iterations after the second: the pipeline is full by then.
"""

import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bench.report import check, median, write
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


def recipe(quick: bool, threads: int, max_staleness: int) -> Config:
    """The demo recipe, with half of its starts; quick: an eighth."""
    config = load_config(RECIPE)
    rollout = {"starts": config.rollout.starts // (8 if quick else 2), "threads": threads}
    return config.model_copy(
        update={
            "run": config.run.model_copy(update={"iterations": 2 * LEFT_OUT + (2 if quick else 5)}),
            "starter": config.starter.model_copy(update={"steps": 20}),
            "rollout": config.rollout.model_copy(update={**rollout, "max_staleness": max_staleness}),
            "learner": config.learner.model_copy(update={"threads": threads, "critic_warmup": 0}),
        }
    )


def run(config: Config, ready: Prepared, device: Device, folder: Path) -> list[PhaseSeconds]:
    """The phases of the iterations that count."""
    plan = batch_plan(config)
    directory = RunDirectory.create(folder, f"{config.rollout.threads}-{config.rollout.max_staleness}", "bench")
    clocks = []
    with build.parts(config, plan, directory, ready.task, ready.model, device) as parts:
        settings = build.settings(config, plan)
        step = iterate if parts.pipeline is None else partial(asynchronous.iterate, parts.pipeline)
        for number in range(1, config.run.iterations + 1):
            clock = PhaseClock()
            step(parts, settings, number, clock)
            clocks.append(clock.seconds())
    return clocks[LEFT_OUT:-LEFT_OUT]


def middle(values: Sequence[float]) -> float:
    """Median."""
    return median(list(values))


def main(quick: bool) -> None:
    """Measure and write bench/results/asynchronous.json."""
    config = recipe(quick, 1, 0)
    with tempfile.TemporaryDirectory() as name, connect(config, "bench") as device, prepare(config) as ready:
        folder = Path(name)
        apart = run(config, ready, device, folder)
        overlapped = run(recipe(quick, 1, 1), ready, device, folder)
        wide = run(recipe(quick, 2, 0), ready, device, folder)
    rollout = middle([one.generate for one in apart])
    update = middle([one.total - one.generate for one in apart])
    wall = middle([one.total for one in overlapped])
    slower = max(rollout, update)
    checks = [
        check("rollout time, synchronous, 1 thread each", rollout, "s"),
        check("everything else, synchronous, 1 thread each", update, "s"),
        check("wall time per iteration, asynchronous", wall, "s", baseline=slower),
        check("asynchronous / max(rollout, everything else)", wall / slower, "ratio", "<=", GOAL, baseline=1.0),
        check("speed-up over synchronous, 1 thread each", (rollout + update) / wall, "x", baseline=1.0),
        check(
            "speed-up over synchronous, 2 threads each", middle([one.total for one in wide]) / wall, "x", baseline=1.0
        ),
    ]
    settings: dict[str, str | int | float] = {
        "starts": config.rollout.starts,
        "samples": config.rollout.samples,
        "iterations counted": len(apart),
        "max_staleness": 1,
        "device": device,
    }
    write("asynchronous", checks, settings, quick=quick)


if __name__ == "__main__":
    main("--quick" in sys.argv[1:])
