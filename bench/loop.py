"""How fast the whole loop is, against TRL's GRPO trainer: `python -m bench.loop [--quick]`.

An iteration is generation, reward, all optimizer steps and, for ours, scoring, the replay store, a critic trained beside the
policy, and a broadcast with its probe. Both work on the demo recipe's problems with the same model (its starter, hardly trained,
so that responses use up their budget in both), samples, lengths, optimizer steps and cores; they take turns, iteration by
iteration. Everything starts at the root. TRL runs in an environment of its own (requirements/bench.txt), named by BENCH_PYTHON
(default: .venv-bench/bin/python), as one process with all cores and as one data-parallel process per core; the faster of the two
is the baseline. Without that environment only ours is measured, and the comparison is written as missing.

Two more things say where the rest is: our update against bare DeepSpeed loops over the same micro-batches (`bench.bare_loop`),
and the loop with the critic as a head on the policy's trunk, which trains as many weights as TRL does (in turns with TRL, too).
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import ray

from bench.bare_loop import BareLoop
from bench.learner import spied
from bench.report import Check, check, median, write
from bench.trl_loop import Job, Lap
from core.config import Config, Device
from core.load import load_config
from core.run_directory import RunDirectory
from core.startup import WAITING
from learner.distributed.actor_critic import StepPlan
from learner.distributed.ranks import rank_environment
from learner.distributed.worker import RankWorker
from tasks.task import Task
from trainer import build
from trainer.build import ModelAndTask, open_model_and_task
from trainer.cluster import connect
from trainer.loop import iterate
from trainer.metrics import PHASES, PhaseClock, PhaseSeconds
from trainer.records import Components

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "configs" / "demo.yaml"
GOAL = 2.0

Peer = Callable[[], Lap]


class OurLap(NamedTuple):
    """One iteration of ours."""

    tokens: int  # generated
    seconds: PhaseSeconds

    @property
    def rate(self) -> float:
        """Generated tokens per second of the whole iteration."""
        return self.tokens / self.seconds.total


@dataclass(frozen=True, slots=True)
class Bare:
    """Seconds of bare loops over the micro-batches of one rank's update."""

    policy: float
    critic: float


def recipe(quick: bool) -> Config:
    """The demo recipe from the root, with a starter of a few steps; quick: a quarter of its starts."""
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
    """The same with the critic as a head on the policy's trunk."""
    return config.model_copy(update={"learner": config.learner.model_copy(update={"value_model": "shared"})})


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


def bench_python() -> Path | None:
    """The interpreter that has TRL."""
    python = Path(os.environ.get("BENCH_PYTHON", ROOT / ".venv-bench" / "bin" / "python"))
    return python if python.exists() else None


@contextmanager
def trl(python: Path, job: Job, folder: Path, processes: int) -> Iterator[Peer]:
    """A function that runs one iteration of TRL's trainer, by so many data-parallel processes that share the cores evenly."""
    folder.mkdir()
    (folder / "job.json").write_text(json.dumps(asdict(job)))
    threads = str(max(1, (os.cpu_count() or 1) // processes))
    # `trainer.cluster` has set how our threads wait; TRL has what it would have without us
    kept = {name: value for name, value in os.environ.items() if name not in WAITING}
    environment = kept | {"OMP_NUM_THREADS": threads, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1]), "WORLD_SIZE": str(processes)}

    def start(rank: int) -> "subprocess.Popen[str]":
        group = address | {"RANK": str(rank), "LOCAL_RANK": str(rank)} if processes > 1 else {}
        pipe = subprocess.DEVNULL if rank else subprocess.PIPE
        command = [str(python), "-W", "ignore", "-m", "bench.trl_loop", str(folder)]
        return subprocess.Popen(command, cwd=ROOT, env=environment | group, stdin=pipe, stdout=pipe, text=True)

    started = [start(rank) for rank in range(processes)]
    source, sink = started[0].stdout, started[0].stdin
    assert source
    assert sink

    def step() -> Lap:
        sink.write("go\n")
        sink.flush()
        line = source.readline()
        assert line, "TRL's trainer has ended; see its output above"
        return Lap(*json.loads(line))

    try:
        yield step
    finally:
        for process in started:
            process.kill()
            process.wait()


def alternate(
    config: Config, parts: Components, peers: Mapping[str, Peer], iterations: int
) -> tuple[list[OurLap], dict[str, list[Lap]]]:
    """Our iterations and the peers', in turns, without the first of each."""
    settings = build.iteration_settings(config)
    ours: list[OurLap] = []
    theirs: dict[str, list[Lap]] = {name: [] for name in peers}
    for number in range(1, iterations + 1):
        clock = PhaseClock()
        iteration = iterate(parts, settings, number, clock)
        ours.append(OurLap(sum(item.trajectory.tokens.size for item in iteration.scored), clock.seconds()))
        for name, peer in peers.items():
            theirs[name].append(peer())
    return ours[1:], {name: laps[1:] for name, laps in theirs.items()}


@contextmanager
def bare_loop(config: Config, model: str, device: Device) -> Iterator[Callable[[list[StepPlan]], Bare]]:
    """Bare DeepSpeed loops over policy and critic, with a rank's threads and in one process: no other rank to wait for."""
    environment = {"env_vars": rank_environment(device, config.learner.threads)}
    actor = ray.remote(BareLoop).options(runtime_env=environment, num_cpus=0).remote(model, device, "float32")

    def run(plans: list[StepPlan]) -> Bare:
        return Bare(*(ray.get(method.remote(plans)) for method in (actor.update_policy, actor.update_critic)))

    try:
        yield run
    finally:
        ray.kill(actor)


