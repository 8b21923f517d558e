"""How fast is the whole loop compared with TRL's GRPO trainer? `python -m bench.loop [--quick]`.

An iteration is generation, reward and all optimizer steps. Ours also scores, updates the replay store, trains a critic, and ends with
a broadcast and its probe. Both sides have the same problems (the demo recipe's), model, samples, lengths, optimizer steps and cores.
The model is the recipe's starter after little training, so that responses use up their budget. The sides alternate, iteration by
iteration, and all starts are at the root. Ours runs in three forms: with the recipe's separate critic, with the critic as a head on
the policy's trunk, and with GRPO and no critic. The last two train as many weights as TRL. GRPO's update leaves out groups of equal
rewards, here nearly all, which TRL computes: its ratio shows what that saves, too.

TRL runs in another environment (requirements/bench.txt), which `make bench` prepares. BENCH_PYTHON names its interpreter (default:
.venv-bench/bin/python). It has one data-parallel process per core, which is faster than one process (2,968 against 2,416 tokens/s on two cores). Without that
environment only ours is measured.
"""

import json
import os
import resource
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import ray

from bench.rank_times import PARTS, seconds_since_last, watch
from bench.report import Check, check, command_line, median, write
from bench.trl_loop import Job, TrlLap
from core.config import Config, Device
from core.load import load_config
from core.run_directory import RunDirectory
from core.startup import WAITING
from tasks.task import Task
from trainer import build
from trainer.build import ModelAndTask, open_model_and_task
from trainer.cluster import connect
from trainer.loop import iterate
from trainer.metrics import PHASES, PhaseClock, PhaseSeconds

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "configs" / "demo.yaml"
GOAL = 1.5

Trl = Callable[[], TrlLap]
"""Runs one iteration of TRL's trainer."""


class Lap(NamedTuple):
    """One of our iterations."""

    tokens: int  # generated
    seconds: PhaseSeconds
    update: dict[str, float]  # seconds of rank 0's update by part


class Laps(NamedTuple):
    """Alternating iterations, without the first of each side."""

    ours: list[Lap]
    trl: list[TrlLap]  # none without TRL
    memory: float  # MiB, the peak of rank 0's process

    @property
    def rate(self) -> float:
        """Generated tokens per second of our whole iterations."""
        return median([lap.tokens / lap.seconds.total for lap in self.ours])

    @property
    def trl_rate(self) -> float:
        """Generated tokens per second of TRL's whole iterations."""
        return median([lap.tokens / lap.seconds for lap in self.trl])


def recipe(quick: bool) -> Config:
    """The demo recipe from the root, with a starter of 20 steps; quick: a quarter of its starts."""
    config = load_config(RECIPE)
    starts = config.rollout.starts // (4 if quick else 1)
    return config.model_copy(
        update={
            "starter": config.starter.model_copy(update={"steps": 20}),
            "rollout": config.rollout.model_copy(update={"starts": starts}),
            "learner": config.learner.model_copy(update={"critic_warmup": 0}),
            "replay": config.replay.model_copy(update={"ratio": 0.0}),
        }
    )


def on_one_trunk(config: Config) -> Config:
    """The configuration with the critic as a head on the policy's trunk."""
    return config.model_copy(update={"learner": config.learner.model_copy(update={"value_model": "shared"})})


def without_critic(config: Config) -> Config:
    """The configuration with GRPO, which needs no critic."""
    return config.model_copy(
        update={
            "algorithm": config.algorithm.model_copy(update={"estimator": "grpo"}),
            "replay": config.replay.model_copy(update={"ranking": "uniform"}),
        }
    )


def job_of(config: Config, model: str, task: Task, iterations: int) -> Job:
    """The same work for TRL."""
    return Job(
        model=str(Path(model).resolve()),
        prompts=[str(task.tokenizer.decode(problem.prompt_ids.tolist())) for problem in task.train],
        references=[problem.reference for problem in task.train],
        starts=config.rollout.starts,
        samples=config.rollout.samples,
        max_response_tokens=config.rollout.max_response_tokens,
        minibatches=config.learner.minibatches,
        policy_lr=config.learner.policy_lr,
        iterations=iterations,
    )


@contextmanager
def started_trl(python: Path, job: Job, folder: Path) -> Iterator[Trl]:
    """TRL's trainer as one data-parallel process per core."""
    folder.mkdir()
    (folder / "job.json").write_text(json.dumps(asdict(job)), encoding="utf-8")
    cores = os.cpu_count() or 1
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    # undo what `trainer.cluster` sets for our waiting threads
    environment = {name: value for name, value in os.environ.items() if name not in WAITING}
    environment |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(cores)}

    def _start(rank: int) -> "subprocess.Popen[str]":
        pipe = subprocess.DEVNULL if rank else subprocess.PIPE
        return subprocess.Popen(
            [str(python), "-W", "ignore", "-m", "bench.trl_loop", str(folder)],
            cwd=ROOT,
            env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdin=pipe,
            stdout=pipe,
            text=True,
        )

    processes = [_start(rank) for rank in range(cores)]
    answers, orders = processes[0].stdout, processes[0].stdin
    assert answers
    assert orders

    def _step() -> TrlLap:
        orders.write("go\n")
        orders.flush()
        line = answers.readline()
        assert line, "TRL's trainer has ended; see its output above"
        return TrlLap(*json.loads(line))

    try:
        yield _step
    finally:
        for process in processes:
            process.kill()
            process.wait()


