"""How fast the whole loop is and where an iteration's time goes: `python -m bench.loop [--quick]`.

Runs the demo recipe's loop on the real engines (no evaluation, no checkpoints), leaves out the first iteration, and
reports medians. Quick: smaller batches, fewer iterations, the same code.
"""

import sys
import tempfile
import time
from pathlib import Path

from bench.report import check, median, write
from core.config import Config
from core.load import load_config
from core.plan import batch_plan
from trainer import build
from trainer.cluster import connect
from trainer.commands import prepare
from trainer.loop import iterate
from trainer.metrics import PHASES, PhaseClock
from trainer.rundir import RunDirectory

RECIPE = Path(__file__).parents[1] / "configs" / "demo.yaml"


def recipe(quick: bool) -> Config:
    """The demo recipe; quick: a quarter of its starts."""
    config = load_config(RECIPE)
    if not quick:
        return config
    rollout = config.rollout.model_copy(update={"starts": config.rollout.starts // 4})
    return config.model_copy(update={"rollout": rollout})


def main(quick: bool) -> None:
    """Measure and write bench/results/loop.json."""
    config = recipe(quick)
    iterations = 3 if quick else 8
    plan = batch_plan(config)
    begun = time.perf_counter()
    clocks, tokens, sequences = [], [], 0
    with tempfile.TemporaryDirectory() as folder, connect(config, "bench") as device, prepare(config) as ready:
        prepared = time.perf_counter()
        run = RunDirectory.create(Path(folder), "bench", "bench")
        with build.parts(config, plan, run, ready.task, ready.model, device) as parts:
            started = time.perf_counter()
            settings = build.settings(config, plan)
            for number in range(1, iterations + 1):
                clock = PhaseClock()
                iteration = iterate(parts, settings, number, clock)
                if number > 1:
                    clocks.append(clock.seconds())
                    tokens.append(sum(item.trajectory.tokens.size for item in iteration.scored))
                    sequences = len(iteration.scored)
    total = median([clock.total for clock in clocks])
    rate = median([count / clock.total for count, clock in zip(tokens, clocks, strict=True)])
    generation = median([count / clock.generate for count, clock in zip(tokens, clocks, strict=True)])
    phases = {phase: median([getattr(clock, phase) for clock in clocks]) for phase in (*PHASES, "other")}
    checks = [
        check("generated tokens/s, whole iteration", rate, "tokens/s"),
        check("generated tokens/s, generation alone", generation, "tokens/s"),
        check("seconds per iteration", total, "s"),
        *(check(f"share of {phase}", seconds / total, "share") for phase, seconds in phases.items()),
        check("start of Ray and model", prepared - begun, "s"),
        check("start of engines, learner and store", started - prepared, "s"),
    ]
    write("loop", checks, {"iterations": iterations, "trajectories": sequences, "device": device}, quick=quick)


if __name__ == "__main__":
    main("--quick" in sys.argv[1:])