def measure(
    config: Config, ready: ModelAndTask, device: Device, folder: Path, peers: Mapping[str, Peer], iterations: int
) -> tuple[list[OurLap], dict[str, list[Lap]], list[Bare], float]:
    """Iterations of ours and of the peers, bare loops over what rank 0 trained on last, and the seconds until all was up."""
    run = RunDirectory.create(folder, config.learner.value_model, "bench")
    begun = time.perf_counter()
    with build.components(config, run, ready, device) as parts:
        started = time.perf_counter() - begun
        given = spied(parts.learner)
        ours, theirs = alternate(config, parts, peers, iterations)
    bare: list[Bare] = []
    if config.learner.value_model == "separate":
        with bare_loop(config, ready.model, device) as loop:
            bare = [loop(given[RankWorker.update]) for _ in range(4)][1:]
    return ours, theirs, bare, started


def middle(ours: Sequence[OurLap], phase: str) -> float:
    """Median seconds of a phase."""
    return median([getattr(lap.seconds, phase) for lap in ours])


def rates_of(theirs: Mapping[str, Sequence[Lap]]) -> dict[str, float]:
    """Tokens per second of the peers' whole iterations."""
    return {name: median([lap.tokens / lap.seconds for lap in laps]) for name, laps in theirs.items()}


def rate_checks(
    ours: Sequence[OurLap],
    theirs: Mapping[str, Sequence[Lap]],
    shared: Sequence[OurLap],
    beside_shared: Mapping[str, Sequence[Lap]],
) -> list[Check]:
    """Tokens per second of whole iterations; each form of ours is held against the fastest way to run TRL, in turns with it."""
    rate, on_trunk = (median([lap.rate for lap in laps]) for laps in (ours, shared))
    rates = rates_of(theirs)
    base, trunk_base = (max(some.values(), default=float("nan")) for some in (rates, rates_of(beside_shared)))
    return [
        check("generated tokens/s, whole iteration", rate, "tokens/s", baseline=base),
        check("whole iteration / TRL's GRPO trainer", rate / base, "ratio", ">=", GOAL, baseline=1.0),
        check("critic on the policy's trunk: generated tokens/s", on_trunk, "tokens/s", baseline=trunk_base),
        check("critic on the policy's trunk: whole iteration / TRL's", on_trunk / trunk_base, "ratio", baseline=1.0),
        *(check(f"TRL as {name}: generated tokens/s", value, "tokens/s") for name, value in rates.items()),
    ]


def profile_checks(
    ours: Sequence[OurLap], theirs: Mapping[str, Sequence[Lap]], bare: Sequence[Bare], shared: Sequence[OurLap]
) -> list[Check]:
    """Where the seconds go: ours by phase, the update's arithmetic by bare loops, TRL's before and after its reward is asked."""
    total, update = median([lap.seconds.total for lap in ours]), middle(ours, "update")
    policy, critic = (median([getattr(lap, part) for lap in bare]) for part in ("policy", "critic"))
    return [
        check("generated tokens per iteration", median([float(lap.tokens) for lap in ours]), "tokens"),
        check("generated tokens/s, generation alone", median([t / s.generate for t, s in ours]), "tokens/s"),
        check("seconds per iteration", total, "s"),
        *(check(f"share of {phase}", middle(ours, phase) / total, "share") for phase in (*PHASES, "other")),
        check("update, policy and critic", update, "s", baseline=policy + critic),
        check("of which bare DeepSpeed loop, policy", policy, "s"),
        check("of which bare DeepSpeed loop, critic", critic, "s"),
        check("critic on the policy's trunk: update", middle(shared, "update"), "s"),
        *(
            check(f"TRL as {name}: {what}", median([getattr(lap, field) for lap in laps]), "s")
            for name, laps in theirs.items()
            for what, field in (("generation", "generation"), ("all optimizer steps", "training"))
        ),
    ]


def main(quick: bool) -> None:
    """Measure and write bench/results/loop.json."""
    config = recipe(quick)
    iterations = 3 if quick else 6
    begun = time.perf_counter()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        device = stack.enter_context(connect(config, "bench"))
        ready = stack.enter_context(open_model_and_task(config))
        prepared = time.perf_counter() - begun
        peers, python = {}, bench_python()
        cores = os.cpu_count() or 1
        if python is not None:
            job = job_of(config, ready.model, ready.task, 2 * iterations)  # beside each of our two forms
            for name, processes in (("one process", 1), ("a process per core", cores)):
                peers[name] = stack.enter_context(trl(python, job, folder / f"trl-{processes}", processes))
        ours, theirs, bare, started = measure(config, ready, device, folder, peers, iterations)
        shared, beside_shared, _, _ = measure(on_one_trunk(config), ready, device, folder, peers, iterations)
    checks = [
        *rate_checks(ours, theirs, shared, beside_shared),
        *profile_checks(ours, theirs, bare, shared),
        check("start of Ray and model", prepared, "s"),
        check("start of engines, learner and store", started, "s"),
    ]
    settings: dict[str, str | int | float] = {
        "iterations": iterations,
        "starts": config.rollout.starts,
        "samples": config.rollout.samples,
        "engines": f"{config.rollout.actors} x {config.rollout.threads} threads",
        "ranks": f"{config.learner.ranks} x {config.learner.threads} threads",
        "cores": cores,
        "device": device,
    }
    write("loop", checks, settings, quick=quick)


if __name__ == "__main__":
    main("--quick" in sys.argv[1:])