def measure(
    config: Config, name: str, ready: ModelAndTask, device: Device, folder: Path, trl: Trl | None, iterations: int
) -> Laps:
    """Run our iterations and TRL's alternately."""
    run = RunDirectory.create(folder, name, "bench")
    settings, ours, theirs = build.iteration_settings(config), [], []
    with build.components(config, run, ready, device) as parts:
        rank = ray.get_actor("learner-rank-0")
        watch(rank)
        for number in range(1, iterations + 1):
            clock = PhaseClock()
            iteration = iterate(parts, settings, number, clock)
            tokens = sum(item.trajectory.tokens.size for item in iteration.scored)
            ours.append(Lap(tokens, clock.seconds(), seconds_since_last(rank)))
            if trl:
                theirs.append(trl())
        memory = ray.get(rank.__ray_call__.remote(lambda _: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))
    return Laps(ours[1:], theirs[1:], memory)


def middle(laps: Laps, phase: str) -> float:
    """Median seconds of one of our phases."""
    return median([getattr(lap.seconds, phase) for lap in laps.ours])


def compared(separate: Laps, others: Mapping[str, Laps]) -> list[Check]:
    """The checks of all our forms against TRL; `others` than the separate critic by name."""
    checks = [
        check("generated tokens/s, whole iteration", separate.rate, "tokens/s", baseline=separate.trl_rate),
        check(
            "whole iteration / TRL's GRPO trainer", separate.rate / separate.trl_rate, "ratio", ">=", GOAL, baseline=1.0
        ),
    ]
    for name, laps in others.items():
        checks += [
            check(f"{name}: generated tokens/s", laps.rate, "tokens/s", baseline=laps.trl_rate),
            check(f"{name}: whole iteration / TRL's", laps.rate / laps.trl_rate, "ratio", baseline=1.0),
        ]
    return [
        *checks,
        check("TRL: generation", median([lap.generation for lap in separate.trl]), "s"),
        check("TRL: all optimizer steps", median([lap.training for lap in separate.trl]), "s"),
    ]


def profile(separate: Laps, others: Mapping[str, Laps]) -> list[Check]:
    """The seconds of our iterations by phase, and the memory of a rank."""
    total = middle(separate, "total")
    generation = median([lap.tokens / lap.seconds.generate for lap in separate.ours])
    outside = median([lap.seconds.update - sum(lap.update.values()) for lap in separate.ours])
    checks = [
        check("generated tokens per iteration", median([lap.tokens for lap in separate.ours]), "tokens"),
        check("generated tokens/s, generation alone", generation, "tokens/s"),
        check("seconds per iteration", total, "s"),
        *(check(f"share of {phase}", middle(separate, phase) / total, "share") for phase in (*PHASES, "other")),
        check("update, policy and critic", middle(separate, "update"), "s"),
        *(check(f"of which {part}", median([lap.update[part] for lap in separate.ours]), "s") for part in PARTS),
        check("of which driver and transport", outside, "s"),
        check("peak memory of a rank's process", separate.memory, "MiB"),
    ]
    for name, laps in others.items():
        checks += [
            check(f"{name}: score", middle(laps, "score"), "s", baseline=middle(separate, "score")),
            check(f"{name}: update", middle(laps, "update"), "s", baseline=middle(separate, "update")),
            check(f"{name}: peak memory of a rank's process", laps.memory, "MiB", baseline=separate.memory),
        ]
    return checks


def main(quick: bool) -> None:
    """Measure and write bench/results/loop.json."""
    config = recipe(quick)
    iterations = 3 if quick else 6
    python = Path(os.environ.get("BENCH_PYTHON", ROOT / ".venv-bench" / "bin" / "python"))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        device = stack.enter_context(connect(config, "bench"))
        ready = stack.enter_context(open_model_and_task(config))
        trl = None
        if python.exists():
            job = job_of(config, ready.model, ready.task, 3 * iterations)  # alternates with each of our forms
            trl = stack.enter_context(started_trl(python, job, folder / "trl"))
        separate = measure(config, "separate", ready, device, folder, trl, iterations)
        others = {
            "critic on the policy's trunk": measure(
                on_one_trunk(config), "trunk", ready, device, folder, trl, iterations
            ),
            "GRPO, no critic": measure(without_critic(config), "none", ready, device, folder, trl, iterations),
        }
    if not python.exists():
        print(f"TRL is left out: no {python} (`make bench` prepares it)")
    checks = [*(compared(separate, others) if trl else []), *profile(separate, others)]
    settings: dict[str, str | int | float] = {
        "iterations": iterations,
        "starts": config.rollout.starts,
        "samples": config.rollout.samples,
        "engines": f"{config.rollout.actors} x {config.rollout.threads} threads",
        "ranks": f"{config.learner.ranks} x {config.learner.threads} threads",
        "cores": os.cpu_count() or 1,
        "device": device,
    }
    write("loop", checks, settings, quick=quick)


if __name__ == "__main__":
    main(command_line(__doc__).parse_args().quick)
