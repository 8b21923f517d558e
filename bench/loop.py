"""How fast the whole loop is, against TRL's GRPO trainer: `python -m bench.loop [--quick]`.

An iteration is generation, reward, all optimizer steps and, for ours, scoring, the replay store, a critic trained beside the
policy, and a broadcast with its probe. Both work on the demo recipe's problems with the same model (its starter, hardly trained,
so that responses use up their budget in both), samples, lengths, optimizer steps and threads; they take turns, iteration by
iteration. Everything starts at the root. TRL runs in an environment of its own (requirements/bench.txt), named by BENCH_PYTHON
(default: .venv-bench/bin/python); without it only ours is measured, and the comparison is written as missing.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from bench.report import check, median, write
from bench.trl_loop import Job
from core.config import Config
from core.load import load_config
from core.plan import batch_plan
from tasks.task import Task
from trainer import build
from trainer.cluster import connect
from trainer.commands import prepare
from trainer.loop import Parts, iterate
from trainer.metrics import PHASES, PhaseClock, PhaseSeconds
from trainer.rundir import RunDirectory

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "configs" / "demo.yaml"
THREADS = 2
GOAL = 2.0


def recipe(quick: bool) -> Config:
    """The demo recipe from the root, with a starter of a few steps; quick: a quarter of its starts."""
    config = load_config(RECIPE)
    starts = config.rollout.starts // (4 if quick else 1)
    return config.model_copy(
        update={
            "starter": config.starter.model_copy(update={"steps": 20}),
            "rollout": config.rollout.model_copy(update={"starts": starts, "threads": THREADS}),
            "learner": config.learner.model_copy(update={"threads": THREADS, "critic_warmup": 0}),
            "replay": config.replay.model_copy(update={"ratio": 0.0}),
        }
    )


def job_of(config: Config, model: str, task: Task, iterations: int) -> Job:
    """The same work for TRL."""
    tokenizer = task.tokenizer
    return Job(
        model=str(Path(model).resolve()),
        prompts=[str(tokenizer.decode(problem.prompt_ids.tolist())) for problem in task.train],
        references=[problem.reference for problem in task.train],
        starts=config.rollout.starts,
        samples=config.rollout.samples,
        max_response_tokens=config.rollout.max_response_tokens,
        minibatches=config.learner.minibatches,
        policy_lr=config.learner.policy_lr,
        iterations=iterations,
    )


@contextmanager
def trl(job: Job, folder: Path) -> Iterator[Callable[[], tuple[int, float]] | None]:
    """A function that runs one iteration of TRL's trainer: (generated tokens, seconds). None where it is not installed."""
    python = Path(os.environ.get("BENCH_PYTHON", ROOT / ".venv-bench" / "bin" / "python"))
    if not python.exists():
        yield None
        return
    (folder / "job.json").write_text(json.dumps(asdict(job)))
    environment = os.environ | {"OMP_NUM_THREADS": str(THREADS), "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(
        [str(python), "-m", "bench.trl_loop", str(folder)],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    source, sink = process.stdout, process.stdin
    assert source
    assert sink

    def step() -> tuple[int, float]:
        sink.write("go\n")
        sink.flush()
        line = source.readline()
        assert line, "TRL's trainer has ended; see its output above"
        tokens, seconds = json.loads(line)
        return tokens, seconds

    try:
        yield step
    finally:
        process.kill()
        process.wait()


def alternate(
    config: Config, parts: Parts, peer: Callable[[], tuple[int, float]] | None, iterations: int
) -> tuple[list[int], list[PhaseSeconds], list[float]]:
    """Tokens and phases of our iterations and the rates of the peer's, without the first of each."""
    settings = build.settings(config, batch_plan(config))
    tokens, clocks, rates = [], [], []
    for number in range(1, iterations + 1):
        clock = PhaseClock()
        iteration = iterate(parts, settings, number, clock)
        tokens.append(sum(item.trajectory.tokens.size for item in iteration.scored))
        clocks.append(clock.seconds())
        if peer is not None:
            count, seconds = peer()
            rates.append(count / seconds)
    return tokens[1:], clocks[1:], rates[1:]


def main(quick: bool) -> None:
    """Measure and write bench/results/loop.json."""
    config = recipe(quick)
    iterations = 3 if quick else 6
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, connect(config, "bench") as device, prepare(config) as ready:
        prepared = time.perf_counter()
        run = RunDirectory.create(Path(folder), "bench", "bench")
        with build.parts(config, batch_plan(config), run, ready.task, ready.model, device) as parts:
            started = time.perf_counter()
            with trl(job_of(config, ready.model, ready.task, iterations), Path(folder)) as peer:
                tokens, clocks, theirs = alternate(config, parts, peer, iterations)
    total = median([clock.total for clock in clocks])
    rate = median([count / clock.total for count, clock in zip(tokens, clocks, strict=True)])
    generation = median([count / clock.generate for count, clock in zip(tokens, clocks, strict=True)])
    phases = {phase: median([getattr(clock, phase) for clock in clocks]) for phase in (*PHASES, "other")}
    base = median(theirs) if theirs else float("nan")
    checks = [
        check("generated tokens/s, whole iteration", rate, "tokens/s", baseline=base),
        check("whole iteration / TRL's GRPO trainer", rate / base, "ratio", ">=", GOAL, baseline=1.0),
        check("generated tokens per iteration", median([float(count) for count in tokens]), "tokens"),
        check("generated tokens/s, generation alone", generation, "tokens/s"),
        check("seconds per iteration", total, "s"),
        *(check(f"share of {phase}", seconds / total, "share") for phase, seconds in phases.items()),
        check("start of Ray and model", prepared - begun, "s"),
        check("start of engines, learner and store", started - prepared, "s"),
    ]
    settings = {"iterations": iterations, "starts": config.rollout.starts, "samples": config.rollout.samples}
    write("loop", checks, {**settings, "threads": THREADS, "device": device}, quick=quick)


if __name__ == "__main__":
    main("--quick" in sys.argv[1:])
